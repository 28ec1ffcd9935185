//! The input that every layer has of a token, besides what the layers before it leave.

/// A small embedding of each token for each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayer {
    /// Its width.
    pub width: usize,
    /// Tokens that have one.
    pub vocabulary: usize,
}
