//! The product of a tile with AVX2, whose products of bytes leave sums of two in 16 bits, cut off
//! beyond their range.

use std::arch::x86_64::*;

use polydraft_gguf::IQ4_CODEBOOK;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

pub(super) struct Avx2;

// SAFETY: every function asks for AVX2, FMA or F16C only.
unsafe impl Lanes for Avx2 {
    const LANES: usize = 8;
    type Floats = __m256;
    type Integers = __m256i;
    /// Sizes and signed bytes.
    type Eights = [__m256i; 2];
    type Fours = __m256i;
    /// In 16 bits, two for each row. Sixteen products of 15 · 127 fit: 30,480; of 31 eight, of 63
    /// four.
    type FourSums = __m256i;

    #[inline(always)]
    unsafe fn start(_shift: i32) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn eights(words: *const u32) -> [__m256i; 2] {
        // SAFETY: the CPU has what `Avx2` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            [_mm256_abs_epi8(words), words]
        }
    }

    #[inline(always)]
    unsafe fn add_eights(sums: __m256i, [size, w]: [__m256i; 2], x: i32) -> __m256i {
        // The sign moves to x, which has no −128. Two products of at most 128 · 127 fit into 16
        // bits: 32,512.
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe {
            let two = _mm256_maddubs_epi16(size, _mm256_sign_epi8(_mm256_set1_epi32(x), w));
            _mm256_add_epi32(sums, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn start_fours(_shift: i32) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn fours(words: *const u32) -> [__m256i; 2] {
        // SAFETY: the CPU has what `Avx2` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let (words, low) = (_mm256_loadu_si256(words.cast()), _mm256_set1_epi32(0x0f0f_0f0f));
            [_mm256_and_si256(words, low), _mm256_and_si256(_mm256_srli_epi32::<4>(words), low)]
        }
    }

    #[inline(always)]
    unsafe fn decoded(places: __m256i) -> [__m256i; 2] {
        // SAFETY: the CPU has what `Avx2` asks for; the table has 16 bytes.
        unsafe {
            let table = _mm_loadu_si128(IQ4_CODEBOOK.as_ptr().cast());
            let numbers = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), places);
            [_mm256_abs_epi8(numbers), numbers]
        }
    }

    #[inline(always)]
    unsafe fn bits(words: *const u32, shift: i32, mask: u32) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for, and from `words` on lie `LANES` numbers.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            let moved = if shift < 0 {
                _mm256_sll_epi32(words, _mm_cvtsi32_si128(-shift))
            } else {
                _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift))
            };
            _mm256_and_si256(moved, _mm256_set1_epi32(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn add_fours(sums: __m256i, w: __m256i, x: i32) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, _mm256_set1_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn end_fours(sums: __m256i, shift: i32) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe {
            _mm256_add_epi32(
                _mm256_madd_epi16(sums, _mm256_set1_epi16(1)),
                _mm256_set1_epi32(shift),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn floats(integers: __m256i) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u16) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for, and from `from` on lie `LANES` numbers.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for, and from `from` on lie `LANES` numbers.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the CPU has what `Avx2` asks for.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        // SAFETY: the CPU has what `Avx2` asks for, and from `to` on lie `LANES` numbers.
        unsafe { _mm256_storeu_ps(to, x) }
    }
}

/// # Safety
/// [`available`] holds.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // A whole tile at once, in one stream through memory: two vectors at a time took 1.8 times as
    // long for four rows, though their sums find room in the registers, which those of four do not.
    // SAFETY: the CPU has what `Avx2` asks for; a tile has four vectors.
    unsafe {
        match y.len() {
            1 => lanes::tile::<Avx2, B, 1, 4, 4>(w, x, y),
            2 => lanes::tile::<Avx2, B, 2, 4, 4>(w, x, y),
            3 => lanes::tile::<Avx2, B, 3, 4, 4>(w, x, y),
            _ => lanes::tile::<Avx2, B, 4, 4, 4>(w, x, y),
        }
    }
}
