//! `config.json`: the shape of a decoder, checked before anything is allocated.
//!
//! One [`Config`] describes every family: what differs between them is data here, and `family/`
//! says how each family's file is to be read.

mod activation;
mod gguf;
mod rope;

use polydraft_kernels::Activation;
use polydraft_text::positive;

pub(crate) use activation::activation;
pub use rope::{Frequencies, Rope, Scaling};

use crate::names::Names;

/// The shape of a decoder, in the terms of Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family, as `config.json` or a GGUF file names its architecture.
    pub architecture: &'static str,
    /// Rows of the embedding, padding included.
    pub vocabulary: usize,
    /// Width of an embedded token; it differs from `hidden` only where there are projections in
    /// between (OPT-350M).
    pub embedding: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate: usize,
    /// Decoder blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; it divides `heads`.
    pub key_value_heads: usize,
    /// Width of a head.
    pub head: usize,
    /// Tokens of the context.
    pub context: usize,
    /// How positions enter.
    pub positions: Positions,
    /// How queries attend to keys.
    pub attention: Attention,
    /// The norms.
    pub norm: NormKind,
    /// Added to the mean square or variance in the norms.
    pub norm_epsilon: f64,
    /// Where the norms of a block are.
    pub norm_order: NormOrder,
    /// Whether there is a norm after the last block.
    pub final_norm: bool,
    /// The feed-forward blocks.
    pub feed_forward: FeedForward,
    /// Which products add a bias.
    pub biases: Biases,
    /// Embedded tokens are multiplied by this.
    pub embedding_scale: f64,
    /// Logits x become c · tanh(x / c).
    pub logit_softcap: Option<f64>,
    /// Whether input and output embedding are one tensor.
    pub tied: bool,
    /// Tokens that end a sequence, unless `generation_config.json` names others.
    pub end_tokens: Vec<u32>,
    /// What the tensors are called.
    pub(crate) names: &'static Names,
}

/// How a token's position in its sequence enters.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// Queries and keys are rotated.
    Rotary(Rope),
    /// A learned vector is added to the embedded token; that of position p is row p + `offset`.
    Learned {
        /// Rows before the first position's.
        offset: usize,
    },
}

/// How queries attend to keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Scores are multiplied by this.
    pub scale: f64,
    /// Scores x become c · tanh(x / c).
    pub softcap: Option<f64>,
    /// Whether each head's queries and keys pass a norm before they are rotated.
    pub head_norms: bool,
    /// How many tokens, itself included, a token sees in the layers of `windowed`.
    pub window: Option<usize>,
    /// Which layers have the window; empty without one.
    pub windowed: Vec<bool>,
    /// The rotation in those layers, if another.
    pub window_rope: Option<Rope>,
}

/// A norm's arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square, times a weight.
    Rms,
    /// Root mean square, times one plus a weight.
    RmsPlusOne,
    /// Mean and variance, times a weight, plus a bias.
    Layer,
    /// Mean and variance, nothing learned.
    LayerPlain,
}

/// Where a block f of the residual stream x has its norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormOrder {
    /// x + f(norm(x))
    Before,
    /// x + norm(f(norm(x)))
    Around,
    /// norm(x + f(x))
    After,
}

/// The feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedForward {
    /// What is applied to the inner values, or to the gate if there is one.
    pub activation: Activation,
    /// Whether the inner values are multiplied by a gate.
    pub gated: bool,
}

/// Which products add a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Those that make queries, keys and values.
    pub query_key_value: bool,
    /// The one after the attention.
    pub output: bool,
    /// Those of the feed-forward blocks.
    pub feed_forward: bool,
}

impl Config {
    /// What no family may break.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !self.heads.is_multiple_of(self.key_value_heads) {
            return Err(format!(
                "num_key_value_heads: expected a divisor of num_attention_heads = {}, got {}",
                self.heads, self.key_value_heads
            ));
        }
        if matches!(self.positions, Positions::Rotary(_)) && !self.head.is_multiple_of(2) {
            return Err(format!("head_dim: expected an even number, got {}", self.head));
        }
        let windows = self.attention.windowed.len();
        if self.attention.window.is_some() && windows != self.layers {
            return Err(format!(
                "layer_types: expected {} entries, one a layer, got {windows}",
                self.layers
            ));
        }
        for (name, value) in [
            ("the norms' epsilon", Some(self.norm_epsilon)),
            ("the scale of attention scores", Some(self.attention.scale)),
            ("attn_logit_softcapping", self.attention.softcap),
            ("final_logit_softcapping", self.logit_softcap),
        ] {
            positive(name, value)?;
        }
        Ok(())
    }

    /// Whether a layer has the window.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.attention.window.is_some()
            && self.attention.windowed.get(layer).copied().unwrap_or(false)
    }

    /// Whether a tensor is only read by rows.
    pub(crate) fn is_looked_up(&self, tensor: &str) -> bool {
        let base = tensor.strip_suffix(".weight").unwrap_or(tensor);
        // Some files leave out what the names begin with.
        let is =
            |name: &str| !name.is_empty() && (base == name || name.ends_with(&format!(".{base}")));
        is(self.names.positions) || (!self.tied && is(self.names.embedding))
    }

    /// Bytes that the KV cache of one token takes, at `width` bytes a number.
    pub fn cache_bytes(&self, width: usize) -> u64 {
        2 * (self.layers * self.key_value_heads * self.head * width) as u64
    }
}
