//! What a header says of a tensor.

use polydraft_kernels::Format;

/// What a header says of a tensor.
pub(crate) struct Listed {
    pub name: String,
    pub shape: Vec<usize>,
    /// The type's name.
    pub stored: String,
    /// In which it loses nothing.
    pub exact: Format,
}

impl Listed {
    /// How many numbers it has; shapes are strangers' claims.
    pub fn numbers(&self) -> u64 {
        self.shape.iter().fold(1, |n, s| n.saturating_mul(*s as u64))
    }
}
