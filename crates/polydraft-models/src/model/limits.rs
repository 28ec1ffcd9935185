//! How much a model keeps.

/// How many texts a model keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceLimits {
    /// Sequences that may be open at once.
    pub open: usize,
    /// Closed ones of which is kept what was computed, for texts that begin alike.
    pub closed: usize,
    /// Bytes that those may hold.
    pub closed_bytes: usize,
}

impl Default for SequenceLimits {
    fn default() -> Self {
        Self { open: 256, closed: 16, closed_bytes: 1 << 30 }
    }
}
