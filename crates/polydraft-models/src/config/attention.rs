//! How queries attend to keys.

use super::{HeadShape, Rope};

/// How queries attend to keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Scores are multiplied by this.
    pub scale: f64,
    /// Scores x become c · tanh(x / c).
    pub softcap: Option<f64>,
    /// The norms of queries and keys before they are rotated.
    pub head_norms: HeadNorms,
    /// How many tokens, itself included, a token sees in the layers of `windowed`.
    pub window: Option<usize>,
    /// Which layers have the window; empty without one.
    pub windowed: Vec<bool>,
    /// The rotation in those layers, if another.
    pub window_rope: Option<Rope>,
    /// The heads in layers without the window, if others.
    pub full: Option<HeadShape>,
    /// Whether values are normed too, those of each head, without a weight.
    pub value_norms: bool,
    /// So many of the last layers have no KV cache: each attends to that of the last layer
    /// before them with a window, or without one, as it has itself.
    pub borrowing: usize,
    /// Which layers know nothing of positions; empty where all do.
    pub unrotated: Vec<bool>,
    /// What queries are multiplied by at their positions.
    pub stretch: Option<Stretch>,
    /// Whether every head gives a weight to nothing, which is learned.
    pub sinks: bool,
    /// Whether what a head finds is multiplied by the sigmoid of a product of its own, whose rows
    /// follow each head's queries'.
    pub gated: bool,
    /// How the KV cache is compressed, if it is.
    pub latent: Option<Latent>,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Of each head, with the weights that all heads share.
    Each,
    /// Of all heads together.
    Whole,
}

/// Queries at position p are multiplied by 1 + beta · ln(1 + ⌊p / original⌋).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    /// By how much.
    pub beta: f64,
    /// The context of the training.
    pub original: usize,
}

impl Stretch {
    /// The factor at a position.
    pub fn at(self, position: usize) -> f32 {
        (1.0 + self.beta * ((1 + position / self.original) as f64).ln()) as f32
    }
}

/// The KV cache of all heads is one vector a token (multi-head latent attention).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector that queries are made of, if they are made of one.
    pub query_rank: Option<usize>,
    /// Width of that vector.
    pub rank: usize,
    /// Numbers of a query's head that are not rotated,
    pub plain: usize,
    /// and those that are; keys share them.
    pub rotated: usize,
    /// Width of a value's head.
    pub value: usize,
}

impl Latent {
    /// Numbers that are cached of a token.
    pub fn cached(&self) -> usize {
        self.rank + self.rotated
    }
}

impl Attention {
    /// Of heads of this width, with nothing special.
    pub(crate) fn plain(head: usize) -> Self {
        Self {
            scale: (head as f64).powf(-0.5),
            softcap: None,
            head_norms: HeadNorms::None,
            window: None,
            windowed: Vec::new(),
            window_rope: None,
            full: None,
            value_norms: false,
            borrowing: 0,
            unrotated: Vec::new(),
            stretch: None,
            sinks: false,
            gated: false,
            latent: None,
        }
    }
}
