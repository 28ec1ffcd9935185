//! `config.json`: the shape of a decoder, checked before anything is allocated.
//!
//! One [`Config`] describes every family: what differs between them is data here, and `family/`
//! says how each family's file is to be read.

mod activation;
mod attention;
mod experts;
mod further;
mod gguf;
mod heads;
mod per_layer;
mod recurrent;
mod rope;

use polydraft_kernels::Activation;
use polydraft_text::positive;

pub(crate) use activation::activation;
pub use attention::{Attention, HeadNorms, Latent, Stretch};
pub use experts::{Experts, Groups, Scores, Shared};
pub(crate) use further::FurtherLayer;
pub(crate) use gguf::NAMES as FILE_NAMES;
pub use heads::HeadShape;
pub use per_layer::PerLayer;
pub use recurrent::{Mixer, Recurrent};
pub(crate) use rope::Lengths;
pub use rope::{Frequencies, Pairs, Rope, Scaling};

use crate::names::Names;
use crate::precision::Use;

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
    /// Key and value heads; it divides `heads`. Some layers may have
    /// [others](Config::heads_when).
    pub key_value_heads: usize,
    /// Width of a head, likewise.
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
    /// Whether those of layers that attend to another one's KV cache are twice as wide.
    pub widened: bool,
    /// The experts of the layers that have some in the place of a feed-forward block, or beside
    /// it.
    pub experts: Option<Experts>,
    /// Of every layer, which blocks it has; empty where all have both.
    pub blocks: Vec<Blocks>,
    /// The layers that keep a state in the place of a KV cache, if there are some.
    pub recurrent: Option<Recurrent>,
    /// The input that every layer has of a token, if there is one.
    pub per_layer: Option<PerLayer>,
    /// Whether what a layer gives is multiplied by a number of its own.
    pub layer_scales: bool,
    /// Which products add a bias.
    pub biases: Biases,
    /// What blocks give is multiplied by this before it is added to the residual stream.
    pub residual_scale: f64,
    /// Embedded tokens are multiplied by this.
    pub embedding_scale: f64,
    /// Logits are multiplied by this.
    pub logit_scale: f64,
    /// Logits x become c · tanh(x / c).
    pub logit_softcap: Option<f64>,
    /// Whether input and output embedding are one tensor.
    pub tied: bool,
    /// Tokens that end a sequence, unless `generation_config.json` names others.
    pub end_tokens: Vec<u32>,
    /// Layers after the model's own that predict further tokens (MTP): they are left on disk.
    pub extra_layers: usize,
    /// What each of these is made of; one layer like the last of the model's own where nothing is
    /// listed.
    pub(crate) further: Vec<FurtherLayer>,
    /// What such a layer's next step begins with.
    pub(crate) fed_back: FedBack,
    /// Whether it is the text part of a model that sees or hears.
    pub is_nested: bool,
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

/// The state that the next step of a layer that drafts begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FedBack {
    BeforeNorm,
    AfterNorm,
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
    /// Mean and variance, times a weight.
    LayerScale,
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
    /// x + norm(f(x))
    Behind,
    /// norm(x + f(x))
    After,
    /// x + attention(norm(x)) + feed-forward(norm(x)), with one norm.
    Parallel,
}

/// The blocks of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// Attention, or what keeps a state in its place, then a feed-forward block.
    Both,
    /// Attention alone, or what keeps a state.
    Attention,
    /// A feed-forward block alone.
    FeedForward,
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
        self.check_heads()?;
        if let Positions::Rotary(rope) = &self.positions {
            rope.check(self.heads_when(false).head)?;
        }
        if let Some(rope) = &self.attention.window_rope {
            rope.check(self.head)?;
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
            ("the scale of the logits", Some(self.logit_scale)),
            ("the scale of the blocks", Some(self.residual_scale)),
        ] {
            positive(name, value)?;
        }
        self.experts.as_ref().map_or(Ok(()), |experts| experts.check(self.layers))?;
        self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.check(self.layers))?;
        match self.cached_layers().next() {
            Some(_) => Ok(()),
            None => Err("layer_types: expected a layer with attention, got none".to_owned()),
        }
    }

    /// The blocks of a layer.
    pub(crate) fn blocks_of(&self, layer: usize) -> Blocks {
        self.blocks.get(layer).copied().unwrap_or(Blocks::Both)
    }

    /// What a layer does in the place of attention, if it is one that keeps a state.
    pub(crate) fn recurrent_of(&self, layer: usize) -> Option<&Recurrent> {
        self.recurrent.as_ref().filter(|recurrent| recurrent.layers.get(layer) == Some(&true))
    }

    /// Bytes of the state of a sequence beside its KV cache, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        let Some(recurrent) = &self.recurrent else { return 0 };
        let layers = (0..self.layers).filter(|layer| self.recurrent_of(*layer).is_some());
        (layers.count() * recurrent.state(self.hidden) * size_of::<f32>()) as u64
    }

    /// The experts of a layer, if it has some.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.layers.get(layer) == Some(&true))
    }

    /// Width inside a layer's feed-forward block.
    pub(crate) fn intermediate_of(&self, layer: usize) -> usize {
        match self.widened && self.borrows(layer) {
            true => 2 * self.intermediate,
            false => self.intermediate,
        }
    }

    /// Whether a layer has the window.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.attention.window.is_some()
            && self.attention.windowed.get(layer).copied().unwrap_or(false)
    }

    /// What a tensor is read for, if it is a matrix.
    pub(crate) fn use_of(&self, tensor: &str) -> Use {
        let base = tensor.strip_suffix(".weight").unwrap_or(tensor);
        // Some files leave out what the names begin with.
        let is =
            |name: &str| !name.is_empty() && (base == name || name.ends_with(&format!(".{base}")));
        if is(self.names.per_layer.table) {
            return Use::Table;
        }
        match is(self.names.positions) || (!self.tied && is(self.names.embedding)) {
            true => Use::Rows,
            false => Use::Products,
        }
    }

    /// Whether a tensor is read with the configuration, or is not the model's own: of layers that
    /// predict further tokens, and what would make the KV cache of a layer that attends to
    /// another one's.
    pub(crate) fn is_read_elsewhere(&self, tensor: &str) -> bool {
        if tensor.starts_with("rope_f")
            || tensor.starts_with("mtp.")
            || tensor.contains("mtp_layers.")
        {
            return true;
        }
        let inner = tensor.strip_prefix(self.names.layers).and_then(|rest| rest.strip_prefix('.'));
        let Some((layer, part)) = inner.and_then(|inner| inner.split_once('.')) else {
            return false;
        };
        let Ok(layer) = layer.parse::<usize>() else { return false };
        let Names { query_key_value, head_norms, .. } = self.names;
        let mut borrowed = query_key_value.iter().skip(1).chain(&head_norms[1..]);
        let is = |name: &str| part.strip_prefix(name).is_some_and(|end| end.starts_with('.'));
        self.further_numbers().contains(&layer)
            || self.borrows(layer) && borrowed.any(|name| is(name))
    }

    /// Whether a tensor is an expert's, or has those of all of a layer.
    pub(crate) fn is_of_experts(&self, tensor: &str) -> bool {
        let inner = tensor.strip_prefix(self.names.layers).and_then(|rest| {
            let (_, inner) = rest.strip_prefix('.')?.split_once('.')?;
            Some(inner)
        });
        let names = &self.names.experts;
        let mut known = names.mlp_in.iter().chain([&names.mlp_out]);
        self.experts.is_some()
            && inner.is_some_and(|inner| {
                inner != names.scales
                    && known.any(|name| {
                        name.split('#').next().is_some_and(|begin| inner.starts_with(begin))
                    })
            })
    }

    /// Whether a tensor of a directory is the model's, and not of parts that see or hear.
    pub(crate) fn is_its(&self, tensor: &str) -> bool {
        let Names { embedding, layers, norm, head, ref per_layer, .. } = *self.names;
        let own = [embedding, layers, norm, head, per_layer.table, per_layer.from, per_layer.norm];
        let is_text = || own.iter().any(|own| tensor.starts_with(*own));
        !self.is_nested || is_text()
    }
}
