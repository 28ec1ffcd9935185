//! Storage formats of matrices. [`with_format`] is the one table of their chunks and products.

use std::fmt;

use polydraft_gguf::TensorType;

use super::blocks::{Iq4Nl, Iq4Xs, Q4_0, Q4_1, Q4K, Q8_0};
use super::exact::{Bf16, F16, F32};
use super::planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
use super::tiles::{Chunk, TILE};

/// Storage format of a matrix, and the arithmetic of its products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 32 bits.
    F32,
    /// 16 bits with the exponent range of f32.
    Bf16,
    /// 16 bits.
    F16,
    /// 8 bits in blocks of 32 with a scale; products in f32.
    Q8_0F32,
    /// 8 bits in blocks of 32 with a scale. Products of this format and all below are computed in
    /// integers, with inputs rounded to 8 bits.
    Q8_0,
    /// 4 bits in blocks of 32 with a scale.
    Q4_0,
    /// 4 bits in blocks of 32 with a scale and a minimum.
    Q4_1,
    /// 4 bits in blocks of 256 with two levels of scales and minima.
    Q4K,
    /// 5 bits in blocks of 32 with a scale and a minimum.
    Q5_1,
    /// 5 bits in blocks of 32 with a scale. This format and all below are only loaded from files:
    /// numbers cannot be rounded to them.
    Q5_0,
    /// 2 bits in blocks of 256 with two levels of scales and minima.
    Q2K,
    /// 3 bits in blocks of 256 with two levels of scales.
    Q3K,
    /// 5 bits in blocks of 256 with two levels of scales and minima.
    Q5K,
    /// 6 bits in blocks of 256 with two levels of scales.
    Q6K,
    /// 4-bit indices into a codebook of 16 numbers, in blocks of 32 with a scale.
    Iq4Nl,
    /// 4-bit indices into the same codebook, in blocks of 256 with two levels of scales.
    Iq4Xs,
}

/// Calls the macro `$use` with the matrix type, the chunk type and the load function of a format.
macro_rules! with_format {
    ($format:expr, $use:ident) => {
        match $format {
            Format::F32 => $use!(Exact, F32, plain),
            Format::Bf16 => $use!(Exact, Bf16, plain),
            Format::F16 => $use!(Exact, F16, plain),
            Format::Q8_0F32 => $use!(Exact, Q8_0, rounded),
            Format::Q8_0 => $use!(Integer, Q8_0, rounded),
            Format::Q4_0 => $use!(Integer, Q4_0, rounded),
            Format::Q4_1 => $use!(Integer, Q4_1, rounded),
            Format::Q4K => $use!(Integer, Q4K, rounded),
            Format::Q5_1 => $use!(Integer, Q5_1, rounded),
            Format::Q5_0 => $use!(Integer, Q5_0, from_blocks),
            Format::Q2K => $use!(Integer, Q2K, from_blocks),
            Format::Q3K => $use!(Integer, Q3K, from_blocks),
            Format::Q5K => $use!(Integer, Q5K, from_blocks),
            Format::Q6K => $use!(Integer, Q6K, from_blocks),
            Format::Iq4Nl => $use!(Integer, Iq4Nl, from_blocks),
            Format::Iq4Xs => $use!(Integer, Iq4Xs, from_blocks),
        }
    };
}
pub(super) use with_format;

impl Format {
    /// Formats that arbitrary numbers can be rounded to.
    pub const ROUNDED: [Self; 9] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Q8_0F32,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_1,
        Self::Q4K,
    ];

    /// Returns the format that stores tensors of a type without loss; f32 for types without a
    /// format of their own.
    pub fn from_tensor_type(kind: TensorType) -> Self {
        match kind.memory_type() {
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::Bf16,
            TensorType::Q8_0 => Self::Q8_0,
            TensorType::Q4_0 => Self::Q4_0,
            TensorType::Q4_1 => Self::Q4_1,
            TensorType::Q4_K => Self::Q4K,
            TensorType::Q5_0 => Self::Q5_0,
            TensorType::Q5_1 => Self::Q5_1,
            TensorType::Q2_K => Self::Q2K,
            TensorType::Q3_K => Self::Q3K,
            TensorType::Q5_K => Self::Q5K,
            TensorType::Q6_K => Self::Q6K,
            TensorType::IQ4_NL => Self::Iq4Nl,
            TensorType::IQ4_XS => Self::Iq4Xs,
            _ => Self::F32,
        }
    }

    /// Returns the name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8_0F32 => "q8_0-f32",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q4K => "q4_k",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
        }
    }

    /// Whether the format is only loaded from files, because numbers cannot be rounded to it.
    pub(super) fn is_only_read(self) -> bool {
        !Self::ROUNDED.contains(&self)
    }

    /// Returns the number of columns of a block; a matrix must have a multiple of it.
    pub fn block_columns(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            _ => self.chunk_size().0,
        }
    }

    /// Returns the number of columns of a chunk, and its size in bytes.
    fn chunk_size(self) -> (usize, usize) {
        macro_rules! size {
            ($products:ident, $chunk:ident, $make:ident) => {
                (<$chunk as Chunk>::COLUMNS, size_of::<$chunk>())
            };
        }
        with_format!(self, size)
    }

    /// Returns the number of bytes of a matrix, with rows padded to full tiles.
    pub fn bytes(self, rows: usize, columns: usize) -> u64 {
        let (width, bytes) = self.chunk_size();
        let chunks = (rows.div_ceil(TILE) as u64).saturating_mul(columns.div_ceil(width) as u64);
        chunks.saturating_mul(bytes as u64)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}
