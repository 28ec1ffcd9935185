//! Kinds of blocks whose numbers have 2, 3, 5 or 6 bits, stored in as many.
//!
//! They are ggml's Q5_0, Q5_1, Q2_K, Q3_K, Q5_K and Q6_K to the bit; to Q5_1 numbers can be
//! rounded. The numbers of 32 columns are cut into planes of 4, 2 and 1 bits ([`Cut`]), which a
//! product puts together in registers.

#![allow(unsafe_code)]

use polydraft_gguf::{Integers, TensorType};

use super::block::{Block, COLUMNS, Cut, Factors, Numbers, mask, values};
use super::tiles::{Piece, TILE};

/// `PARTS` times 32 columns of numbers of `BITS` bits, `STEPS` bytes of steps and `MINIMA` minima.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Planes<
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
    /// To be added: of the types that subtract them, the signs are turned.
    minima: [[u16; TILE]; MINIMA],
}

pub(super) type Q5_0 = Planes<5, 1, 0, 0>;
pub(super) type Q5_1 = Planes<5, 1, 0, 1>;
pub(super) type Q2K = Planes<2, 8, 16, 1>;
pub(super) type Q3K = Planes<3, 8, 16, 0>;
pub(super) type Q5K = Planes<5, 8, 16, 1>;
pub(super) type Q6K = Planes<6, 8, 16, 0>;

impl Q5_1 {
    /// Puts a row's numbers in their place, where there are zeros.
    #[inline(always)]
    pub fn set(&mut self, row: usize, scale: u16, minimum: u16, numbers: &[u8; COLUMNS]) {
        (self.scales[row], self.minima[0][row]) = (scale, minimum);
        cut(&mut self.numbers[0], row, numbers);
    }
}

/// What differs between them.
pub(super) trait Kind {
    const TYPE: TensorType;
    /// As in [`Block`].
    const SPANS: usize;
    /// What is subtracted from the steps of scales as they are given.
    const STEP_OFFSET: u8 = 0;

    /// What the scale is multiplied with, and the minimum: from the steps, by part and span.
    fn scale_steps(_steps: &[[u8; TILE]], _part: usize, _span: usize) -> Option<[u8; TILE]> {
        None
    }

    fn minimum_steps(_steps: &[[u8; TILE]], _part: usize, _span: usize) -> Option<[u8; TILE]> {
        None
    }
}

/// Each of a row of bytes, changed.
#[inline(always)]
fn each(mut bytes: [u8; TILE], change: impl Fn(u8) -> u8) -> [u8; TILE] {
    for byte in &mut bytes {
        *byte = change(*byte);
    }
    bytes
}

impl Kind for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const SPANS: usize = 1;
}

impl Kind for Q5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const SPANS: usize = 1;
}

impl Kind for Q2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const SPANS: usize = 2;

    #[inline(always)]
    fn scale_steps(steps: &[[u8; TILE]], part: usize, span: usize) -> Option<[u8; TILE]> {
        Some(each(steps[2 * part + span], |step| step & 15))
    }

    #[inline(always)]
    fn minimum_steps(steps: &[[u8; TILE]], part: usize, span: usize) -> Option<[u8; TILE]> {
        Some(each(steps[2 * part + span], |step| step >> 4))
    }
}

impl Kind for Q5K {
    const TYPE: TensorType = TensorType::Q5_K;
    const SPANS: usize = 1;

    #[inline(always)]
    fn scale_steps(steps: &[[u8; TILE]], part: usize, _span: usize) -> Option<[u8; TILE]> {
        Some(steps[part])
    }

    #[inline(always)]
    fn minimum_steps(steps: &[[u8; TILE]], part: usize, _span: usize) -> Option<[u8; TILE]> {
        Some(steps[8 + part])
    }
}

/// With signed steps for every 16 columns.
macro_rules! signed {
    ($piece:ty, $kind:ident) => {
        impl Kind for $piece {
            const TYPE: TensorType = TensorType::$kind;
            const SPANS: usize = 2;
            const STEP_OFFSET: u8 = 128;

            #[inline(always)]
            fn scale_steps(steps: &[[u8; TILE]], part: usize, span: usize) -> Option<[u8; TILE]> {
                Some(each(steps[2 * part + span], |step| step ^ 128))
            }
        }
    };
}
signed!(Q3K, Q3_K);
signed!(Q6K, Q6_K);

/// Bits of the planes.
const fn widths(bits: usize) -> [usize; 2] {
    let low = if bits < 4 { 2 } else { 4 };
    [low, bits - low]
}

/// Puts a row's numbers into planes that have zeros there.
#[inline(always)]
fn cut<const BITS: usize>(planes: &mut [[u32; TILE]; BITS], row: usize, numbers: &[u8; COLUMNS]) {
    let [low, high] = widths(BITS);
    for (j, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
        let word = u32::from_le_bytes(*four);
        planes[j % low][row] |= (word & mask(low)) << (low * (j / low));
        if high > 0 {
            planes[low + j % high][row] |= (word >> low & mask(high)) << (high * (j / high));
        }
    }
}

// SAFETY: arrays of whole numbers, which together are as long as it is.
unsafe impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Piece
    for Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const COLUMNS: usize = PARTS * COLUMNS;
    const ZERO: Self = Self {
        numbers: [[[0; TILE]; BITS]; PARTS],
        steps: [[0; TILE]; STEPS],
        scales: [0; TILE],
        minima: [[0; TILE]; MINIMA],
    };

    fn get(&self, row: usize, out: &mut [f32]) {
        values(self, row, out);
    }
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Block
    for Planes<BITS, PARTS, STEPS, MINIMA>
where
    Self: Kind,
{
    const PARTS: usize = PARTS;
    const SPANS: usize = <Self as Kind>::SPANS;
    const OFFSET: i32 = Integers::offset(Self::TYPE);
    const MOST: u8 = (1 << BITS) - 1;
    const KIND: TensorType = Self::TYPE;

    #[inline(always)]
    fn numbers(&self, part: usize) -> Numbers<'_> {
        Numbers::Cut(Cut { words: &self.numbers[part], widths: widths(BITS) })
    }

    #[inline(always)]
    fn scales(&self, part: usize, span: usize) -> Factors<'_> {
        match <Self as Kind>::scale_steps(&self.steps, part, span) {
            Some(steps) => Factors::Stepped(&self.scales, steps, Self::STEP_OFFSET),
            None => Factors::Plain(&self.scales),
        }
    }

    #[inline(always)]
    fn minima(&self, part: usize, span: usize) -> Option<Factors<'_>> {
        let minima = self.minima.first()?;
        Some(match <Self as Kind>::minimum_steps(&self.steps, part, span) {
            Some(steps) => Factors::Stepped(minima, steps, 0),
            None => Factors::Plain(minima),
        })
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        // Always a block: `Tiles::from_file` cuts them so.
        let Some(block) = Integers::new(Self::TYPE, bytes) else { return Ok(()) };
        for half in [block.scale, block.minimum] {
            let half = half::f16::from_bits(half);
            if !half.is_finite() {
                return Err(half.to_f32());
            }
        }
        for (planes, numbers) in self.numbers.iter_mut().zip(block.numbers.as_chunks().0) {
            cut(planes, row, numbers);
        }
        self.scales[row] = block.scale;
        let turned =
            if matches!(Self::TYPE, TensorType::Q2_K | TensorType::Q5_K) { 0x8000 } else { 0 };
        self.minima.iter_mut().for_each(|minima| minima[row] = block.minimum ^ turned);
        for (steps, step) in self.steps.iter_mut().zip(block.steps) {
            steps[row] = step;
        }
        Ok(())
    }
}
