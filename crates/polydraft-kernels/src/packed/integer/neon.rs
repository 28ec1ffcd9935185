//! The product of a tile with NEON: products of bytes in 16 bits, summed by pairs into 32; or,
//! where the CPU has them, four at once into 32 (the extension for dot products, all but the oldest
//! 64-bit ARMs).

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use polydraft_gguf::IQ4_CODEBOOK;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

/// Whether this CPU multiplies four bytes at once.
pub(super) fn has_dot_products() -> bool {
    is_aarch64_feature_detected!("dotprod")
}

/// With dot products or without.
struct Neon<const DOT: bool>;

/// Adds to four sums the products of four bytes each.
///
/// # Safety
/// [`has_dot_products`] holds.
#[inline(always)]
unsafe fn dot(sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the caller has asked the CPU. What the standard library has for it is not stable yet.
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

// SAFETY: every function asks for NEON, which every such CPU has, and with `DOT` for dot products.
unsafe impl<const DOT: bool> Lanes for Neon<DOT> {
    const LANES: usize = 4;
    type Floats = float32x4_t;
    type Integers = int32x4_t;
    type Eights = int8x16_t;
    type Fours = int8x16_t;
    type FourSums = int32x4_t;

    #[inline(always)]
    unsafe fn start(_shift: i32) -> int32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vdupq_n_s32(0) }
    }

    #[inline(always)]
    unsafe fn eights(words: *const u32) -> int8x16_t {
        // SAFETY: the CPU has what `Neon` asks for, and from `words` on lie `LANES` numbers.
        unsafe { vld1q_s8(words.cast()) }
    }

    #[inline(always)]
    unsafe fn add_eights(sums: int32x4_t, w: int8x16_t, x: i32) -> int32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            if DOT {
                return dot(sums, w, x);
            }
            // Four columns of two rows each; two products of at most 128 · 127 fit into 16 bits one
            // by one.
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
            let high = vpaddlq_s16(vmull_high_s8(w, x));
            vaddq_s32(sums, vpaddq_s32(low, high))
        }
    }

    #[inline(always)]
    unsafe fn start_fours(shift: i32) -> int32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vdupq_n_s32(shift) }
    }

    #[inline(always)]
    unsafe fn fours(words: *const u32) -> [int8x16_t; 2] {
        // SAFETY: the CPU has what `Neon` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let words = vld1q_u8(words.cast());
            let low = vandq_u8(words, vdupq_n_u8(15));
            [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(vshrq_n_u8::<4>(words))]
        }
    }

    #[inline(always)]
    unsafe fn decoded(places: int8x16_t) -> int8x16_t {
        // SAFETY: the CPU has what `Neon` asks for; the table has 16 bytes.
        unsafe { vqtbl1q_s8(vld1q_s8(IQ4_CODEBOOK.as_ptr()), vreinterpretq_u8_s8(places)) }
    }

    #[inline(always)]
    unsafe fn bits(words: *const u32, shift: i32, mask: u32) -> int8x16_t {
        // SAFETY: the CPU has what `Neon` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let moved = vshlq_u32(vld1q_u32(words), vdupq_n_s32(-shift));
            vreinterpretq_s8_u32(vandq_u32(moved, vdupq_n_u32(mask)))
        }
    }

    #[inline(always)]
    unsafe fn or(a: int8x16_t, b: int8x16_t) -> int8x16_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vorrq_s8(a, b) }
    }

    #[inline(always)]
    unsafe fn add_fours(sums: int32x4_t, w: int8x16_t, x: i32) -> int32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { Self::add_eights(sums, w, x) }
    }

    #[inline(always)]
    unsafe fn end_fours(sums: int32x4_t, _shift: i32) -> int32x4_t {
        sums
    }

    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vaddq_s32(a, b) }
    }

    #[inline(always)]
    unsafe fn floats(integers: int32x4_t) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vcvtq_f32_s32(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u16) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for, and from `from` on lie `LANES` numbers.
        unsafe {
            let halves = vld1_u16(from);
            let wide: float32x4_t;
            // Of every CPU of this kind; the standard library's type for halves is not stable yet.
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
    unsafe fn bytes(from: *const u8) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for, and from `from` on lie `LANES` numbers.
        unsafe {
            let four = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four))))
        }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the CPU has what `Neon` asks for.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: float32x4_t) {
        // SAFETY: the CPU has what `Neon` asks for, and from `to` on lie `LANES` numbers.
        unsafe { vst1q_f32(to, x) }
    }
}

/// # Safety
/// None beyond that of a CPU of this kind.
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: NEON is always there.
    unsafe { either::<false, B>(w, x, y) }
}

/// # Safety
/// [`has_dot_products`] holds.
#[target_feature(enable = "dotprod")]
pub(super) unsafe fn dot_tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: the caller's promise.
    unsafe { either::<true, B>(w, x, y) }
}

/// With dot products or without.
///
/// # Safety
/// With `DOT`, [`has_dot_products`] holds.
#[inline(always)]
unsafe fn either<const DOT: bool, B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: the CPU has what `Neon` asks for; a tile has eight vectors.
    unsafe {
        match y.len() {
            1 => lanes::tile::<Neon<DOT>, B, 1, 8, 1>(w, x, y),
            2 => lanes::tile::<Neon<DOT>, B, 2, 4, 1>(w, x, y),
            3 => lanes::tile::<Neon<DOT>, B, 3, 4, 1>(w, x, y),
            _ => lanes::tile::<Neon<DOT>, B, 4, 4, 1>(w, x, y),
        }
    }
}
