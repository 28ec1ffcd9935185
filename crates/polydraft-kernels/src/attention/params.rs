//! Parameters of attention.

use super::page::PageLayout;

/// Parameters of attention in one layer.
#[derive(Debug, Clone, Copy)]
pub struct AttentionParams<'a> {
    /// Index of the layer in the pages.
    pub layer: usize,
    /// Layout of the pages.
    pub layout: PageLayout,
    /// Number of query heads, a multiple of the number of key heads.
    pub heads: usize,
    /// Distance between the queries of consecutive tokens, in numbers.
    pub stride: usize,
    /// Sliding window: number of positions that a token sees, including its own. `None` for all.
    pub window: Option<usize>,
    /// Cap c of scores: a score x becomes c · tanh(x / c).
    pub softcap: Option<f32>,
    /// Attention sinks: an additional score per query head, with value zero.
    pub sinks: Option<&'a [f32]>,
}
