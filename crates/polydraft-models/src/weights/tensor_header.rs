//! Headers of tensors.

use polydraft_gguf::{MXFP4_BLOCK_SIZE, TensorType};
use polydraft_kernels::Format;

/// Bytes of an MXFP4 block without its scale.
pub(super) const MXFP4_BYTES: usize = MXFP4_BLOCK_SIZE / 2;

/// Name, shape and type of a tensor, from the header of its file.
pub(crate) struct TensorHeader {
    pub name: String,
    pub shape: Vec<usize>,
    /// Name of the type.
    pub stored: String,
    /// Format that stores the tensor exactly.
    pub exact: Format,
}

impl TensorHeader {
    /// Header of an MXFP4 matrix, made from that of its tensor of numbers; `None` for the tensor of
    /// its scales.
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

    /// Number of parameters. Saturating, because shapes in files are untrusted.
    pub fn numbers(&self) -> u64 {
        self.shape.iter().fold(1, |n, s| n.saturating_mul(*s as u64))
    }
}
