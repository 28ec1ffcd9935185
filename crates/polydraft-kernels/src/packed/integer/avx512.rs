//! The product of a tile with AVX-512 and its products of bytes (VNNI).

use std::arch::x86_64::*;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

struct Avx512;

// SAFETY: every function asks for AVX-512 F, BW or VNNI only.
unsafe impl Lanes for Avx512 {
    const LANES: usize = 16;
    type Floats = __m512;
    type Integers = __m512i;
    type Eights = __m512i;
    type Fours = __m512i;
    type FourSums = __m512i;

    #[inline(always)]
    unsafe fn start(shift: i32) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn eights(words: *const u32) -> __m512i {
        // As 128 + q, unsigned: so the instruction wants one side.
        // SAFETY: the CPU has what `Avx512` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            _mm512_xor_si512(
                _mm512_loadu_si512(words.cast()),
                _mm512_set1_epi32(0x8080_8080u32 as i32),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_eights(sums: __m512i, w: __m512i, x: i32) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn start_fours(shift: i32) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn fours(words: *const u32) -> [__m512i; 2] {
        // SAFETY: the CPU has what `Avx512` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let (words, low) = (_mm512_loadu_si512(words.cast()), _mm512_set1_epi32(0x0f0f_0f0f));
            [_mm512_and_si512(words, low), _mm512_and_si512(_mm512_srli_epi32::<4>(words), low)]
        }
    }

    #[inline(always)]
    unsafe fn decoded(places: __m512i) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for; the table has 16 bytes.
        unsafe {
            let table = _mm_loadu_si128(lanes::IQ4_RAISED.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), places)
        }
    }

    #[inline(always)]
    unsafe fn bits(words: *const u32, shift: i32, mask: u32) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let words = _mm512_loadu_si512(words.cast());
            let moved = if shift < 0 {
                _mm512_sll_epi32(words, _mm_cvtsi32_si128(-shift))
            } else {
                _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift))
            };
            _mm512_and_si512(moved, _mm512_set1_epi32(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn add_fours(sums: __m512i, w: __m512i, x: i32) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn end_fours(sums: __m512i, _shift: i32) -> __m512i {
        sums
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn floats(integers: __m512i) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u16) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for, and from `from` on lie `LANES` numbers.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for, and from `from` on lie `LANES` numbers.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the CPU has what `Avx512` asks for.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: the CPU has what `Avx512` asks for, and from `to` on lie `LANES` numbers.
        unsafe { _mm512_storeu_ps(to, x) }
    }
}

/// # Safety
/// [`available`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY: the CPU has what `Avx512` asks for; a tile has two vectors.
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
