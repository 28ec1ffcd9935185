//! Blocks of a ggml file whose numbers have 2, 3, 5 or 6 bits: held in as many, multiplied in f32.
//!
//! Problem: products with such weights in about the bytes that the file has for them, each number exactly what it says.
//! Method: ours. The numbers of 32 columns are cut into planes of 4, 2 and 1 bits; a plane of b bits has b words a row,
//! and word j mod b, shifted right by b·(j div b), columns 4j to 4j + 3, one a byte. A number becomes
//! fma(q, scale, minimum): scale · q is exact in f32 and the sum rounded once, as when the block is converted first. With
//! the order of sums that matrices in f32 have, a product is that of the converted matrix to the bit.
//! Complexity: as for other products here, with up to six more operations a word of four numbers.

use polydraft_gguf::{Integers, TensorType};
use pulp::Simd;

use super::super::blocks::widened;
use super::super::file::Filed;
use super::super::tiles::{Piece, TILE};
use super::STEP;
use super::sums::{Widen, word};

/// Columns of a part.
const PART: usize = 32;
/// Columns that share a step at least.
const GROUP: usize = 16;

/// `PARTS` times 32 columns of numbers of `BITS` bits, `STEPS` bytes of steps and `MINIMA` minima.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Planes<
    const BITS: usize,
    const PARTS: usize,
    const STEPS: usize,
    const MINIMA: usize,
> {
    /// The lowest bits first.
    numbers: [[[u32; TILE]; BITS]; PARTS],
    /// As in [`Integers::steps`].
    steps: [[u8; TILE]; STEPS],
    scales: [u16; TILE],
    minima: [[u16; TILE]; MINIMA],
}

pub(in super::super) type Q5_0 = Planes<5, 1, 0, 0>;
pub(in super::super) type Q5_1 = Planes<5, 1, 0, 1>;
pub(in super::super) type Q2K = Planes<2, 8, 16, 1>;
pub(in super::super) type Q3K = Planes<3, 8, 16, 0>;
pub(in super::super) type Q5K = Planes<5, 8, 16, 1>;
pub(in super::super) type Q6K = Planes<6, 8, 16, 0>;

/// What differs between them.
pub(in super::super) trait Kind {
    const TYPE: TensorType;

    /// What a row's numbers are multiplied with in 16 columns, and what is added: from its scale and minimum as f32.
    fn factors(scale: f32, minimum: f32, steps: &[[u8; TILE]], group: usize, row: usize) -> (f32, f32);
}

macro_rules! kind {
    ($piece:ty, $kind:ident, ($scale:tt, $minimum:tt, $steps:tt, $group:tt, $row:tt) => $factors:expr) => {
        impl Kind for $piece {
            const TYPE: TensorType = TensorType::$kind;

            #[inline(always)]
            fn factors(
                $scale: f32,
                $minimum: f32,
                $steps: &[[u8; TILE]],
                $group: usize,
                $row: usize,
            ) -> (f32, f32) {
                $factors
            }
        }
    };
}
kind!(Q5_0, Q5_0, (scale, _, _, _, _) => (scale, 0.0));
kind!(Q5_1, Q5_1, (scale, minimum, _, _, _) => (scale, minimum));
kind!(Q2K, Q2_K, (scale, minimum, steps, group, row) => {
    let step = steps[group][row];
    (scale * f32::from(step & 15), -minimum * f32::from(step >> 4))
});
kind!(Q3K, Q3_K, (scale, _, steps, group, row) => (scale * f32::from(steps[group][row] as i8), 0.0));
kind!(Q5K, Q5_K, (scale, minimum, steps, group, row) => {
    (scale * f32::from(steps[group / 2][row]), -minimum * f32::from(steps[8 + group / 2][row]))
});
kind!(Q6K, Q6_K, (scale, _, steps, group, row) => (scale * f32::from(steps[group][row] as i8), 0.0));

/// Bits of the planes.
const fn widths(bits: usize) -> [usize; 2] {
    let low = if bits < 4 { 2 } else { 4 };
    [low, bits - low]
}

/// Word `j` of a plane. No closure: the compiler does not give one the processor's vectors.
#[inline(always)]
fn plane<S: Simd>(simd: S, words: &[[u32; TILE]], j: usize, v: usize) -> S::u32s {
    let bits = words.len();
    let shift = simd.splat_u32s((bits * (j / bits)) as u32);
    let word = simd.wrapping_dyn_shr_u32s(word::<S>(&words[j % bits], v), shift);
    simd.and_u32s(word, simd.splat_u32s(mask(bits)))
}

/// So many bits of every byte.
const fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize>
    Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const OFFSET: i32 = Integers::offset(Self::TYPE);

    /// Of a row, for 16 columns.
    #[inline(always)]
    fn factors_of(&self, row: usize, group: usize) -> (f32, f32) {
        let minimum = if MINIMA > 0 { widened(self.minima[0][row]) } else { 0.0 };
        <Self as Kind>::factors(widened(self.scales[row]), minimum, &self.steps, group, row)
    }

    /// Word `j` of a part, four numbers, for vector `v` of the rows.
    #[inline(always)]
    fn numbers<S: Simd>(&self, simd: S, part: usize, j: usize, v: usize) -> S::u32s {
        let [low, high] = widths(BITS);
        let planes = &self.numbers[part];
        let first = plane(simd, &planes[..low], j, v);
        if high == 0 {
            return first;
        }
        let second = plane(simd, &planes[low..], j, v);
        simd.or_u32s(first, simd.wrapping_dyn_shl_u32s(second, simd.splat_u32s(low as u32)))
    }

    /// The same of one row.
    fn word(&self, row: usize, part: usize, j: usize) -> u32 {
        let [low, high] = widths(BITS);
        let planes = &self.numbers[part];
        let plane = |at: usize, bits: usize| planes[at + j % bits][row] >> (bits * (j / bits)) & mask(bits);
        plane(0, low) | if high > 0 { plane(low, high) << low } else { 0 }
    }
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Piece
    for Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const COLUMNS: usize = PARTS * PART;
    const ZERO: Self = Self {
        numbers: [[[0; TILE]; BITS]; PARTS],
        steps: [[0; TILE]; STEPS],
        scales: [0; TILE],
        minima: [[0; TILE]; MINIMA],
    };

    fn get(&self, row: usize, values: &mut [f32]) {
        for (word, values) in values.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            let column = word * STEP;
            let (scale, minimum) = self.factors_of(row, column / GROUP);
            let numbers = self.word(row, column / PART, column % PART / STEP).to_le_bytes();
            for (value, number) in values.iter_mut().zip(numbers) {
                let exact = scale * (i32::from(number) - Self::OFFSET) as f32;
                *value = if MINIMA > 0 { exact + minimum } else { exact };
            }
        }
    }
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Filed
    for Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const KIND: TensorType = Self::TYPE;

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        // Always a block: `Tiles::from_file` cuts them so.
        let Some(block) = Integers::new(Self::TYPE, bytes) else { return Ok(()) };
        for half in [block.scale, block.minimum] {
            let half = half::f16::from_bits(half);
            if !half.is_finite() {
                return Err(half.to_f32());
            }
        }
        let [low, high] = widths(BITS);
        for (part, planes) in self.numbers.iter_mut().enumerate() {
            let numbers = block.numbers[part * PART..][..PART].as_chunks::<STEP>().0;
            for (j, four) in numbers.iter().enumerate() {
                let word = u32::from_le_bytes(*four);
                planes[j % low][row] |= (word & mask(low)) << (low * (j / low));
                if high > 0 {
                    planes[low + j % high][row] |= (word >> low & mask(high)) << (high * (j / high));
                }
            }
        }
        self.scales[row] = block.scale;
        self.minima.iter_mut().for_each(|minima| minima[row] = block.minimum);
        for (steps, step) in self.steps.iter_mut().zip(block.steps) {
            steps[row] = step;
        }
        Ok(())
    }
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Widen
    for Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const SUMS: usize = 10;
    const GROUP: usize = GROUP;
    /// Scales and minima.
    type Factors = [[f32; TILE]; 2];

    #[inline(always)]
    fn factors(&self, group: usize) -> [[f32; TILE]; 2] {
        let [mut scales, mut minima] = [[0f32; TILE]; 2];
        for row in 0..TILE {
            (scales[row], minima[row]) = self.factors_of(row, group);
        }
        [scales, minima]
    }

    #[inline(always)]
    fn widen<S: Simd>(
        &self,
        simd: S,
        [scales, minima]: &[[f32; TILE]; 2],
        step: usize,
        v: usize,
    ) -> [S::f32s; STEP] {
        // A byte b, under the exponent of 2^23, is the number 2^23 + b.
        let (byte, exponent) = (simd.splat_u32s(0xff), simd.splat_u32s(0x4b00_0000));
        let offset = simd.splat_f32s(8_388_608.0 + Self::OFFSET as f32);
        let (scale, minimum) = (S::as_simd_f32s(scales).0[v], S::as_simd_f32s(minima).0[v]);
        let numbers = self.numbers(simd, step * STEP / PART, step % (PART / STEP), v);
        let mut wide = [offset; STEP];
        for (c, wide) in wide.iter_mut().enumerate() {
            let shift = simd.splat_u32s(8 * c as u32);
            let q = simd.and_u32s(simd.wrapping_dyn_shr_u32s(numbers, shift), byte);
            let q = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(q, exponent)), offset);
            *wide = match MINIMA {
                0 => simd.mul_f32s(q, scale),
                _ => simd.mul_add_f32s(q, scale, minimum),
            };
        }
        wide
    }
}
