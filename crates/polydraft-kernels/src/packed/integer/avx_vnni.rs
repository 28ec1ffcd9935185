//! The product of a tile with AVX2 and AVX-VNNI, whose `dpbusd` adds the products of four bytes.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::lanes::{self, Lanes};
use crate::packed::block::Block;
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

/// Whether the CPU has the target features of this kernel.
pub(super) fn available() -> bool {
    super::avx2::available() && is_x86_feature_detected!("avxvnni")
}

struct AvxVnni;

// SAFETY: every function only requires the target features avx2, fma, f16c and avxvnni.
unsafe impl Lanes for AvxVnni {
    const LANES: usize = 8;
    type Floats = __m256;
    type Integers = __m256i;
    type SignedBytes = __m256i;
    type SmallBytes = __m256i;
    type SmallSums = __m256i;

    #[inline(always)]
    unsafe fn init(shift: i32) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn load_signed(words: *const u32) -> __m256i {
        // Stored as 128 + q, because `dpbusd` takes one unsigned operand.
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `words` is
        // valid for `LANES` elements.
        unsafe {
            _mm256_xor_si256(
                _mm256_loadu_si256(words.cast()),
                _mm256_set1_epi32(0x8080_8080u32 as i32),
            )
        }
    }

    #[inline(always)]
    unsafe fn dot_signed(sums: __m256i, w: __m256i, x: i32) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_dpbusd_avx_epi32(sums, w, _mm256_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn init_small(shift: i32) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_set1_epi32(shift) }
    }

    #[inline(always)]
    unsafe fn load_nibbles(words: *const u32) -> [__m256i; 2] {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `words` is
        // valid for `LANES` elements.
        unsafe {
            let (words, low) = (_mm256_loadu_si256(words.cast()), _mm256_set1_epi32(0x0f0f_0f0f));
            [_mm256_and_si256(words, low), _mm256_and_si256(_mm256_srli_epi32::<4>(words), low)]
        }
    }

    #[inline(always)]
    unsafe fn lookup_iq4(codes: __m256i) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); the
        // codebook has 16 bytes.
        unsafe {
            let table = _mm_loadu_si128(lanes::IQ4_UNSIGNED.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
        }
    }

    #[inline(always)]
    unsafe fn load_bits(words: *const u32, shift: i32, mask: u32) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `words` is
        // valid for `LANES` elements.
        unsafe { Avx2::load_bits(words, shift, mask) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { Avx2::or(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_small(sums: __m256i, w: __m256i, x: i32) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_dpbusd_avx_epi32(sums, w, _mm256_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn finish_small(sums: __m256i, _shift: i32) -> __m256i {
        sums
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(integers: __m256i) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_cvtepi32_ps(integers) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `from` is
        // valid for `LANES` elements.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `from` is
        // valid for `LANES` elements.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`).
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        // SAFETY: target features avx2, fma, f16c and avxvnni (checked by `available`); `to` is
        // valid for `LANES` elements.
        unsafe { _mm256_storeu_ps(to, x) }
    }
}

/// Computes one tile with up to four rows of x.
///
/// # Safety
/// - The CPU has the target features avx2, fma, f16c and avxvnni ([`available`]).
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    // SAFETY:
    // - The caller guarantees the target features.
    // - A tile has four vectors, which V divides.
    unsafe {
        match y.len() {
            1 => lanes::tile::<AvxVnni, B, 1, 4, 2>(w, x, y),
            2 => lanes::tile::<AvxVnni, B, 2, 4, 1>(w, x, y),
            3 => lanes::tile::<AvxVnni, B, 3, 2, 1>(w, x, y),
            _ => lanes::tile::<AvxVnni, B, 4, 2, 1>(w, x, y),
        }
    }
}
