//! What a header says of a tensor.

use polydraft_gguf::{MXFP4_BLOCK_SIZE, TensorType};
use polydraft_kernels::Format;

/// Bytes of a block of MXFP4 without its scale.
pub(super) const MXFP4_BYTES: usize = MXFP4_BLOCK_SIZE / 2;

/// What a header says of a tensor.
pub(crate) struct TensorHeader {
    pub name: String,
    pub shape: Vec<usize>,
    /// The type's name.
    pub stored: String,
    /// In which it loses nothing.
    pub exact: Format,
}

impl TensorHeader {
    /// What a header says of a matrix by its numbers' tensor; of that of its scales nothing.
    pub fn mxfp4(name: &str, shape: &[usize]) -> Option<Self> {
        let name = name.strip_suffix("_blocks")?.to_owned();
        let [rows @ .., blocks, MXFP4_BYTES] = shape else { return None };
        Some(Self {
            name,
            shape: [rows, &[blocks.saturating_mul(MXFP4_BLOCK_SIZE)]].concat(),
            stored: TensorType::MXFP4.to_string(),
            exact: Format::from_tensor_type(TensorType::MXFP4),
        })
    }

    /// How many numbers it has; shapes are strangers' claims.
    pub fn numbers(&self) -> u64 {
        self.shape.iter().fold(1, |n, s| n.saturating_mul(*s as u64))
    }
}
