//! Kinds of blocks: numbers of few bits that share a scale, and for some a minimum.
//!
//! Here ggml's Q8_0, Q4_0, Q4_1 and Q4_K to the bit, laid out anew: thirty-two rows side by side,
//! words of four or eight neighbouring columns; those of other bits are in
//! [`planes`](super::planes). A number is `scale · q` or `scale · q + minimum`.

#![allow(unsafe_code)]

use polydraft_gguf::TensorType;

use super::quantise;
use super::tiles::{Piece, TILE};

/// Columns that share a scale; an input is rounded in blocks of as many.
pub(super) const COLUMNS: usize = 32;

/// The integers of 32 columns.
pub(super) enum Numbers<'a> {
    /// Word j of a row: columns 4j to 4j + 3, a signed byte each.
    Eight(&'a [[u32; TILE]; 8]),
    /// Word j of a row: columns 4j to 4j + 3 in the lower halves of its bytes, 16 columns on in the
    /// upper ones; 0 to 15.
    Four(&'a [[u32; TILE]; 4]),
    /// Of 2 to 6 bits, in planes.
    Cut(Cut<'a>),
}

/// Numbers cut into planes of bits, the lowest bits first.
pub(super) struct Cut<'a> {
    /// A plane of b bits has b words a row: word j mod b, shifted right by b · (j div b), holds
    /// columns 4j to 4j + 3, one a byte.
    pub words: &'a [[u32; TILE]],
    /// Bits of the two planes; of the second there may be none.
    pub widths: [usize; 2],
}

/// Some bits of every byte of some words.
pub(super) struct Bits<'a> {
    pub words: &'a [u32; TILE],
    /// How far to the right they are to be shifted; to the left, if negative.
    pub shift: i32,
    /// What is then to be kept.
    pub mask: u32,
}

/// So many bits of every byte.
pub(super) const fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

impl Bits<'_> {
    /// Of one row.
    fn of(&self, row: usize) -> u32 {
        let words = self.words[row];
        self.mask & if self.shift < 0 { words << -self.shift } else { words >> self.shift }
    }
}

impl<'a> Cut<'a> {
    /// What columns 4j to 4j + 3 are put together of: the lower bits, and the upper ones if there
    /// are any.
    #[inline(always)]
    pub fn bits(&self, j: usize) -> (Bits<'a>, Option<Bits<'a>>) {
        let [low, high] = self.widths;
        let first =
            Bits { words: &self.words[j % low], shift: (low * (j / low)) as i32, mask: mask(low) };
        if high == 0 {
            return (first, None);
        }
        let shift = (high * (j / high)) as i32 - low as i32;
        (first, Some(Bits { words: &self.words[low + j % high], shift, mask: mask(high) << low }))
    }
}

/// What every row's numbers, or its minimum, are multiplied with.
pub(super) enum Factors<'a> {
    /// In f16.
    Plain(&'a [u16; TILE]),
    /// In f16, times an integer less an offset.
    Stepped(&'a [u16; TILE], [u8; TILE], u8),
}

/// A piece that products in integers take.
pub(super) trait Block: Piece {
    /// Parts of 32 columns.
    const PARTS: usize = 1;
    /// A part has a scale and a minimum for all its columns, or two for 16 each.
    const SPANS: usize = 1;
    /// What is to be subtracted from a number as it is held, for kernels that take it as an
    /// unsigned byte.
    const OFFSET: i32;
    /// The largest number, of [`Numbers::Cut`].
    const MOST: u8 = 1;
    /// What ggml calls it.
    const KIND: TensorType;

    fn numbers(&self, part: usize) -> Numbers<'_>;
    fn scales(&self, part: usize, span: usize) -> Factors<'_>;
    fn minima(&self, _part: usize, _span: usize) -> Option<Factors<'_>> {
        None
    }

    /// Puts a row's block in its place, from its bytes in a ggml file.
    ///
    /// # Errors
    /// A scale or minimum that is not finite, as it was read.
    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32>;
}

/// Signed bytes with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q8_0 {
    pub numbers: [[u32; TILE]; 8],
    pub scales: [u16; TILE],
}

/// −8 to 7 with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4_0 {
    pub numbers: [[u32; TILE]; 4],
    pub scales: [u16; TILE],
}

/// 0 to 15 with a scale and a minimum.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4_1 {
    pub numbers: [[u32; TILE]; 4],
    pub scales: [u16; TILE],
    pub minima: [u16; TILE],
}

/// Eight times 0 to 15, scales and minima as integers of 6 bits times one scale each.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4K {
    pub numbers: [[[u32; TILE]; 4]; 8],
    pub scale_steps: [[u8; TILE]; 8],
    pub minimum_steps: [[u8; TILE]; 8],
    pub scales: [u16; TILE],
    /// Their signs turned: in the file, minima are subtracted.
    pub minima: [u16; TILE],
}

/// A half that is finite.
#[inline(always)]
pub(crate) fn widened(half: u16) -> f32 {
    /// What the exponents differ by.
    const BIAS: u32 = (127 - 15) << 23;
    /// The smallest normal half, 2^-14.
    const LEAST: u32 = (127 - 14) << 23;
    let bits = u32::from(half & 0x7fff) << 13;
    // Below the normal ones: the number's bits behind those of 2^-14, less 2^-14.
    let small = f32::from_bits(bits + LEAST) - f32::from_bits(LEAST);
    let normal = f32::from_bits(bits + BIAS);
    let size = if half & 0x7c00 == 0 { small } else { normal };
    f32::from_bits(size.to_bits() | u32::from(half & 0x8000) << 16)
}

impl Factors<'_> {
    /// Of one row.
    #[inline(always)]
    pub fn of(&self, row: usize) -> f32 {
        match self {
            Self::Plain(halves) => widened(halves[row]),
            Self::Stepped(halves, steps, offset) => {
                widened(halves[row]) * (f32::from(steps[row]) - f32::from(*offset))
            }
        }
    }
}

impl Numbers<'_> {
    /// One row's, with what is to be subtracted from those of 4 bits.
    #[inline(always)]
    pub fn of(&self, row: usize, offset: i32) -> [i32; COLUMNS] {
        let mut out = [0; COLUMNS];
        match self {
            Self::Eight(words) => {
                for (words, out) in words.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = words[row].to_le_bytes().map(|b| i32::from(b as i8));
                }
            }
            Self::Four(words) => {
                let (low, high) = out.split_at_mut(COLUMNS / 2);
                for (j, words) in words.iter().enumerate() {
                    for (i, byte) in words[row].to_le_bytes().into_iter().enumerate() {
                        low[4 * j + i] = i32::from(byte & 15) - offset;
                        high[4 * j + i] = i32::from(byte >> 4) - offset;
                    }
                }
            }
            Self::Cut(cut) => {
                for (j, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let (low, high) = cut.bits(j);
                    let word = low.of(row) | high.map_or(0, |bits| bits.of(row));
                    *out = word.to_le_bytes().map(|b| i32::from(b) - offset);
                }
            }
        }
        out
    }
}

/// A row of a block in f32.
pub(super) fn values<B: Block>(block: &B, row: usize, values: &mut [f32]) {
    for (part, values) in values.chunks_exact_mut(COLUMNS).enumerate() {
        let numbers = block.numbers(part).of(row, B::OFFSET);
        let spans = values.chunks_exact_mut(COLUMNS / B::SPANS);
        for (span, (values, numbers)) in
            spans.zip(numbers.chunks_exact(COLUMNS / B::SPANS)).enumerate()
        {
            let scale = block.scales(part, span).of(row);
            let minimum = block.minima(part, span).map(|m| m.of(row));
            for (value, q) in values.iter_mut().zip(numbers) {
                let exact = scale * *q as f32;
                *value = minimum.map_or(exact, |minimum| exact + minimum);
            }
        }
    }
}

/// Blocks of these columns that numbers can be rounded to.
macro_rules! fill {
    ($block:ident, $quantise:path) => {
        impl $crate::packed::tiles::Fill for $block {
            type Value = f32;

            fn read<E>(
                rows: &impl $crate::packed::tiles::Read<E>,
                first: usize,
                values: &mut [f32],
            ) -> Result<(), E> {
                rows.f32(first, values)
            }

            #[inline(always)]
            fn set(&mut self, row: usize, values: &[f32], weights: Option<&[f32]>) {
                // Always whole: `Packed::load` asks for columns that are.
                if let Some(block) = values.first_chunk() {
                    $quantise(self, row, block, weights.and_then(|weights| weights.first_chunk()));
                }
            }
        }
    };
}
pub(super) use fill;

macro_rules! piece {
    ($block:ident, $columns:expr, $quantise:path, $zero:expr) => {
        // SAFETY: arrays of whole numbers, which together are as long as it is.
        unsafe impl Piece for $block {
            const COLUMNS: usize = $columns;
            const ZERO: Self = $zero;

            fn get(&self, row: usize, out: &mut [f32]) {
                values(self, row, out);
            }
        }

        fill!($block, $quantise);
    };
}

piece!(Q8_0, COLUMNS, quantise::q8_0, Self { numbers: [[0; TILE]; 8], scales: [0; TILE] });
piece!(Q4_0, COLUMNS, quantise::q4_0, Self { numbers: [[0; TILE]; 4], scales: [0; TILE] });
piece!(
    Q4_1,
    COLUMNS,
    quantise::q4_1,
    Self { numbers: [[0; TILE]; 4], scales: [0; TILE], minima: [0; TILE] }
);
piece!(
    Q4K,
    8 * COLUMNS,
    quantise::q4_k,
    Self {
        numbers: [[[0; TILE]; 4]; 8],
        scale_steps: [[0; TILE]; 8],
        minimum_steps: [[0; TILE]; 8],
        scales: [0; TILE],
        minima: [0; TILE]
    }
);

/// Words of four bytes.
#[inline(always)]
pub(super) fn put<const N: usize>(words: &mut [[u32; TILE]; N], row: usize, bytes: &[u8]) {
    for (words, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        words[row] = u32::from_le_bytes(*bytes);
    }
}

/// A finite number of f16's from a file.
fn half(bytes: &[u8]) -> Result<u16, f32> {
    let half = half::f16::from_le_bytes([bytes[0], bytes[1]]);
    if half.is_finite() { Ok(half.to_bits()) } else { Err(half.to_f32()) }
}

impl Block for Q8_0 {
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::Q8_0;

    #[inline(always)]
    fn numbers(&self, _part: usize) -> Numbers<'_> {
        Numbers::Eight(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _part: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        put(&mut self.numbers, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Q4_0 {
    const OFFSET: i32 = 8;
    const KIND: TensorType = TensorType::Q4_0;

    #[inline(always)]
    fn numbers(&self, _part: usize) -> Numbers<'_> {
        Numbers::Four(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _part: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        put(&mut self.numbers, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Q4_1 {
    const OFFSET: i32 = 0;
    const KIND: TensorType = TensorType::Q4_1;

    #[inline(always)]
    fn numbers(&self, _part: usize) -> Numbers<'_> {
        Numbers::Four(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _part: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    #[inline(always)]
    fn minima(&self, _part: usize, _span: usize) -> Option<Factors<'_>> {
        Some(Factors::Plain(&self.minima))
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        self.minima[row] = half(&bytes[2..])?;
        put(&mut self.numbers, row, &bytes[4..]);
        Ok(())
    }
}

impl Block for Q4K {
    const PARTS: usize = 8;
    const OFFSET: i32 = 0;
    const KIND: TensorType = TensorType::Q4_K;

    #[inline(always)]
    fn numbers(&self, part: usize) -> Numbers<'_> {
        Numbers::Four(&self.numbers[part])
    }

    #[inline(always)]
    fn scales(&self, part: usize, _span: usize) -> Factors<'_> {
        Factors::Stepped(&self.scales, self.scale_steps[part], 0)
    }

    #[inline(always)]
    fn minima(&self, part: usize, _span: usize) -> Option<Factors<'_>> {
        Some(Factors::Stepped(&self.minima, self.minimum_steps[part], 0))
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        self.minima[row] = half(&bytes[2..])? ^ 0x8000;
        let (packed, numbers) = bytes[4..].split_at(12);
        for part in 0..8 {
            // 6 bits each: of the first four parts whole, of the others the upper two bits lie
            // above the first ones'.
            let (scale, minimum) = match part {
                0..4 => (packed[part] & 63, packed[part + 4] & 63),
                _ => (
                    packed[part + 4] & 15 | packed[part - 4] >> 6 << 4,
                    packed[part + 4] >> 4 | packed[part] >> 6 << 4,
                ),
            };
            self.scale_steps[part][row] = scale;
            self.minimum_steps[part][row] = minimum;
            // In the file the lower halves of 32 bytes are one part, the upper halves the next.
            let halves = &numbers[part / 2 * COLUMNS..][..COLUMNS];
            let number = |i: usize| if part % 2 == 0 { halves[i] & 15 } else { halves[i] >> 4 };
            let bytes: [u8; 16] = std::array::from_fn(|i| number(i) | number(i + 16) << 4);
            put(&mut self.numbers[part], row, &bytes);
        }
        Ok(())
    }
}
