//! Configuration of attention.

use super::{HeadShape, Rope};

/// Configuration of attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Factor of attention scores.
    pub scale: f64,
    /// Soft cap c of scores: x becomes c · tanh(x / c).
    pub softcap: Option<f64>,
    /// Norms of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// Size of the sliding window in tokens, including the query's own.
    pub window: Option<usize>,
    /// For each layer, whether it has the sliding window; empty without one.
    pub windowed: Vec<bool>,
    /// Rotary embedding in layers with the window, if it differs.
    pub window_rope: Option<Rope>,
    /// Heads in layers without the window, if they differ.
    pub full: Option<HeadShape>,
    /// Whether the values of each head are normed, without weights.
    pub value_norms: bool,
    /// Number of last layers without a KV cache of their own. Each attends to the cache of the last
    /// layer before them of the same kind (with or without the window).
    pub shared_kv_layers: usize,
    /// For each layer, whether it lacks the rotary embedding; empty if all have it.
    pub unrotated: Vec<bool>,
    /// Factor of queries that depends on their position.
    pub query_scaling: Option<QueryScaling>,
    /// Whether heads have learned attention sinks.
    pub sinks: bool,
    /// Gate that the output of the heads is multiplied by.
    pub gate: Option<OutputGate>,
    /// Whether queries and keys are rotated before their norms instead of after them.
    pub rotated_first: bool,
    /// Shape of multi-head latent attention, if the KV cache is compressed.
    pub latent: Option<LatentShape>,
}

/// Gate that the output of the heads is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputGate {
    /// Rows of the projection to the gate.
    pub rows: GateRows,
    /// Function of the projected numbers.
    pub function: GateFunction,
}

/// Rows of the projection to a gate of the attention's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateRows {
    /// A row for each number of the output, after each head's queries in the same matrix.
    AfterQueries,
    /// A row for each number of the output, in a matrix of its own.
    PerNumber,
    /// A row for each head, in a matrix of its own.
    PerHead,
}

/// Function from projected numbers to gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// ln(1 + eˣ)
    Softplus,
}

impl OutputGate {
    /// Returns the rows of the gate's own matrix, for `heads` heads of width `head`; 0 if it has
    /// none.
    pub(crate) fn own_rows(self, heads: usize, head: usize) -> usize {
        match self.rows {
            GateRows::AfterQueries => 0,
            GateRows::PerNumber => heads * head,
            GateRows::PerHead => heads,
        }
    }

    /// Returns the numbers of the output that one projected number is the gate of.
    pub(crate) fn width(self, head: usize) -> usize {
        if self.rows == GateRows::PerHead { head } else { 1 }
    }
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm.
    None,
    /// Each head is normed, with weights that all heads share.
    PerHead,
    /// All heads are normed as one vector.
    AcrossHeads,
}

/// Factor of queries at position p: 1 + beta · ln(1 + ⌊p / original⌋).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScaling {
    /// Strength of the scaling.
    pub beta: f64,
    /// Context length of the training.
    pub original: usize,
}

impl QueryScaling {
    /// Factor at a position.
    pub fn factor_at(self, position: usize) -> f32 {
        (1.0 + self.beta * ((1 + position / self.original) as f64).ln()) as f32
    }
}

/// Shape of multi-head latent attention, whose KV cache is one vector per token for all heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Width of the compressed queries, if they are compressed.
    pub query_rank: Option<usize>,
    /// Width of the compressed keys and values.
    pub rank: usize,
    /// Width of the part of a query's head that is not rotated.
    pub plain: usize,
    /// Width of the rotated part, whose key is shared by all heads.
    pub rotated: usize,
    /// Width of a value head.
    pub value: usize,
}

impl LatentShape {
    /// Width of the cached vector of a token.
    pub fn cached(&self) -> usize {
        self.rank + self.rotated
    }
}

impl Attention {
    /// Plain attention with heads of width `head`.
    pub(crate) fn plain(head: usize) -> Self {
        Self {
            scale: (head as f64).powf(-0.5),
            softcap: None,
            qk_norm: QkNorm::None,
            window: None,
            windowed: Vec::new(),
            window_rope: None,
            full: None,
            value_norms: false,
            shared_kv_layers: 0,
            unrotated: Vec::new(),
            query_scaling: None,
            sinks: false,
            gate: None,
            rotated_first: false,
            latent: None,
        }
    }
}
