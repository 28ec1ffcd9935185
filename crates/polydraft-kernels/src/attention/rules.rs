//! How queries attend to keys.

use super::page::PageLayout;

/// How queries attend to keys in one layer.
#[derive(Debug, Clone, Copy)]
pub struct AttentionParams<'a> {
    /// The layer's number.
    pub layer: usize,
    /// The layout of the pages.
    pub layout: PageLayout,
    /// Heads of queries, a multiple of those of keys.
    pub heads: usize,
    /// Numbers from one token's queries to the next one's.
    pub stride: usize,
    /// How many tokens, itself included, a token sees, if not all.
    pub window: Option<usize>,
    /// Scores x become c · tanh(x / c).
    pub softcap: Option<f32>,
    /// Of every head of queries a score of nothing, which takes its share of the weights.
    pub sinks: Option<&'a [f32]>,
}
