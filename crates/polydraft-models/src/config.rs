//! The shape of a decoder, checked before anything is allocated.
//!
//! One [`Config`] describes every family: differences between families are data here, and `family/`
//! reads each family's files.

mod activation;
mod attention;
mod experts;
mod gguf;
mod heads;
mod mtp;
mod per_layer;
mod recurrent;
mod rope;

use polydraft_kernels::Activation;
use polydraft_text::check_positive;

pub(crate) use activation::activation;
pub use attention::{
    Attention, GateFunction, GateRows, LatentShape, OutputGate, QkNorm, QueryScaling,
};
pub use experts::{ExpertGroups, Experts, RouterScores, SharedExpert};
pub(crate) use gguf::NAMES as GGUF_NAMES;
pub use heads::HeadShape;
pub(crate) use mtp::MtpLayer;
pub use per_layer::PerLayer;
pub use recurrent::{Mixer, Recurrent};
pub(crate) use rope::Lengths;
pub use rope::{Frequencies, Rope, RotaryPairs, Scaling};

use crate::names::{Names, PerLayerNames};
use crate::precision::MatrixUse;

/// Shape of a decoder, in the terms of Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the architecture in `config.json` or in the GGUF file.
    pub architecture: &'static str,
    /// Rows of the embedding, including padding.
    pub vocabulary: usize,
    /// Width of an embedded token. Differs from `hidden` only if there are projections in between
    /// (OPT-350M).
    pub embedding: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads, a divisor of `heads`. Some layers may have
    /// [another number](Config::head_shape_for).
    pub key_value_heads: usize,
    /// Width of a head. Some layers may have [another width](Config::head_shape_for).
    pub head_dim: usize,
    /// Maximum tokens of a sequence.
    pub context: usize,
    /// Encoding of positions.
    pub positions: Positions,
    /// Attention of queries to keys.
    pub attention: Attention,
    /// Kind of the norms.
    pub norm: NormKind,
    /// Term added to the mean square or variance in the norms.
    pub norm_epsilon: f64,
    /// Placement of the norms around a block.
    pub norm_order: NormOrder,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// The feed-forward blocks.
    pub feed_forward: FeedForward,
    /// Whether feed-forward blocks are twice as wide in layers that share the KV cache of another
    /// layer.
    pub double_wide_mlp: bool,
    /// Experts that replace the feed-forward block of some layers, or run in parallel with it.
    pub experts: Option<Experts>,
    /// Blocks of every layer; empty if all layers have both.
    pub blocks: Vec<LayerBlocks>,
    /// Layers with a recurrent state instead of a KV cache, if any.
    pub recurrent: Option<Recurrent>,
    /// Per-layer embeddings, if any.
    pub per_layer: Option<PerLayer>,
    /// Whether the output of a layer is multiplied by a learned scalar.
    pub layer_scales: bool,
    /// Linear layers that have a bias.
    pub biases: Biases,
    /// Factor of a block's output before it is added to the residual stream.
    pub residual_scale: f64,
    /// Factor of embedded tokens.
    pub embedding_scale: f64,
    /// Factor of logits.
    pub logit_scale: f64,
    /// Soft cap c of logits: x becomes c · tanh(x / c).
    pub logit_softcap: Option<f64>,
    /// Whether the embedding and the output matrix are one tensor.
    pub tied: bool,
    /// Tokens that end a sequence, unless `generation_config.json` lists others.
    pub end_tokens: Vec<u32>,
    /// Number of modules after the model's layers that predict further tokens (multi-token
    /// prediction, MTP). They are not loaded with the model.
    pub mtp_modules: usize,
    /// Layers of each MTP module; if empty, one layer like the last of the model.
    pub(crate) mtp_layers: Vec<MtpLayer>,
    /// State that an MTP module passes to its next step.
    pub(crate) feedback: Feedback,
    /// Whether this is the text part of a multimodal model.
    pub is_multimodal: bool,
    /// Names of the tensors.
    pub(crate) names: &'static Names,
}

/// Encoding of positions.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// Queries and keys are rotated.
    Rotary(Rope),
    /// Row p + `offset` of a table is added to the embedded token at position p.
    Learned {
        /// Row of the first position.
        offset: usize,
    },
}

/// State that a draft layer passes to its next step: before or after the last norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feedback {
    BeforeNorm,
    AfterNorm,
}

/// Formula of a norm.
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
    /// Mean and variance, without learned weights.
    LayerPlain,
}

/// Placement of the norms around a block f on the residual stream x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormOrder {
    /// x + f(norm(x))
    Pre,
    /// x + norm(f(norm(x)))
    Sandwich,
    /// x + norm(f(x))
    BlockOutput,
    /// norm(x + f(x))
    Post,
    /// x + attention(norm(x)) + feed-forward(norm(x)), with the same norm.
    Parallel,
}

/// Blocks of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerBlocks {
    /// Attention or a recurrent block, then a feed-forward block.
    Both,
    /// Only attention or a recurrent block.
    Attention,
    /// Only a feed-forward block.
    FeedForward,
}

/// The feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedForward {
    /// Activation of the gate, or of the inner values if there is no gate.
    pub activation: Activation,
    /// Whether a gate multiplies the inner values.
    pub gated: bool,
}

/// Linear layers that have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Projections to queries, keys and values.
    pub query_key_value: bool,
    /// Projection of the attention's output.
    pub output: bool,
    /// Feed-forward blocks.
    pub feed_forward: bool,
}

impl Config {
    /// Checks the constraints of all families.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_heads()?;
        if let Positions::Rotary(rope) = &self.positions {
            rope.check(self.head_shape_for(false).head_dim)?;
        }
        if let Some(rope) = &self.attention.window_rope {
            rope.check(self.head_dim)?;
        }
        let windows = self.attention.windowed.len();
        if self.attention.window.is_some() && windows != self.layers {
            return Err(format!(
                "layer_types: expected {} entries, one per layer, got {windows}",
                self.layers
            ));
        }
        for (name, value) in [
            ("the norms' epsilon", Some(self.norm_epsilon)),
            ("the factor of attention scores", Some(self.attention.scale)),
            ("attn_logit_softcapping", self.attention.softcap),
            ("final_logit_softcapping", self.logit_softcap),
            ("the factor of the logits", Some(self.logit_scale)),
            ("the factor of the blocks", Some(self.residual_scale)),
        ] {
            check_positive(name, value)?;
        }
        self.experts.as_ref().map_or(Ok(()), |experts| experts.check(self.layers))?;
        self.recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent.check(self.layers))?;
        match self.cached_layers().next() {
            Some(_) => Ok(()),
            None => Err("layer_types: expected a layer with attention, got none".to_owned()),
        }
    }

    /// Blocks of a layer.
    pub(crate) fn blocks_of(&self, layer: usize) -> LayerBlocks {
        self.blocks.get(layer).copied().unwrap_or(LayerBlocks::Both)
    }

    /// Configuration of a recurrent layer; `None` for other layers.
    pub(crate) fn recurrent_of(&self, layer: usize) -> Option<&Recurrent> {
        self.recurrent.as_ref().filter(|recurrent| recurrent.layers.get(layer) == Some(&true))
    }

    /// Bytes of the recurrent state of a sequence, which does not depend on its length.
    pub fn state_bytes(&self) -> u64 {
        let Some(recurrent) = &self.recurrent else { return 0 };
        let layers = (0..self.layers).filter(|layer| self.recurrent_of(*layer).is_some());
        (layers.count() * recurrent.state(self.hidden) * size_of::<f32>()) as u64
    }

    /// Experts of a layer, if it has any.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.layers.get(layer) == Some(&true))
    }

    /// Width inside a layer's feed-forward block.
    pub(crate) fn intermediate_of(&self, layer: usize) -> usize {
        match self.double_wide_mlp && self.shares_kv_cache(layer) {
            true => 2 * self.intermediate,
            false => self.intermediate,
        }
    }

    /// Whether a layer has sliding-window attention.
    pub(crate) fn is_windowed(&self, layer: usize) -> bool {
        self.attention.window.is_some()
            && self.attention.windowed.get(layer).copied().unwrap_or(false)
    }

    /// How the computation uses a tensor, if it is a matrix.
    pub(crate) fn matrix_use(&self, tensor: &str) -> MatrixUse {
        let base = tensor.strip_suffix(".weight").unwrap_or(tensor);
        // Some files omit the prefix of the names.
        let is =
            |name: &str| !name.is_empty() && (base == name || name.ends_with(&format!(".{base}")));
        if is(self.names.per_layer.table) {
            return MatrixUse::LargeTable;
        }
        match is(self.names.positions) || (!self.tied && is(self.names.embedding)) {
            true => MatrixUse::RowLookup,
            false => MatrixUse::Product,
        }
    }

    /// Whether a tensor is not loaded with the model: RoPE tables, which the configuration reads,
    /// MTP modules, and key and value projections of layers that share another layer's KV cache.
    pub(crate) fn skips_tensor(&self, tensor: &str) -> bool {
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
        let Names { query_key_value, qk_norms, .. } = self.names;
        let mut of_keys_and_values = query_key_value.iter().skip(1).chain(&qk_norms[1..]);
        let is = |name: &str| part.strip_prefix(name).is_some_and(|end| end.starts_with('.'));
        self.mtp_layer_numbers().contains(&layer)
            || self.shares_kv_cache(layer) && of_keys_and_values.any(|name| is(name))
    }

    /// Whether a tensor belongs to an expert or to all experts of a layer.
    pub(crate) fn is_expert_tensor(&self, tensor: &str) -> bool {
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

    /// Whether a tensor of a directory belongs to the text part of the model.
    pub(crate) fn is_text_tensor(&self, tensor: &str) -> bool {
        let Names { embedding, layers, norm, lm_head, ref per_layer, .. } = *self.names;
        let PerLayerNames { table, projection, norm: per_layer_norm, .. } = *per_layer;
        let prefixes = [embedding, layers, norm, lm_head, table, projection, per_layer_norm];
        let is_text = || prefixes.iter().any(|prefix| tensor.starts_with(*prefix));
        !self.is_multimodal || is_text()
    }
}
