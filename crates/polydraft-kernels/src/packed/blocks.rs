//! Chunks of 4- and 8-bit blocks: ggml's Q8_0, Q4_0, Q4_1, Q4_K, IQ4_NL and IQ4_XS.
//!
//! Each holds the same numbers as the file, rearranged: 32 rows interleaved, in words of four or
//! eight adjacent columns. Formats with other numbers of bits are in [`planes`](super::planes).

#![allow(unsafe_code)]

use polydraft_gguf::{TensorType, iq4_xs_sub_scales};

use super::block::{Block, COLUMNS, Factors, Numbers, decode_row, finite_f16, put_words};
use super::tiles::{Chunk, TILE};

/// Q8_0: signed bytes with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q8_0 {
    pub numbers: [[u32; TILE]; 8],
    pub scales: [u16; TILE],
}

/// Q4_0: numbers from −8 to 7 with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4_0 {
    pub numbers: [[u32; TILE]; 4],
    pub scales: [u16; TILE],
}

/// Q4_1: numbers from 0 to 15 with a scale and a minimum.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4_1 {
    pub numbers: [[u32; TILE]; 4],
    pub scales: [u16; TILE],
    pub minima: [u16; TILE],
}

/// Q4_K: eight sub-blocks of numbers from 0 to 15. Their scales and minima are 6-bit multiples of
/// the block's scale and minimum.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Q4K {
    pub numbers: [[[u32; TILE]; 4]; 8],
    pub sub_scales: [[u8; TILE]; 8],
    pub sub_minima: [[u8; TILE]; 8],
    pub scales: [u16; TILE],
    /// Negated: in the file, minima are subtracted.
    pub minima: [u16; TILE],
}

/// IQ4_NL: indices into a codebook, with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Iq4Nl {
    codes: [[u32; TILE]; 4],
    scales: [u16; TILE],
}

/// IQ4_XS: eight sub-blocks of indices into a codebook. Their scales are multiples from −32 to 31
/// of the block's scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Iq4Xs {
    codes: [[[u32; TILE]; 4]; 8],
    /// Multiples of the scale, stored with an offset of 32.
    sub_scales: [[u8; TILE]; 8],
    scales: [u16; TILE],
}

macro_rules! chunk {
    ($block:ident, $columns:expr, $zero:expr) => {
        // SAFETY: `repr(C)`, integer arrays only, no padding: every bit pattern is valid.
        unsafe impl Chunk for $block {
            const COLUMNS: usize = $columns;
            const ZERO: Self = $zero;

            fn get(&self, row: usize, out: &mut [f32]) {
                decode_row(self, row, out);
            }
        }
    };
}

chunk!(Q8_0, COLUMNS, Self { numbers: [[0; TILE]; 8], scales: [0; TILE] });
chunk!(Q4_0, COLUMNS, Self { numbers: [[0; TILE]; 4], scales: [0; TILE] });
chunk!(Q4_1, COLUMNS, Self { numbers: [[0; TILE]; 4], scales: [0; TILE], minima: [0; TILE] });
chunk!(
    Q4K,
    8 * COLUMNS,
    Self {
        numbers: [[[0; TILE]; 4]; 8],
        sub_scales: [[0; TILE]; 8],
        sub_minima: [[0; TILE]; 8],
        scales: [0; TILE],
        minima: [0; TILE]
    }
);

chunk!(Iq4Nl, COLUMNS, Self { codes: [[0; TILE]; 4], scales: [0; TILE] });
chunk!(
    Iq4Xs,
    8 * COLUMNS,
    Self { codes: [[[0; TILE]; 4]; 8], sub_scales: [[0; TILE]; 8], scales: [0; TILE] }
);

impl Block for Q8_0 {
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::Q8_0;

    #[inline(always)]
    fn numbers(&self, _sub_block: usize) -> Numbers<'_> {
        Numbers::Bits8(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        put_words(&mut self.numbers, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Q4_0 {
    const OFFSET: i32 = 8;
    const KIND: TensorType = TensorType::Q4_0;

    #[inline(always)]
    fn numbers(&self, _sub_block: usize) -> Numbers<'_> {
        Numbers::Bits4(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        put_words(&mut self.numbers, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Q4_1 {
    const OFFSET: i32 = 0;
    const KIND: TensorType = TensorType::Q4_1;

    #[inline(always)]
    fn numbers(&self, _sub_block: usize) -> Numbers<'_> {
        Numbers::Bits4(&self.numbers)
    }

    #[inline(always)]
    fn scales(&self, _sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    #[inline(always)]
    fn minima(&self, _sub_block: usize, _span: usize) -> Option<Factors<'_>> {
        Some(Factors::Plain(&self.minima))
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        self.minima[row] = finite_f16(&bytes[2..])?;
        put_words(&mut self.numbers, row, &bytes[4..]);
        Ok(())
    }
}

impl Block for Q4K {
    const SUB_BLOCKS: usize = 8;
    const OFFSET: i32 = 0;
    const KIND: TensorType = TensorType::Q4_K;

    #[inline(always)]
    fn numbers(&self, sub_block: usize) -> Numbers<'_> {
        Numbers::Bits4(&self.numbers[sub_block])
    }

    #[inline(always)]
    fn scales(&self, sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::TwoLevel(&self.scales, self.sub_scales[sub_block], 0)
    }

    #[inline(always)]
    fn minima(&self, sub_block: usize, _span: usize) -> Option<Factors<'_>> {
        Some(Factors::TwoLevel(&self.minima, self.sub_minima[sub_block], 0))
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        self.minima[row] = finite_f16(&bytes[2..])? ^ 0x8000;
        let (packed, numbers) = bytes[4..].split_at(12);
        for sub_block in 0..8 {
            // 6 bits each. The upper two bits of the last four sub-blocks are in the upper
            // bits of the first four.
            let (scale, minimum) = match sub_block {
                0..4 => (packed[sub_block] & 63, packed[sub_block + 4] & 63),
                _ => (
                    packed[sub_block + 4] & 15 | packed[sub_block - 4] >> 6 << 4,
                    packed[sub_block + 4] >> 4 | packed[sub_block] >> 6 << 4,
                ),
            };
            self.sub_scales[sub_block][row] = scale;
            self.sub_minima[sub_block][row] = minimum;
            // In the file, the low nibbles of 32 bytes are one sub-block, the high nibbles the
            // next.
            let halves = &numbers[sub_block / 2 * COLUMNS..][..COLUMNS];
            let number =
                |i: usize| if sub_block % 2 == 0 { halves[i] & 15 } else { halves[i] >> 4 };
            let bytes: [u8; 16] = std::array::from_fn(|i| number(i) | number(i + 16) << 4);
            put_words(&mut self.numbers[sub_block], row, &bytes);
        }
        Ok(())
    }
}

impl Block for Iq4Nl {
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::IQ4_NL;

    #[inline(always)]
    fn numbers(&self, _sub_block: usize) -> Numbers<'_> {
        Numbers::Codebook(&self.codes)
    }

    #[inline(always)]
    fn scales(&self, _sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        put_words(&mut self.codes, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Iq4Xs {
    const SUB_BLOCKS: usize = 8;
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::IQ4_XS;

    #[inline(always)]
    fn numbers(&self, sub_block: usize) -> Numbers<'_> {
        Numbers::Codebook(&self.codes[sub_block])
    }

    #[inline(always)]
    fn scales(&self, sub_block: usize, _span: usize) -> Factors<'_> {
        Factors::TwoLevel(&self.scales, self.sub_scales[sub_block], 32)
    }

    fn set_from_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = finite_f16(bytes)?;
        for (sub_block, sub_scale) in iq4_xs_sub_scales(bytes).into_iter().enumerate() {
            self.sub_scales[sub_block][row] = sub_scale;
            put_words(&mut self.codes[sub_block], row, &bytes[8 + 16 * sub_block..][..16]);
        }
        Ok(())
    }
}
