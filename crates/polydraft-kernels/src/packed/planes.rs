//! Chunks of blocks of 2, 3, 5 and 6 bits: ggml's Q5_0, Q5_1, Q2_K, Q3_K, Q5_K and Q6_K.
//!
//! Each holds the same numbers as the file, rearranged. The numbers of a sub-block are split into
//! planes of 4, 2 and 1 bits ([`BitPlanes`]), which a product combines in registers. Numbers can be
//! rounded to Q5_1 only.

#![allow(unsafe_code)]

use polydraft_gguf::{Integers, TensorType};

use super::block::{BitPlanes, Block, COLUMNS, Factors, Numbers, decode_row, mask};
use super::tiles::{Chunk, TILE};

/// A block of `SUB_BLOCKS` sub-blocks of numbers of `BITS` bits, with `SUB_SCALES` bytes of
/// multiples of the scale, and `MINIMA` minima.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Planes<
    const BITS: usize,
    const SUB_BLOCKS: usize,
    const SUB_SCALES: usize,
    const MINIMA: usize,
> {
    /// Bit planes, the lowest bits first.
    numbers: [[[u32; TILE]; BITS]; SUB_BLOCKS],
    /// Bytes of [`Integers::sub_scales`].
    sub_scales: [[u8; TILE]; SUB_SCALES],
    scales: [u16; TILE],
    /// Minima to add; negated for types whose files subtract them.
    minima: [[u16; TILE]; MINIMA],
}

pub(super) type Q5_0 = Planes<5, 1, 0, 0>;
pub(super) type Q5_1 = Planes<5, 1, 0, 1>;
pub(super) type Q2K = Planes<2, 8, 16, 1>;
pub(super) type Q3K = Planes<3, 8, 16, 0>;
pub(super) type Q5K = Planes<5, 8, 16, 1>;
pub(super) type Q6K = Planes<6, 8, 16, 0>;

impl Q5_1 {
    /// Stores a row's block, which must be zero.
    #[inline(always)]
    pub fn set(&mut self, row: usize, scale: u16, minimum: u16, numbers: &[u8; COLUMNS]) {
        (self.scales[row], self.minima[0][row]) = (scale, minimum);
        set_planes(&mut self.numbers[0], row, numbers);
    }
}

/// Properties of a format.
pub(super) trait PlaneFormat {
    const TYPE: TensorType;
    /// Number of spans of a sub-block, as in [`Block::SPANS`].
    const SPANS: usize;
    /// Offset of the multiples of `sub_scales`.
    const SUB_SCALE_OFFSET: u8 = 0;

    /// Returns the multiples of the scale for a span, if the format has two levels of scales.
    fn sub_scales(_bytes: &[[u8; TILE]], _sub_block: usize, _span: usize) -> Option<[u8; TILE]> {
        None
    }

    /// Returns the multiples of the minimum for a span, if the format has two levels of minima.
    fn sub_minima(_bytes: &[[u8; TILE]], _sub_block: usize, _span: usize) -> Option<[u8; TILE]> {
        None
    }
}

/// Applies a function to each byte.
#[inline(always)]
fn map_bytes(mut bytes: [u8; TILE], change: impl Fn(u8) -> u8) -> [u8; TILE] {
    for byte in &mut bytes {
        *byte = change(*byte);
    }
    bytes
}

impl PlaneFormat for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const SPANS: usize = 1;
}

impl PlaneFormat for Q5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const SPANS: usize = 1;
}

impl PlaneFormat for Q2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const SPANS: usize = 2;

    #[inline(always)]
    fn sub_scales(bytes: &[[u8; TILE]], sub_block: usize, span: usize) -> Option<[u8; TILE]> {
        Some(map_bytes(bytes[2 * sub_block + span], |byte| byte & 15))
    }

    #[inline(always)]
    fn sub_minima(bytes: &[[u8; TILE]], sub_block: usize, span: usize) -> Option<[u8; TILE]> {
        Some(map_bytes(bytes[2 * sub_block + span], |byte| byte >> 4))
    }
}

impl PlaneFormat for Q5K {
    const TYPE: TensorType = TensorType::Q5_K;
    const SPANS: usize = 1;

    #[inline(always)]
    fn sub_scales(bytes: &[[u8; TILE]], sub_block: usize, _span: usize) -> Option<[u8; TILE]> {
        Some(bytes[sub_block])
    }

    #[inline(always)]
    fn sub_minima(bytes: &[[u8; TILE]], sub_block: usize, _span: usize) -> Option<[u8; TILE]> {
        Some(bytes[8 + sub_block])
    }
}

/// Implements formats with a signed 8-bit multiple of the scale for every 16 columns.
macro_rules! signed {
    ($chunk:ty, $kind:ident) => {
        impl PlaneFormat for $chunk {
            const TYPE: TensorType = TensorType::$kind;
            const SPANS: usize = 2;
            const SUB_SCALE_OFFSET: u8 = 128;

            #[inline(always)]
            fn sub_scales(
                bytes: &[[u8; TILE]],
                sub_block: usize,
                span: usize,
            ) -> Option<[u8; TILE]> {
                Some(map_bytes(bytes[2 * sub_block + span], |byte| byte ^ 128))
            }
        }
    };
}
signed!(Q3K, Q3_K);
signed!(Q6K, Q6_K);

/// Returns the number of bits of the low and of the high plane.
const fn widths(bits: usize) -> [usize; 2] {
    let low = if bits < 4 { 2 } else { 4 };
    [low, bits - low]
}

/// Splits a row's numbers into planes. The row must be zero in them.
#[inline(always)]
fn set_planes<const BITS: usize>(
    planes: &mut [[u32; TILE]; BITS],
    row: usize,
    numbers: &[u8; COLUMNS],
) {
    let [low, high] = widths(BITS);
    for (j, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
        let word = u32::from_le_bytes(*four);
        planes[j % low][row] |= (word & mask(low)) << (low * (j / low));
        if high > 0 {
            planes[low + j % high][row] |= (word >> low & mask(high)) << (high * (j / high));
        }
    }
}

// SAFETY: `repr(C)`, integer arrays only, no padding for the types above: every bit pattern is
// valid.
unsafe impl<
    const BITS: usize,
    const SUB_BLOCKS: usize,
    const SUB_SCALES: usize,
    const MINIMA: usize,
> Chunk for Planes<BITS, SUB_BLOCKS, SUB_SCALES, MINIMA>
where
    Self: PlaneFormat,
{
    const COLUMNS: usize = SUB_BLOCKS * COLUMNS;
    const ZERO: Self = Self {
        numbers: [[[0; TILE]; BITS]; SUB_BLOCKS],
        sub_scales: [[0; TILE]; SUB_SCALES],
        scales: [0; TILE],
        minima: [[0; TILE]; MINIMA],
    };

    fn get(&self, row: usize, out: &mut [f32]) {
        decode_row(self, row, out);
    }
}

impl<const BITS: usize, const SUB_BLOCKS: usize, const SUB_SCALES: usize, const MINIMA: usize> Block
    for Planes<BITS, SUB_BLOCKS, SUB_SCALES, MINIMA>
where
    Self: PlaneFormat,
{
    const SUB_BLOCKS: usize = SUB_BLOCKS;
    const SPANS: usize = <Self as PlaneFormat>::SPANS;
    const OFFSET: i32 = Integers::offset(Self::TYPE);
    const MAX_NUMBER: u8 = (1 << BITS) - 1;
    const KIND: TensorType = Self::TYPE;

    #[inline(always)]
    fn numbers(&self, sub_block: usize) -> Numbers<'_> {
        Numbers::Planes(BitPlanes { words: &self.numbers[sub_block], widths: widths(BITS) })
    }

    #[inline(always)]
    fn scales(&self, sub_block: usize, span: usize) -> Factors<'_> {
        match <Self as PlaneFormat>::sub_scales(&self.sub_scales, sub_block, span) {
            Some(sub_scales) => Factors::TwoLevel(&self.scales, sub_scales, Self::SUB_SCALE_OFFSET),
            None => Factors::Plain(&self.scales),
        }
    }

    #[inline(always)]
    fn minima(&self, sub_block: usize, span: usize) -> Option<Factors<'_>> {
        let minima = self.minima.first()?;
        Some(match <Self as PlaneFormat>::sub_minima(&self.sub_scales, sub_block, span) {
            Some(sub_minima) => Factors::TwoLevel(minima, sub_minima, 0),
            None => Factors::Plain(minima),
        })
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        // Always a full block: `Tiles::from_file` splits the bytes into blocks.
        let Some(block) = Integers::new(Self::TYPE, bytes) else { return Ok(()) };
        for half in [block.scale, block.minimum] {
            let half = half::f16::from_bits(half);
            if !half.is_finite() {
                return Err(half.to_f32());
            }
        }
        for (planes, numbers) in self.numbers.iter_mut().zip(block.numbers.as_chunks().0) {
            set_planes(planes, row, numbers);
        }
        self.scales[row] = block.scale;
        let sign_flip =
            if matches!(Self::TYPE, TensorType::Q2_K | TensorType::Q5_K) { 0x8000 } else { 0 };
        self.minima.iter_mut().for_each(|minima| minima[row] = block.minimum ^ sign_flip);
        for (sub_scales, byte) in self.sub_scales.iter_mut().zip(block.sub_scales) {
            sub_scales[row] = byte;
        }
        Ok(())
    }
}
