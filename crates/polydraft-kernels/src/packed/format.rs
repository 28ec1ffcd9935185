//! The formats that matrices are stored in: the one table that says what each is made of.

use std::fmt;

use polydraft_gguf::TensorType;

use super::blocks::{Iq4Nl, Iq4Xs, Q4_0, Q4_1, Q4K, Q8_0};
use super::exact::{Bf16, F16, F32};
use super::planes::{Q2K, Q3K, Q5_0, Q5_1, Q5K, Q6K};
use super::tiles::{Piece, TILE};

/// How a matrix is stored, and multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 32 bits.
    F32,
    /// 16 bits with the range of 32.
    Bf16,
    /// 16 bits.
    F16,
    /// 8 bits in blocks of 32 with a scale; products in f32.
    Q8_0F32,
    /// The same blocks; products of these and all below in integers, with inputs rounded to 8 bits.
    Q8_0,
    /// 4 bits in blocks of 32 with a scale.
    Q4_0,
    /// 4 bits in blocks of 32 with a scale and a minimum.
    Q4_1,
    /// 4 bits in blocks of 256 with two levels of scales and minima.
    Q4K,
    /// 5 bits in blocks of 32 with a scale and a minimum.
    Q5_1,
    /// 5 bits in blocks of 32 with a scale. This one and all below are stored as a file has them:
    /// nothing is rounded to these.
    Q5_0,
    /// 2 bits in blocks of 256 with two levels of scales and minima.
    Q2K,
    /// 3 bits in blocks of 256 with two levels of scales.
    Q3K,
    /// 5 bits in blocks of 256 with two levels of scales and minima.
    Q5K,
    /// 6 bits in blocks of 256 with two levels of scales.
    Q6K,
    /// Places in a table of 16 numbers, in blocks of 32 with a scale.
    Iq4Nl,
    /// The same in blocks of 256 with two levels of scales.
    Iq4Xs,
}

/// Calls the macro `$use` with what a format is made of: which products it has, of which pieces,
/// and the function that makes its tiles of rows.
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
            Format::Q5_0 => $use!(Integer, Q5_0, filed),
            Format::Q2K => $use!(Integer, Q2K, filed),
            Format::Q3K => $use!(Integer, Q3K, filed),
            Format::Q5K => $use!(Integer, Q5K, filed),
            Format::Q6K => $use!(Integer, Q6K, filed),
            Format::Iq4Nl => $use!(Integer, Iq4Nl, filed),
            Format::Iq4Xs => $use!(Integer, Iq4Xs, filed),
        }
    };
}
pub(super) use with_format;

impl Format {
    /// The formats that any numbers can be rounded to.
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

    /// The format that a block of a file is stored in without loss; f32 for types that have no
    /// blocks here.
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

    /// Its usual name, in small letters.
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

    /// Whether numbers are only read from files in it, and none is rounded to it.
    pub(super) fn is_only_read(self) -> bool {
        !Self::ROUNDED.contains(&self)
    }

    /// Columns must be a multiple of this.
    pub fn block_columns(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            _ => self.piece().0,
        }
    }

    /// Columns of a piece of a tile, and its bytes.
    fn piece(self) -> (usize, usize) {
        macro_rules! size {
            ($products:ident, $piece:ident, $make:ident) => {
                (<$piece as Piece>::COLUMNS, size_of::<$piece>())
            };
        }
        with_format!(self, size)
    }

    /// Bytes that so many rows take: tiles are whole.
    pub fn bytes(self, rows: usize, columns: usize) -> u64 {
        let (width, bytes) = self.piece();
        let pieces = (rows.div_ceil(TILE) as u64).saturating_mul(columns.div_ceil(width) as u64);
        pieces.saturating_mul(bytes as u64)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}
