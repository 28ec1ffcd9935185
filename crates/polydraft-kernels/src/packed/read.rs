//! Where a matrix's rows come from.

use half::{bf16, f16};
use polydraft_gguf::TensorType;

/// Where rows come from, in the type that a matrix is stored in.
pub trait Read<E>: Sync {
    /// Reads whole rows from row `first` on.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn f32(&self, first: usize, values: &mut [f32]) -> Result<(), E>;

    /// Likewise.
    ///
    /// # Errors
    /// As for [`f32`](Self::f32).
    fn f16(&self, first: usize, values: &mut [f16]) -> Result<(), E>;

    /// Likewise.
    ///
    /// # Errors
    /// As for [`f32`](Self::f32).
    fn bf16(&self, first: usize, values: &mut [bf16]) -> Result<(), E>;

    /// The rows in blocks of this type, if a file has them so.
    fn blocks(&self, _kind: TensorType) -> Option<&dyn Blocks<E>> {
        None
    }
}

/// Rows in blocks, as a ggml file has them.
pub trait Blocks<E>: Sync {
    /// Reads whole rows, of `width` bytes each, from row `first` on.
    ///
    /// # Errors
    /// Rows that cannot be read.
    fn read(&self, first: usize, width: usize, bytes: &mut [u8]) -> Result<(), E>;

    /// The error of a scale that is not finite.
    fn not_finite(&self, row: usize, got: f32) -> E;
}
