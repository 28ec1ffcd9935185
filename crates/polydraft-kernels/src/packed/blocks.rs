//! Blocks of 4 and 8 bits.
//!
//! They are ggml's Q8_0, Q4_0, Q4_1, Q4_K, IQ4_NL and IQ4_XS to the bit, laid out anew: thirty-two
//! rows side by side, words of four or eight neighbouring columns; those of other bits are in
//! [`planes`](super::planes).

#![allow(unsafe_code)]

use polydraft_gguf::{TensorType, iq4_xs_steps};

use super::block::{Block, COLUMNS, Factors, Numbers, half, put, values};
use super::tiles::{Piece, TILE};

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

/// Numbers of a table by their places, with a scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Iq4Nl {
    places: [[u32; TILE]; 4],
    scales: [u16; TILE],
}

/// Eight times the same, scales as integers from −32 to 31 times one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Iq4Xs {
    places: [[[u32; TILE]; 4]; 8],
    /// 32 more than what is meant.
    steps: [[u8; TILE]; 8],
    scales: [u16; TILE],
}

macro_rules! piece {
    ($block:ident, $columns:expr, $zero:expr) => {
        // SAFETY: arrays of whole numbers, which together are as long as it is.
        unsafe impl Piece for $block {
            const COLUMNS: usize = $columns;
            const ZERO: Self = $zero;

            fn get(&self, row: usize, out: &mut [f32]) {
                values(self, row, out);
            }
        }
    };
}

piece!(Q8_0, COLUMNS, Self { numbers: [[0; TILE]; 8], scales: [0; TILE] });
piece!(Q4_0, COLUMNS, Self { numbers: [[0; TILE]; 4], scales: [0; TILE] });
piece!(Q4_1, COLUMNS, Self { numbers: [[0; TILE]; 4], scales: [0; TILE], minima: [0; TILE] });
piece!(
    Q4K,
    8 * COLUMNS,
    Self {
        numbers: [[[0; TILE]; 4]; 8],
        scale_steps: [[0; TILE]; 8],
        minimum_steps: [[0; TILE]; 8],
        scales: [0; TILE],
        minima: [0; TILE]
    }
);

piece!(Iq4Nl, COLUMNS, Self { places: [[0; TILE]; 4], scales: [0; TILE] });
piece!(
    Iq4Xs,
    8 * COLUMNS,
    Self { places: [[[0; TILE]; 4]; 8], steps: [[0; TILE]; 8], scales: [0; TILE] }
);

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

impl Block for Iq4Nl {
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::IQ4_NL;

    #[inline(always)]
    fn numbers(&self, _part: usize) -> Numbers<'_> {
        Numbers::Coded(&self.places)
    }

    #[inline(always)]
    fn scales(&self, _part: usize, _span: usize) -> Factors<'_> {
        Factors::Plain(&self.scales)
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        put(&mut self.places, row, &bytes[2..]);
        Ok(())
    }
}

impl Block for Iq4Xs {
    const PARTS: usize = 8;
    const OFFSET: i32 = 128;
    const KIND: TensorType = TensorType::IQ4_XS;

    #[inline(always)]
    fn numbers(&self, part: usize) -> Numbers<'_> {
        Numbers::Coded(&self.places[part])
    }

    #[inline(always)]
    fn scales(&self, part: usize, _span: usize) -> Factors<'_> {
        Factors::Stepped(&self.scales, self.steps[part], 32)
    }

    fn set_file(&mut self, row: usize, bytes: &[u8]) -> Result<(), f32> {
        self.scales[row] = half(bytes)?;
        for (part, step) in iq4_xs_steps(bytes).into_iter().enumerate() {
            self.steps[part][row] = step;
            put(&mut self.places[part], row, &bytes[8 + 16 * part..][..16]);
        }
        Ok(())
    }
}
