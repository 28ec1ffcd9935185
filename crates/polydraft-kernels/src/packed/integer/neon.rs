//! The product of a tile with NEON: products of bytes in 16 bits, added in pairs into 32. If the
//! CPU has the dotprod extension (all but the oldest 64-bit ARMs), `sdot` adds the products of four
//! bytes into 32 bits instead.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use polydraft_gguf::IQ4_CODEBOOK;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

/// Whether the CPU has the target feature dotprod.
pub(super) fn has_dot_products() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// NEON, with or without dotprod.
struct Neon<const DOT: bool>;

/// Adds the products of four bytes to each of four sums.
///
/// # Safety
/// - The CPU has the target feature dotprod ([`has_dot_products`]).
#[inline(always)]
unsafe fn dot(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: target feature dotprod (caller). Inline assembly, because the intrinsic is not
    // stable.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {w:v}.16b, {x:v}.16b",
            sums = inout(vreg) sums,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

// SAFETY: every function only requires the target feature neon, which is part of aarch64, and
// dotprod if `DOT`.
unsafe impl<const DOT: bool> Lanes for Neon<DOT> {
    const LANES: usize = 4;
    type Floats = float32x4_t;
    type Integers = int32x4_t;
    type SignedBytes = int8x16_t;
    type SmallBytes = int8x16_t;
    type SmallSums = int32x4_t;

    #[inline(always)]
    unsafe fn init(_shift: i32) -> int32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vdupq_n_s32(0) }
    }

    #[inline(always)]
    unsafe fn load_signed(words: *const u32) -> int8x16_t {
        // SAFETY: target feature neon (part of aarch64); `words` is valid for `LANES` elements.
        unsafe { vld1q_s8(words.cast()) }
    }

    #[inline(always)]
    unsafe fn dot_signed(sums: int32x4_t, w: int8x16_t, x: i32) -> int32x4_t {
        // SAFETY: target feature neon (part of aarch64), and dotprod if `DOT` (caller).
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            if DOT {
                return dot(sums, w, x);
            }
            // Four columns of two rows each. A single product of at most 128 · 127 fits into 16
            // bits; pairs are added into 32 bits.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
            let high = vpaddlq_s16(vmull_high_s8(w, x));
            vaddq_s32(sums, vpaddq_s32(low, high))
        }
    }

    #[inline(always)]
    unsafe fn init_small(shift: i32) -> int32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vdupq_n_s32(shift) }
    }

    #[inline(always)]
    unsafe fn load_nibbles(words: *const u32) -> [int8x16_t; 2] {
        // SAFETY: target feature neon (part of aarch64); `words` is valid for `LANES` elements.
        unsafe {
            let words = vld1q_u8(words.cast());
            let low = vandq_u8(words, vdupq_n_u8(15));
            [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vshrq_n_u8::<4>(words))]
        }
    }

    #[inline(always)]
    unsafe fn lookup_iq4(codes: int8x16_t) -> int8x16_t {
        // SAFETY: target feature neon (part of aarch64); the codebook has 16 bytes.
        unsafe { vqtbl1q_s8(vld1q_s8(IQ4_CODEBOOK.as_ptr()), vreinterpretq_u8_s8(codes)) }
    }

    #[inline(always)]
    unsafe fn load_bits(words: *const u32, shift: i32, mask: u32) -> int8x16_t {
        // SAFETY: target feature neon (part of aarch64); `words` is valid for `LANES` elements.
        unsafe {
            let shifted = vshlq_u32(vld1q_u32(words), vdupq_n_s32(-shift));
            vreinterpretq_s8_u32(vandq_u32(shifted, vdupq_n_u32(mask)))
        }
    }

    #[inline(always)]
    unsafe fn or(a: int8x16_t, b: int8x16_t) -> int8x16_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vorrq_s8(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_small(sums: int32x4_t, w: int8x16_t, x: i32) -> int32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { Self::dot_signed(sums, w, x) }
    }

    #[inline(always)]
    unsafe fn finish_small(sums: int32x4_t, _shift: i32) -> int32x4_t {
        sums
    }

    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vaddq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(integers: int32x4_t) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vcvtq_f32_s32(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64); `from` is valid for `LANES` elements.
        unsafe {
            let halves = vld1_u16(from);
            let wide: float32x4_t;
            // Part of aarch64. Inline assembly, because the f16 intrinsics are not stable.
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = out(vreg) wide,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
            wide
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64); `from` is valid for `LANES` elements.
        unsafe {
            let four = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four))))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: target feature neon (part of aarch64).
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: float32x4_t) {
        // SAFETY: target feature neon (part of aarch64); `to` is valid for `LANES` elements.
        unsafe { vst1q_f32(to, x) }
    }
}

/// Computes one tile with up to four rows of x, without dotprod.
///
/// # Safety
/// - The CPU has the target feature neon, which is part of aarch64.
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: target feature neon (caller).
    unsafe { tile_with::<false, B>(w, x, y) }
}

/// Computes one tile with up to four rows of x, with dotprod.
///
/// # Safety
/// - The CPU has the target feature dotprod ([`has_dot_products`]).
#[target_feature(enable = "dotprod")]
pub(super) unsafe fn dot_tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: target feature dotprod (caller).
    unsafe { tile_with::<true, B>(w, x, y) }
}

/// Computes one tile with up to four rows of x.
///
/// # Safety
/// - If `DOT`, the CPU has the target feature dotprod ([`has_dot_products`]).
#[inline(always)]
unsafe fn tile_with<const DOT: bool, B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY:
    // - Target feature neon (part of aarch64), and dotprod if `DOT` (caller).
    // - A tile has eight vectors, which V divides.
    unsafe {
        match y.len() {
            1 => lanes::tile::<Neon<DOT>, B, 1, 8, 1>(w, x, y),
            2 => lanes::tile::<Neon<DOT>, B, 2, 4, 1>(w, x, y),
            3 => lanes::tile::<Neon<DOT>, B, 3, 4, 1>(w, x, y),
            _ => lanes::tile::<Neon<DOT>, B, 4, 4, 1>(w, x, y),
        }
    }
}
