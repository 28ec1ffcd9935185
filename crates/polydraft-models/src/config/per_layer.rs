//! Per-layer embeddings: an additional input of each layer that depends on the token alone.

/// Shape of per-layer embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayer {
    /// Width of the embedding for one layer.
    pub width: usize,
    /// Number of tokens with such embeddings.
    pub vocabulary: usize,
}
