//! Quantized blocks: integers q of few bits that share a scale, and in some formats a minimum. The
//! number is `scale · q` or `scale · q + minimum`.
//!
//! A block has one sub-block of 32 columns, or eight with a two-level scale: the scale of a
//! sub-block is an integer multiple of the block's. A sub-block has one span of 32 columns that
//! share a scale, or two of 16.

use polydraft_gguf::{IQ4_CODEBOOK, TensorType};

use super::tiles::{Chunk, TILE};
use crate::halves::f16_to_f32;

/// Number of columns of a sub-block, and of a block of rounded inputs.
pub(super) const COLUMNS: usize = 32;

/// Integers of a sub-block, for all rows of a tile. A word holds one byte per column.
pub(super) enum Numbers<'a> {
    /// Signed bytes: word j of a row holds columns 4j to 4j + 3.
    Bits8(&'a [[u32; TILE]; 8]),
    /// Numbers from 0 to 15: word j of a row holds columns 4j to 4j + 3 in the low nibbles of its
    /// bytes, and columns 4j + 16 to 4j + 19 in the high nibbles.
    Bits4(&'a [[u32; TILE]; 4]),
    /// Indices into [`IQ4_CODEBOOK`], in the layout of `Bits4`.
    Codebook(&'a [[u32; TILE]; 4]),
    /// Numbers of 2, 3, 5 or 6 bits, in bit planes.
    Planes(BitPlanes<'a>),
}

/// Numbers that are split into a plane of their low bits and a plane of their high bits.
pub(super) struct BitPlanes<'a> {
    /// Words of the low plane, then of the high plane. A plane of b bits has b words per row: word
    /// j mod b, shifted right by b · (j div b), holds columns 4j to 4j + 3, one per byte.
    pub words: &'a [[u32; TILE]],
    /// Number of bits of each plane; 0 for a missing high plane.
    pub widths: [usize; 2],
}

/// The bits of four columns in a plane.
pub(super) struct PlaneBits<'a> {
    pub words: &'a [u32; TILE],
    /// Right shift that moves the bits into place; a left shift if negative.
    pub shift: i32,
    /// Mask of the bits after the shift.
    pub mask: u32,
}

/// Returns a mask of the lowest `bits` bits of every byte.
pub(super) const fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

impl PlaneBits<'_> {
    /// Returns the bits of one row.
    fn get(&self, row: usize) -> u32 {
        let words = self.words[row];
        self.mask & if self.shift < 0 { words << -self.shift } else { words >> self.shift }
    }
}

impl<'a> BitPlanes<'a> {
    /// Returns the low bits of columns 4j to 4j + 3, and the high bits if there is a high plane.
    /// The columns are the bitwise or of both.
    #[inline(always)]
    pub fn bits(&self, j: usize) -> (PlaneBits<'a>, Option<PlaneBits<'a>>) {
        let [low, high] = self.widths;
        let first = PlaneBits {
            words: &self.words[j % low],
            shift: (low * (j / low)) as i32,
            mask: mask(low),
        };
        if high == 0 {
            return (first, None);
        }
        let shift = (high * (j / high)) as i32 - low as i32;
        (
            first,
            Some(PlaneBits { words: &self.words[low + j % high], shift, mask: mask(high) << low }),
        )
    }
}

/// Scales or minima of all rows of a tile.
pub(super) enum Factors<'a> {
    /// Numbers in f16.
    Plain(&'a [u16; TILE]),
    /// Numbers in f16, each multiplied by (integer − offset).
    TwoLevel(&'a [u16; TILE], [u8; TILE], u8),
}

/// A chunk of quantized blocks, one per row, for products in integers.
pub(super) trait Block: Chunk {
    /// Number of sub-blocks of 32 columns.
    const SUB_BLOCKS: usize = 1;
    /// Number of spans of a sub-block: 1 with 32 columns, or 2 with 16 columns each.
    const SPANS: usize = 1;
    /// Offset of a number that a kernel loads as an unsigned byte: the byte is number + offset.
    const OFFSET: i32;
    /// Largest stored number of [`Numbers::Planes`].
    const MAX_NUMBER: u8 = 1;
    /// Block type in ggml files.
    const KIND: TensorType;

    /// Returns the integers of a sub-block.
    fn numbers(&self, sub_block: usize) -> Numbers<'_>;
    /// Returns the scales of a span.
    fn scales(&self, sub_block: usize, span: usize) -> Factors<'_>;
    /// Returns the minima of a span, if the format has minima.
    fn minima(&self, _sub_block: usize, _span: usize) -> Option<Factors<'_>> {
        None
    }

    /// Stores a row's block, given its bytes in a ggml file.
    ///
    /// # Errors
    /// A scale or minimum that is not finite; its value is returned.
    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32>;
}

impl Factors<'_> {
    /// Returns the factor of one row.
    #[inline(always)]
    pub fn get(&self, row: usize) -> f32 {
        match self {
            Self::Plain(halves) => f16_to_f32(halves[row]),
            Self::TwoLevel(halves, steps, offset) => {
                f16_to_f32(halves[row]) * (f32::from(steps[row]) - f32::from(*offset))
            }
        }
    }
}

impl Numbers<'_> {
    /// Returns the integers of one row. `offset` is subtracted from unsigned numbers.
    #[inline(always)]
    pub fn get(&self, row: usize, offset: i32) -> [i32; COLUMNS] {
        let mut out = [0; COLUMNS];
        match self {
            Self::Bits8(words) => {
                for (words, out) in words.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = words[row].to_le_bytes().map(|b| i32::from(b as i8));
                }
            }
            Self::Bits4(words) => {
                let (low, high) = out.split_at_mut(COLUMNS / 2);
                for (j, words) in words.iter().enumerate() {
                    for (i, byte) in words[row].to_le_bytes().into_iter().enumerate() {
                        low[4 * j + i] = i32::from(byte & 15) - offset;
                        high[4 * j + i] = i32::from(byte >> 4) - offset;
                    }
                }
            }
            Self::Codebook(words) => {
                let number = |code: u8| i32::from(IQ4_CODEBOOK[usize::from(code)]);
                let (low, high) = out.split_at_mut(COLUMNS / 2);
                for (j, words) in words.iter().enumerate() {
                    for (i, byte) in words[row].to_le_bytes().into_iter().enumerate() {
                        low[4 * j + i] = number(byte & 15);
                        high[4 * j + i] = number(byte >> 4);
                    }
                }
            }
            Self::Planes(planes) => {
                for (j, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let (low, high) = planes.bits(j);
                    let word = low.get(row) | high.map_or(0, |bits| bits.get(row));
                    *out = word.to_le_bytes().map(|b| i32::from(b) - offset);
                }
            }
        }
        out
    }
}

/// Writes a row of a block to `values` in f32.
pub(super) fn decode_row<B: Block>(block: &B, row: usize, values: &mut [f32]) {
    for (sub_block, values) in values.chunks_exact_mut(COLUMNS).enumerate() {
        let numbers = block.numbers(sub_block).get(row, B::OFFSET);
        let spans = values.chunks_exact_mut(COLUMNS / B::SPANS);
        for (span, (values, numbers)) in
            spans.zip(numbers.chunks_exact(COLUMNS / B::SPANS)).enumerate()
        {
            let scale = block.scales(sub_block, span).get(row);
            let minimum = block.minima(sub_block, span).map(|m| m.get(row));
            for (value, q) in values.iter_mut().zip(numbers) {
                let exact = scale * *q as f32;
                *value = minimum.map_or(exact, |minimum| exact + minimum);
            }
        }
    }
}

/// Stores the bytes of a row in words of four.
#[inline(always)]
pub(super) fn put_words<const N: usize>(words: &mut [[u32; TILE]; N], row: usize, bytes: &[u8]) {
    for (words, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        words[row] = u32::from_le_bytes(*bytes);
    }
}

/// Reads an f16 from a file; the error is its value if it is not finite.
pub(super) fn finite_f16(bytes: &[u8]) -> Result<u16, f32> {
    let half = half::f16::from_le_bytes([bytes[0], bytes[1]]);
    if half.is_finite() { Ok(half.to_bits()) } else { Err(half.to_f32()) }
}
