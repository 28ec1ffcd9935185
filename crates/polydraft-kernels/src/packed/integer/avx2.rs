//! The product of a tile with AVX2. `maddubs` multiplies unsigned by signed bytes, and adds pairs
//! of products into 16 bits with saturation, so operands are arranged to stay in range.

use std::arch::x86_64::*;

use polydraft_gguf::IQ4_CODEBOOK;

use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

/// Whether the CPU has the target features of this kernel.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

pub(super) struct Avx2;

// SAFETY: every function only requires the target features avx2, fma and f16c.
unsafe impl Lanes for Avx2 {
    const LANES: usize = 8;
    type Floats = __m256;
    type Integers = __m256i;
    /// Absolute values, and the signed bytes.
    type SignedBytes = [__m256i; 2];
    type SmallBytes = __m256i;
    /// Two sums in 16 bits per row. Each can hold sixteen products of 15 · 127 (30,480), eight of
    /// 31 · 127, or four of 63 · 127.
    type SmallSums = __m256i;

    #[inline(always)]
    unsafe fn init(_shift: i32) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_signed(words: *const u32) -> [__m256i; 2] {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `words` is valid
        // for `LANES` elements.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            [_mm256_abs_epi8(words), words]
        }
    }

    #[inline(always)]
    unsafe fn dot_signed(sums: __m256i, [size, w]: [__m256i; 2], x: i32) -> __m256i {
        // |w| · (x · sign of w): x is never −128, so its negation does not overflow. The sum of two
        // products of at most 128 · 127 fits into 16 bits: 32,512.
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe {
            let two = _mm256_maddubs_epi16(size, _mm256_sign_epi8(_mm256_set1_epi32(x), w));
            _mm256_add_epi32(sums, _mm256_madd_epi16(two, _mm256_set1_epi16(1)))
        }
    }

    #[inline(always)]
    unsafe fn init_small(_shift: i32) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_nibbles(words: *const u32) -> [__m256i; 2] {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `words` is valid
        // for `LANES` elements.
        unsafe {
            let (words, low) = (_mm256_loadu_si256(words.cast()), _mm256_set1_epi32(0x0f0f_0f0f));
            [_mm256_and_si256(words, low), _mm256_and_si256(_mm256_srli_epi32::<4>(words), low)]
        }
    }

    #[inline(always)]
    unsafe fn lookup_iq4(codes: __m256i) -> [__m256i; 2] {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); the codebook has
        // 16 bytes.
        unsafe {
            let table = _mm_loadu_si128(IQ4_CODEBOOK.as_ptr().cast());
            let numbers = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
            [_mm256_abs_epi8(numbers), numbers]
        }
    }

    #[inline(always)]
    unsafe fn load_bits(words: *const u32, shift: i32, mask: u32) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `words` is valid
        // for `LANES` elements.
        unsafe {
            let words = _mm256_loadu_si256(words.cast());
            let shifted = if shift < 0 {
                _mm256_sll_epi32(words, _mm_cvtsi32_si128(-shift))
            } else {
                _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift))
            };
            _mm256_and_si256(shifted, _mm256_set1_epi32(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_small(sums: __m256i, w: __m256i, x: i32) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, _mm256_set1_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn finish_small(sums: __m256i, shift: i32) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe {
            _mm256_add_epi32(
                _mm256_madd_epi16(sums, _mm256_set1_epi16(1)),
                _mm256_set1_epi32(shift),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(integers: __m256i) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `from` is valid
        // for `LANES` elements.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `from` is valid
        // for `LANES` elements.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: target features avx2, fma and f16c (checked by `available`).
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        // SAFETY: target features avx2, fma and f16c (checked by `available`); `to` is valid
        // for `LANES` elements.
        unsafe { _mm256_storeu_ps(to, x) }
    }
}

/// Computes one tile with up to four rows of x.
///
/// # Safety
/// - The CPU has the target features avx2, fma and f16c ([`available`]).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // A full tile per pass, so that memory is read in one stream. For four rows, passes of two
    // vectors took 1.8 times as long, although their sums fit into the registers, unlike those of
    // four vectors.
    // SAFETY:
    // - The caller guarantees the target features.
    // - A tile has four vectors, which V divides.
    unsafe {
        match y.len() {
            1 => lanes::tile::<Avx2, B, 1, 4, 4>(w, x, y),
            2 => lanes::tile::<Avx2, B, 2, 4, 4>(w, x, y),
            3 => lanes::tile::<Avx2, B, 3, 4, 4>(w, x, y),
            _ => lanes::tile::<Avx2, B, 4, 4, 4>(w, x, y),
        }
    }
}
