//! Storage types of tensors, with their names and block sizes.

use std::fmt;

/// Storage type of a tensor. Numbers are stored in contiguous blocks of equal size; a row has a
/// whole number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // the names are ggml's
#[non_exhaustive]
pub enum TensorType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ1_S,
    IQ1_M,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

use TensorType::*;

/// Number in files, type, name, numbers per block, bytes per block.
const TABLE: [(u32, TensorType, &str, usize, usize); 35] = [
    (0, F32, "F32", 1, 4),
    (1, F16, "F16", 1, 2),
    (2, Q4_0, "Q4_0", 32, 18),
    (3, Q4_1, "Q4_1", 32, 20),
    (6, Q5_0, "Q5_0", 32, 22),
    (7, Q5_1, "Q5_1", 32, 24),
    (8, Q8_0, "Q8_0", 32, 34),
    (9, Q8_1, "Q8_1", 32, 36),
    (10, Q2_K, "Q2_K", 256, 84),
    (11, Q3_K, "Q3_K", 256, 110),
    (12, Q4_K, "Q4_K", 256, 144),
    (13, Q5_K, "Q5_K", 256, 176),
    (14, Q6_K, "Q6_K", 256, 210),
    (15, Q8_K, "Q8_K", 256, 292),
    (16, IQ2_XXS, "IQ2_XXS", 256, 66),
    (17, IQ2_XS, "IQ2_XS", 256, 74),
    (18, IQ3_XXS, "IQ3_XXS", 256, 98),
    (19, IQ1_S, "IQ1_S", 256, 50),
    (20, IQ4_NL, "IQ4_NL", 32, 18),
    (21, IQ3_S, "IQ3_S", 256, 110),
    (22, IQ2_S, "IQ2_S", 256, 82),
    (23, IQ4_XS, "IQ4_XS", 256, 136),
    (24, I8, "I8", 1, 1),
    (25, I16, "I16", 1, 2),
    (26, I32, "I32", 1, 4),
    (27, I64, "I64", 1, 8),
    (28, F64, "F64", 1, 8),
    (29, IQ1_M, "IQ1_M", 256, 56),
    (30, BF16, "BF16", 1, 2),
    (34, TQ1_0, "TQ1_0", 256, 54),
    (35, TQ2_0, "TQ2_0", 256, 66),
    (39, MXFP4, "MXFP4", 32, 17),
    (40, NVFP4, "NVFP4", 64, 36),
    (41, Q1_0, "Q1_0", 128, 18),
    (42, Q2_0, "Q2_0", 64, 18),
];

/// Types that ggml has removed. Their numbers are not reused.
const REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl TensorType {
    /// Returns the type with a number in files. The error describes the number.
    pub(crate) fn new(number: u32) -> Result<Self, String> {
        if let Some((_, name)) = REMOVED.iter().find(|(removed, _)| *removed == number) {
            return Err(format!("{name}, which ggml has removed"));
        }
        let row = TABLE.iter().find(|row| row.0 == number);
        row.map(|row| row.1).ok_or_else(|| format!("type number {number}"))
    }

    /// Returns its number in files.
    pub fn number(self) -> u32 {
        self.row().0
    }

    /// Returns its name in ggml.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Returns the number of numbers in a block.
    pub fn block(self) -> usize {
        self.row().3
    }

    /// Returns the number of bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Returns the type in which blocks are stored in memory. It differs for types whose numbers
    /// are not multiples of a scale: see [`to_memory_type`](crate::to_memory_type).
    pub fn memory_type(self) -> Self {
        match self {
            MXFP4 => Q5_0,
            other => other,
        }
    }

    /// Returns all types.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.1)
    }

    fn row(self) -> &'static (u32, Self, &'static str, usize, usize) {
        // Every type is in the table, which a test checks.
        TABLE.iter().find(|row| row.1 == self).unwrap_or(&TABLE[0])
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_every_type_and_number() {
        for row in &TABLE {
            assert_eq!(TensorType::new(row.0), Ok(row.1));
            assert_eq!(row.1.number(), row.0);
        }
        assert!(TensorType::new(4).unwrap_err().contains("Q4_2"));
        assert!(TensorType::new(43).is_err());
        // The table has as many rows as there are variants, of which this is the last.
        assert_eq!(TABLE.len(), Q2_0 as usize + 1);
    }
}
