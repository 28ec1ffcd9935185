//! What a block is: numbers of few bits that share a scale, and for some a minimum. A number is
//! `scale · q` or `scale · q + minimum`.

use polydraft_gguf::{IQ4_CODEBOOK, TensorType};

use super::tiles::{Piece, TILE};
use crate::halves::f16_to_f32;

/// Columns that share a scale; an input is rounded in blocks of as many.
pub(super) const COLUMNS: usize = 32;

/// The integers of 32 columns.
pub(super) enum Numbers<'a> {
    /// Word j of a row: columns 4j to 4j + 3, a signed byte each.
    Eight(&'a [[u32; TILE]; 8]),
    /// Word j of a row: columns 4j to 4j + 3 in the lower halves of its bytes, 16 columns on in the
    /// upper ones; 0 to 15.
    Four(&'a [[u32; TILE]; 4]),
    /// As before, places in [`IQ4_CODEBOOK`].
    Coded(&'a [[u32; TILE]; 4]),
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
    /// What is to be subtracted from a number as it is stored, for kernels that take it as an
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

impl Factors<'_> {
    /// Of one row.
    #[inline(always)]
    pub fn of(&self, row: usize) -> f32 {
        match self {
            Self::Plain(halves) => f16_to_f32(halves[row]),
            Self::Stepped(halves, steps, offset) => {
                f16_to_f32(halves[row]) * (f32::from(steps[row]) - f32::from(*offset))
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
            Self::Coded(words) => {
                let number = |place: u8| i32::from(IQ4_CODEBOOK[usize::from(place)]);
                let (low, high) = out.split_at_mut(COLUMNS / 2);
                for (j, words) in words.iter().enumerate() {
                    for (i, byte) in words[row].to_le_bytes().into_iter().enumerate() {
                        low[4 * j + i] = number(byte & 15);
                        high[4 * j + i] = number(byte >> 4);
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

/// Words of four bytes.
#[inline(always)]
pub(super) fn put<const N: usize>(words: &mut [[u32; TILE]; N], row: usize, bytes: &[u8]) {
    for (words, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        words[row] = u32::from_le_bytes(*bytes);
    }
}

/// A finite number of f16's from a file.
pub(super) fn half(bytes: &[u8]) -> Result<u16, f32> {
    let half = half::f16::from_le_bytes([bytes[0], bytes[1]]);
    if half.is_finite() { Ok(half.to_bits()) } else { Err(half.to_f32()) }
}
