//! Weight types: floating point or quantised.

use std::fmt;
use std::str::FromStr;

use polydraft_kernels::Format;

/// The type that weight matrices are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits: the model as published, in the plainest form.
    #[default]
    F32,
    /// IEEE half precision. Weights are widened when they are read, and all arithmetic is in f32: a
    /// model published in f16 gives the same output as with `F32`, in half the memory.
    F16,
    /// bfloat16; otherwise as `F16`.
    Bf16,
    /// 8 bits in blocks of 32 with a scale. The output then has the distribution of the quantised
    /// model, whose matrix products round their inputs to 8 bits in blocks of 32 too.
    Q8_0,
    /// The weights of `Q8_0`, with inputs and products in f32. Slower for several tokens.
    Q8_0F32,
    /// 4 bits in blocks of 32 with a scale; inputs rounded as for `Q8_0`.
    Q4_0,
    /// 4 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q4_1,
    /// 5 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q5_1,
    /// 4 bits in blocks of 256 with two levels of scales and minima; inputs rounded as for `Q8_0`.
    /// Matrices whose rows are not a multiple of 256 long are stored in `Q8_0`. Slow to load:
    /// scales are searched for.
    Q4K,
    /// Each matrix in the type of its file, in about the same number of bytes: no weight is
    /// rounded. For matrices in blocks of integers inputs are rounded as for `Q8_0`.
    File,
}

/// How the computation uses a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatrixUse {
    /// Matrix products.
    Product,
    /// Lookup of single rows. Not quantised.
    RowLookup,
    /// Lookup of single rows in a table that can be larger than the rest of the model. Stored in
    /// the type of the file, where the model is quantised.
    LargeTable,
}

impl Precision {
    /// All weight types.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q8_0F32,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_1,
        Self::Q4K,
        Self::File,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q8_0F32 => "q8_0-f32",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_k",
            Self::File => "file",
        }
    }

    /// Whether weights are rounded to blocks of integers.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::File)
    }

    /// Types for a quantised self-draft, most accurate first; the first one that is small enough is
    /// used. With searched scales, drafts of small models in `Q5_1` and `Q4_1` have acceptance
    /// rates of 0.9 and 0.8.
    pub(crate) const SELF_DRAFT_TYPES: [Self; 3] = [Self::Q5_1, Self::Q4_1, Self::Q4_0];

    /// Whether scales are searched for when the weights of errors are known.
    pub(crate) fn searches_scales(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q5_1 | Self::Q4K)
    }

    /// Type of a matrix with this use in a model of this type: row lookups are never quantised.
    pub(crate) fn for_use(self, matrix_use: MatrixUse) -> Self {
        match matrix_use {
            MatrixUse::RowLookup if self.is_quantised() => Self::F32,
            MatrixUse::LargeTable if self.is_quantised() => Self::File,
            _ => self,
        }
    }

    /// Kernel format of a matrix of this type.
    pub(crate) fn format(self) -> Format {
        match self {
            // `File` has no format of its own: callers take the exact format of each matrix.
            Self::F32 | Self::File => Format::F32,
            Self::F16 => Format::F16,
            Self::Bf16 => Format::Bf16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q8_0F32 => Format::Q8_0F32,
            Self::Q4_0 => Format::Q4_0,
            Self::Q4_1 => Format::Q4_1,
            Self::Q5_1 => Format::Q5_1,
            Self::Q4K => Format::Q4K,
        }
    }

    /// Type for a matrix with `columns` columns: this one, or one whose blocks divide `columns`.
    pub(crate) fn fitting(self, columns: usize) -> Self {
        [self, Self::Q8_0]
            .into_iter()
            .find(|p| columns.is_multiple_of(p.format().block_columns()))
            .unwrap_or(Self::F32)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|p| p.name()).collect();
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| format!("expected one of {}, got {name:?}", names.join(", ")))
    }
}
