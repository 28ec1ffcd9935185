//! Chunks of weights in f32, bf16 and f16, and the widening of these and of Q8_0 to f32.

#![allow(unsafe_code)]

use half::{bf16, f16};
use pulp::Simd;

use super::step::{MAX_GROUP, STEP, Step};
use super::sums::{AddProducts, ExactWeights, Sums, Widen, word};
use super::wide::{Scaled, Wide, WideBlock, add_scaled};
use crate::fetch::{CacheLevel, PassPrefetch, prefetch_ahead};
use crate::halves::f16_to_f32;
use crate::packed::blocks::Q8_0;
use crate::packed::read::ReadRows;
use crate::packed::tiles::{Chunk, Encode, TILE};

/// Returns a row's numbers for four columns, padded with zeros. The common case of four numbers
/// compiles to one load.
#[inline(always)]
fn padded<T: Copy + Default>(values: &[T]) -> [T; STEP] {
    match values.first_chunk() {
        Some(full) => *full,
        None => std::array::from_fn(|column| values.get(column).copied().unwrap_or_default()),
    }
}

/// Four columns in f32, one per word.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct F32([[u32; TILE]; STEP]);

// SAFETY: an integer array: no padding, and every bit pattern is valid.
unsafe impl Chunk for F32 {
    const COLUMNS: usize = STEP;
    const ZERO: Self = Self([[0; TILE]; STEP]);

    fn get(&self, row: usize, values: &mut [f32]) {
        for (words, value) in self.0.iter().zip(values) {
            *value = f32::from_bits(words[row]);
        }
    }
}

impl Encode for F32 {
    type Value = f32;

    fn read<E>(
        rows: &(impl ReadRows<E> + ?Sized),
        first: usize,
        values: &mut [f32],
    ) -> Result<(), E> {
        rows.f32(first, values)
    }

    #[inline(always)]
    fn set(&mut self, row: usize, values: &[f32], _weights: Option<&[f32]>) {
        for (words, value) in self.0.iter_mut().zip(padded(values)) {
            words[row % TILE] = value.to_bits();
        }
    }
}

/// Reinterprets chunks in f32 as widened chunks.
fn in_f32(chunks: &[F32]) -> &[Wide] {
    const {
        assert!(size_of::<Wide>() == size_of::<F32>() && align_of::<Wide>() == align_of::<F32>());
    }
    // SAFETY: equal size and alignment (asserted), and every bit pattern is a valid f32.
    unsafe { std::slice::from_raw_parts(chunks.as_ptr().cast(), chunks.len()) }
}

/// Multiplies like [`Wide`], directly from memory.
impl AddProducts for F32 {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        for (chunk, (x, w)) in x.iter().zip(in_f32(w)).enumerate() {
            prefetch.step(chunk);
            w.add_to(simd, x, first, sums);
        }
    }
}

impl ExactWeights for F32 {
    type Wide = Wide;
    const MAX_SUMS: [usize; 2] = [20, 12];
    const MAX_ROWS: usize = MAX_GROUP;
    const SMALL_BATCH: usize = MAX_GROUP;

    #[inline(always)]
    fn widened<'a, S: Simd>(_simd: S, w: &'a [Self], _room: &'a mut Vec<Wide>) -> &'a [Wide] {
        in_f32(w)
    }
}

/// Four columns in bf16, two per word.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct Bf16([[u32; TILE]; STEP / 2]);

/// Four columns in f16, two per word.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in crate::packed) struct F16([[u32; TILE]; STEP / 2]);

macro_rules! sixteen {
    ($chunk:ident, $value:ty, $read:ident) => {
        // SAFETY: an integer array: no padding, and every bit pattern is valid.
        unsafe impl Chunk for $chunk {
            const COLUMNS: usize = STEP;
            const ZERO: Self = Self([[0; TILE]; STEP / 2]);

            fn get(&self, row: usize, values: &mut [f32]) {
                for (column, value) in values.iter_mut().enumerate() {
                    let bits = (self.0[column / 2][row] >> (16 * (column % 2))) as u16;
                    *value = <$value>::from_bits(bits).to_f32();
                }
            }
        }

        impl Encode for $chunk {
            type Value = $value;

            fn read<E>(
                rows: &(impl ReadRows<E> + ?Sized),
                first: usize,
                values: &mut [$value],
            ) -> Result<(), E> {
                rows.$read(first, values)
            }

            #[inline(always)]
            fn set(&mut self, row: usize, values: &[$value], _weights: Option<&[f32]>) {
                for (words, pair) in self.0.iter_mut().zip(padded(values).as_chunks::<2>().0) {
                    words[row % TILE] =
                        u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16;
                }
            }
        }
    };
}
sixteen!(Bf16, bf16, bf16);
sixteen!(F16, f16, f16);

impl Widen for Bf16 {
    const MAX_SUMS: [usize; 2] = [12, 10];
    const MAX_ROWS: usize = 5;
    const SMALL_BATCH: usize = 32;

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP] {
        let (half, high) = (simd.splat_u32s(16), simd.splat_u32s(0xffff_0000));
        let (a, b) = (word::<S>(&self.0[0], v), word::<S>(&self.0[1], v));
        [
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(a, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(a, high)),
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(b, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(b, high)),
        ]
    }
}

impl F16 {
    /// Converts f16 to f32. `magnitude` has the exponent and fraction shifted to their position in
    /// an f32, which is the number times 2^-112, including subnormals; `signed` has the sign bit on
    /// top. Other bits of both are masked.
    #[inline(always)]
    fn number<S: Simd>(simd: S, magnitude: S::u32s, signed: S::u32s) -> S::f32s {
        let (bits, sign) = (simd.splat_u32s(0x0fff_e000), simd.splat_u32s(1 << 31));
        let scale = simd.splat_f32s(f32::from_bits((127 + 112) << 23));
        let size = simd.mul_f32s(simd.transmute_f32s_u32s(simd.and_u32s(magnitude, bits)), scale);
        simd.transmute_f32s_u32s(
            simd.or_u32s(simd.transmute_u32s_f32s(size), simd.and_u32s(signed, sign)),
        )
    }

    /// Converts the two f16 of each word.
    #[inline(always)]
    fn pair<S: Simd>(simd: S, w: S::u32s) -> [S::f32s; 2] {
        let up = simd.wrapping_dyn_shl_u32s(w, simd.splat_u32s(13));
        let half = simd.wrapping_dyn_shl_u32s(w, simd.splat_u32s(16));
        let down = simd.wrapping_dyn_shr_u32s(w, simd.splat_u32s(3));
        [Self::number(simd, up, half), Self::number(simd, down, w)]
    }
}

impl Widen for F16 {
    const MAX_SUMS: [usize; 2] = [4, 8];
    const MAX_ROWS: usize = MAX_GROUP;
    const SMALL_BATCH: usize = 32;

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP] {
        let [a, b] = Self::pair(simd, word::<S>(&self.0[0], v));
        let [c, d] = Self::pair(simd, word::<S>(&self.0[1], v));
        [a, b, c, d]
    }
}

/// Converts vector `v` of words of four signed bytes to f32.
#[inline(always)]
fn integers<S: Simd>(simd: S, words: &[u32; TILE], v: usize) -> [S::f32s; STEP] {
    // With the exponent of 2^23 above it, the byte b = 128 + q is the f32 number 2^23 + b.
    let (byte, exponent) = (simd.splat_u32s(0xff), simd.splat_u32s(0x4b00_0000));
    let offset = simd.splat_f32s(8_388_608.0 + 128.0);
    let w = simd.xor_u32s(word::<S>(words, v), simd.splat_u32s(0x8080_8080));
    let mut out = [offset; STEP];
    for (c, out) in out.iter_mut().enumerate() {
        let q = simd.and_u32s(simd.wrapping_dyn_shr_u32s(w, simd.splat_u32s(8 * c as u32)), byte);
        *out = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(q, exponent)), offset);
    }
    out
}

impl Scaled for Q8_0 {
    const STEPS: usize = Self::COLUMNS / STEP;
    const STREAMED: bool = true;

    #[inline(always)]
    fn numbers<S: Simd>(&self, simd: S, step: usize, v: usize) -> [S::f32s; STEP] {
        integers(simd, &self.numbers[step], v)
    }

    #[inline(always)]
    fn scales(&self) -> [f32; TILE] {
        let mut scales = [0f32; TILE];
        for (scale, half) in scales.iter_mut().zip(&self.scales) {
            *scale = f16_to_f32(*half);
        }
        scales
    }
}

impl AddProducts for Q8_0 {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        add_scaled(simd, x, w, first, prefetch, sums);
    }
}

impl ExactWeights for Q8_0 {
    type Wide = WideBlock;
    const MAX_SUMS: [usize; 2] = [4, 10];
    const MAX_ROWS: usize = MAX_GROUP;
    const SMALL_BATCH: usize = 16;

    #[inline(always)]
    fn widened<'a, S: Simd>(
        simd: S,
        w: &'a [Self],
        scratch: &'a mut Vec<Self::Wide>,
    ) -> &'a [Self::Wide] {
        scratch.resize(w.len(), WideBlock::ZERO);
        for (w, scratch) in w.iter().zip(&mut *scratch) {
            prefetch_ahead(w, 0, 1, CacheLevel::L2);
            for (step, scratch) in scratch.numbers.iter_mut().enumerate() {
                for v in 0..TILE / S::F32_LANES {
                    scratch.store::<S>(v, w.numbers(simd, step, v));
                }
            }
            scratch.scales = w.scales();
        }
        scratch
    }
}
