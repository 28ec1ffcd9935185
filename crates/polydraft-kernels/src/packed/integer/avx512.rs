//! The product of a tile with AVX-512 and VNNI, whose `dpbusd` adds the products of four bytes.

use std::arch::x86_64::*;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

/// Whether the CPU has the target features of this kernel.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

struct Avx512;

// SAFETY: every function only requires the target features avx512f, avx512bw and avx512vnni.
unsafe impl Lanes for Avx512 {
    const LANES: usize = 16;
    type Floats = __m512;
    type Integers = __m512i;
    type SignedBytes = __m512i;
    type SmallBytes = __m512i;
    type SmallSums = __m512i;

    #[inline(always)]
    unsafe fn init(shift: i32) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn load_signed(words: *const u32) -> __m512i {
        // Stored as 128 + q, because `dpbusd` takes one unsigned operand.
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`);
        // `words` is valid for `LANES` elements.
        unsafe {
            _mm512_xor_si512(
                _mm512_loadu_si512(words.cast()),
                _mm512_set1_epi32(0x8080_8080u32 as i32),
            )
        }
    }

    #[inline(always)]
    unsafe fn dot_signed(sums: __m512i, w: __m512i, x: i32) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn init_small(shift: i32) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn load_nibbles(words: *const u32) -> [__m512i; 2] {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`);
        // `words` is valid for `LANES` elements.
        unsafe {
            let (words, low) = (_mm512_loadu_si512(words.cast()), _mm512_set1_epi32(0x0f0f_0f0f));
            [_mm512_and_si512(words, low), _mm512_and_si512(_mm512_srli_epi32::<4>(words), low)]
        }
    }

    #[inline(always)]
    unsafe fn lookup_iq4(codes: __m512i) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`); the
        // codebook has 16 bytes.
        unsafe {
            let table = _mm_loadu_si128(lanes::IQ4_UNSIGNED.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)
        }
    }

    #[inline(always)]
    unsafe fn load_bits(words: *const u32, shift: i32, mask: u32) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`);
        // `words` is valid for `LANES` elements.
        unsafe {
            let words = _mm512_loadu_si512(words.cast());
            let shifted = if shift < 0 {
                _mm512_sll_epi32(words, _mm_cvtsi32_si128(-shift))
            } else {
                _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift))
            };
            _mm512_and_si512(shifted, _mm512_set1_epi32(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_small(sums: __m512i, w: __m512i, x: i32) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn finish_small(sums: __m512i, _shift: i32) -> __m512i {
        sums
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(integers: __m512i) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`); `from`
        // is valid for `LANES` elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`); `from`
        // is valid for `LANES` elements.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`).
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: target features avx512f, avx512bw and avx512vnni (checked by `available`); `to`
        // is valid for `LANES` elements.
        unsafe { _mm512_storeu_ps(to, x) }
    }
}

/// Computes one tile with up to eight rows of x.
///
/// # Safety
/// - The CPU has the target features avx512f, avx512bw and avx512vnni ([`available`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY:
    // - The caller guarantees the target features.
    // - A tile has two vectors, which V divides.
    unsafe {
        match y.len() {
            1 => lanes::tile::<Avx512, B, 1, 2, 2>(w, x, y),
            2 => lanes::tile::<Avx512, B, 2, 2, 2>(w, x, y),
            3 => lanes::tile::<Avx512, B, 3, 2, 2>(w, x, y),
            4 => lanes::tile::<Avx512, B, 4, 2, 2>(w, x, y),
            5 => lanes::tile::<Avx512, B, 5, 2, 2>(w, x, y),
            6 => lanes::tile::<Avx512, B, 6, 2, 2>(w, x, y),
            7 => lanes::tile::<Avx512, B, 7, 2, 2>(w, x, y),
            _ => lanes::tile::<Avx512, B, 8, 2, 2>(w, x, y),
        }
    }
}
