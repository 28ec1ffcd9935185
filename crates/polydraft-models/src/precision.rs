//! Weight types: in full or in fewer bits.

use std::fmt;
use std::str::FromStr;

use polydraft_kernels::Format;

/// The type that weight matrices are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits: the model as published, in the plainest form.
    #[default]
    F32,
    /// 16 bits. They are widened as they are read, and all arithmetic is in 32 bits: a model
    /// published in f16 gives what `F32` gives, in half the memory.
    F16,
    /// 16 bits with the range of 32; otherwise as `F16`.
    Bf16,
    /// 8 bits in blocks of 32 with a scale. What is sampled exactly is then another model: the
    /// quantised one, whose products take their inputs rounded to 8 bits in blocks of 32 with a
    /// scale too.
    Q8_0,
    /// The weights of `Q8_0`, with products in f32: the model sampled is the quantised one, its
    /// inputs as they are. Slower for several tokens.
    Q8_0F32,
    /// 4 bits in blocks of 32 with a scale; inputs rounded as for `Q8_0`.
    Q4_0,
    /// 4 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q4_1,
    /// 5 bits in blocks of 32 with a scale and a minimum; inputs rounded as for `Q8_0`.
    Q5_1,
    /// 4 bits in blocks of 256 with two levels of scales and minima; inputs rounded as for `Q8_0`.
    /// Matrices that such blocks do not fit into are stored in `Q8_0`. Slow to load: good scales
    /// are searched for.
    Q4K,
    /// Each matrix as its file has it, in about the bytes that it has there: no weight is rounded.
    /// What is in blocks of integers is multiplied as `Q8_0` is, its inputs rounded.
    File,
}

/// What a matrix is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Products with all of it.
    Products,
    /// A few rows at a time.
    Rows,
    /// The same of one that is larger than the rest of the model: it is not widened either.
    Table,
}

impl Precision {
    /// All of them.
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

    /// The name that users type.
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

    /// Whether numbers are rounded to blocks of integers.
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::File)
    }

    /// The types of a quantised self-draft, best first: the first of these that is small enough is
    /// used. Five bits with a minimum, or four: with scales that were searched for, the drafts of
    /// small models are accepted 0.9 and 0.8 of the time.
    pub(crate) const OF_COPY: [Self; 3] = [Self::Q5_1, Self::Q4_1, Self::Q4_0];

    /// Whether its scales are searched for where it is known what errors count.
    pub(crate) fn is_searched(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q5_1 | Self::Q4K)
    }

    /// The type of a matrix with such a use in a model of this type: what is read by rows is never
    /// quantised.
    pub(crate) fn used_for(self, of: Use) -> Self {
        match of {
            Use::Rows if self.is_quantised() => Self::F32,
            Use::Table if self.is_quantised() => Self::File,
            _ => self,
        }
    }

    /// The format of a matrix of this type.
    pub(crate) fn format(self) -> Format {
        match self {
            // A matrix that stays as in the file has the format that is exact there.
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

    /// The type that a matrix of so many columns is stored in.
    pub(crate) fn fitting(self, columns: usize) -> Self {
        [self, Self::Q8_0]
            .into_iter()
            .find(|p| columns.is_multiple_of(p.format().unit()))
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
