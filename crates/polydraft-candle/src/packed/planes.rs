//! Kinds of blocks whose numbers have 2, 3, 5 or 6 bits, held in as many.
//!
//! They are ggml's Q5_0, Q5_1, Q2_K, Q3_K, Q5_K and Q6_K to the bit; nothing is rounded to them. The numbers of 32 columns are
//! cut into planes of 4, 2 and 1 bits; a plane of b bits has b words a row, and word j mod b, shifted right by
//! b·(j div b), columns 4j to 4j + 3, one a byte. For a product they are put together once, for all rows of x.

use polydraft_gguf::{Integers, TensorType};

use super::blocks::{Block, Bytes, COLUMNS, Factors, Numbers, values};
use super::tiles::{Piece, TILE};

/// `PARTS` times 32 columns of numbers of `BITS` bits, `STEPS` bytes of steps and `MINIMA` minima.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Planes<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> {
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

/// So many bits of every byte.
const fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

impl<const BITS: usize, const PARTS: usize, const STEPS: usize, const MINIMA: usize> Piece
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

    // No closures: the compiler does not give one the processor's vectors.
    #[inline(always)]
    fn numbers<'a>(&'a self, part: usize, room: &'a mut Bytes) -> Numbers<'a> {
        let [low, high] = widths(BITS);
        let (first, second) = self.numbers[part].split_at(low);
        for (j, bytes) in room.iter_mut().enumerate() {
            let (plane, shift) = (&first[j % low], low * (j / low));
            for row in 0..TILE {
                bytes[row] = plane[row] >> shift & mask(low);
            }
            if high > 0 {
                let (plane, shift) = (&second[j % high], high * (j / high));
                for row in 0..TILE {
                    bytes[row] |= (plane[row] >> shift & mask(high)) << low;
                }
            }
        }
        Numbers::Bytes(room)
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
        let [low, high] = widths(BITS);
        for (part, planes) in self.numbers.iter_mut().enumerate() {
            let numbers = block.numbers[part * COLUMNS..][..COLUMNS].as_chunks::<4>().0;
            for (j, four) in numbers.iter().enumerate() {
                let word = u32::from_le_bytes(*four);
                planes[j % low][row] |= (word & mask(low)) << (low * (j / low));
                if high > 0 {
                    planes[low + j % high][row] |= (word >> low & mask(high)) << (high * (j / high));
                }
            }
        }
        self.scales[row] = block.scale;
        let turned = if matches!(Self::TYPE, TensorType::Q2_K | TensorType::Q5_K) { 0x8000 } else { 0 };
        self.minima.iter_mut().for_each(|minima| minima[row] = block.minimum ^ turned);
        for (steps, step) in self.steps.iter_mut().zip(block.steps) {
            steps[row] = step;
        }
        Ok(())
    }
}
