//! The limits of a model's caches.

/// How many sequences a model keeps in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLimits {
    /// Sequences that may be open at once.
    pub open: usize,
    /// Closed sequences that stay cached, for sequences with the same beginning.
    pub closed: usize,
    /// Bytes that those may take.
    pub closed_bytes: usize,
}

impl Default for SequenceLimits {
    fn default() -> Self {
        Self { open: 256, closed: 16, closed_bytes: 1 << 30 }
    }
}
