//! Limits of a model's caches.

/// Limits on the sequences that a model has in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLimits {
    /// Maximum number of open sequences.
    pub open: usize,
    /// Maximum number of closed sequences that stay cached for later ones with the same prefix.
    pub closed: usize,
    /// Maximum bytes of the closed sequences.
    pub closed_bytes: usize,
}

impl Default for SequenceLimits {
    fn default() -> Self {
        Self { open: 256, closed: 16, closed_bytes: 1 << 30 }
    }
}
