//! Description of a model, read from the metadata with llama.cpp's defaults.
//!
//! Source: `load_hparams` and the models of llama.cpp (commit 0c1e570). Deviations:
//! 1. Features that the five architectures here do not use (experts, more token types, layers that
//!    predict further tokens, bidirectional attention, LongRoPE) are errors that report the key.
//! 2. Integers of any type are accepted if they are in range. llama.cpp requires the exact type.

mod fields;
mod rope;
mod tensors;

pub use rope::{RopePairs, RopeScaling, RopeSettings};
pub use tensors::{ExpectedTensor, TensorRole};

use std::fmt;

use crate::{Gguf, Result};
use fields::Fields;

/// Supported architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3, Mistral, SmolLM and others with the same architecture.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3, without experts.
    Qwen3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, text only.
    Gemma3,
}

impl Architecture {
    /// All architectures.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma2, Self::Gemma3];

    /// Returns the name in `general.architecture`, which is also the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
        }
    }

    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Description of a decoder.
///
/// Every layer computes x + f(norm(x)) for attention, then for a gated feed-forward block;
/// positions are rotary. Norms are x / rms(x) · weight: in files of Gemma, the weights already
/// include the "one plus".
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDescription {
    /// Architecture.
    pub architecture: Architecture,
    /// Name, from `general.name`.
    pub name: Option<String>,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub key_value_heads: usize,
    /// Width of a query head and of a key head.
    pub key_head: usize,
    /// Width of a value head.
    pub value_head: usize,
    /// Context length in tokens.
    pub context: usize,
    /// Number of rows of the embedding.
    pub vocabulary: usize,
    /// ε that norms add to the mean square.
    pub norm_epsilon: f64,
    /// Rotary embedding.
    pub rope: RopeSettings,
    /// Rotary embedding of layers with a sliding window, if it differs.
    pub window_rope: Option<RopeSettings>,
    /// Sliding window: number of tokens that a token sees, including itself, in `windowed` layers.
    pub window: Option<usize>,
    /// Layers with the sliding window, `[layers]`; empty without a window.
    pub windowed: Vec<bool>,
    /// Factor of attention scores.
    pub attention_scale: f64,
    /// Cap c of attention scores: a score x becomes c · tanh(x / c).
    pub attention_softcap: Option<f64>,
    /// Cap c of logits: a logit x becomes c · tanh(x / c).
    pub logit_softcap: Option<f64>,
    /// Factor of token embeddings.
    pub embedding_scale: f64,
    /// Whether the activation of the gate is GELU (tanh approximation) instead of SiLU.
    pub gelu: bool,
    /// Whether queries and keys of each head are normalized before the rotation.
    pub head_norms: bool,
    /// Whether the outputs of attention and feed-forward are normalized before they are added.
    pub post_norms: bool,
    /// Whether the input and output embedding are the same tensor.
    pub tied: bool,
    /// Products with a bias.
    pub biases: Biases,
}

/// Products with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Query, key and value projections.
    pub query_key_value: bool,
    /// Output projection of attention.
    pub attention_output: bool,
    /// Feed-forward blocks.
    pub feed_forward: bool,
    /// Output embedding.
    pub output: bool,
}

/// Numbers of layers of the published models with 27 billion parameters, whose attention scale does
/// not follow the width of a key head.
const GEMMA2_LARGEST: usize = 46;
const GEMMA3_LARGEST: usize = 62;
const MAX_LAYERS: usize = 1 << 12;
const MAX_HEADS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 30;

impl ModelDescription {
    /// Reads the description of the model in a file.
    ///
    /// # Errors
    /// An unsupported architecture or feature; a key that is missing, out of range, or inconsistent
    /// with other keys or the tensors. The error reports the key or the tensor.
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let fields = Fields::new(gguf)?;
        let architecture = fields.architecture;
        fields.reject_unsupported()?;
        let layers = fields.size("block_count", MAX_LAYERS)?;
        let hidden = fields.size("embedding_length", MAX_WIDTH)?;
        let heads = fields.per_layer("attention.head_count", layers, MAX_HEADS)?;
        let key_value_heads = match fields.has("attention.head_count_kv") {
            true => fields.per_layer("attention.head_count_kv", layers, MAX_HEADS)?,
            false => heads,
        };
        if !heads.is_multiple_of(key_value_heads) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(fields.invalid_key(
                "attention.head_count_kv",
                expected,
                key_value_heads.to_string(),
            ));
        }
        let key_head = fields.size_or("attention.key_length", hidden / heads, MAX_HEADS)?;
        let value_head = fields.size_or("attention.value_length", hidden / heads, MAX_HEADS)?;
        let context = fields.size("context_length", MAX_CONTEXT)?;
        let rope = RopeSettings::read(&fields, key_head, context)?;
        let (window, windowed) = window(&fields, layers)?;
        let window_rope = match window {
            Some(_) => RopeSettings::for_window(&fields, &rope)?,
            None => None,
        };
        let largest = match architecture {
            Architecture::Gemma2 => layers == GEMMA2_LARGEST,
            Architecture::Gemma3 => layers == GEMMA3_LARGEST,
            _ => false,
        };
        let scaled_by = if largest { hidden / heads } else { key_head };
        let [attention_softcap, logit_softcap] = softcaps(&fields)?;
        let gemma = architecture.is_gemma();
        let model = Self {
            architecture,
            name: gguf
                .metadata()
                .optional("general.name", |m, key| m.str(key).map(str::to_owned))?,
            layers,
            hidden,
            intermediate: fields.per_layer("feed_forward_length", layers, MAX_WIDTH)?,
            heads,
            key_value_heads,
            key_head,
            value_head,
            context,
            vocabulary: fields.vocabulary()?,
            norm_epsilon: fields.positive("attention.layer_norm_rms_epsilon")?,
            rope,
            window_rope,
            window,
            windowed,
            attention_scale: (scaled_by as f64).powf(-0.5),
            attention_softcap,
            logit_softcap,
            embedding_scale: if gemma { (hidden as f64).sqrt() } else { 1.0 },
            gelu: gemma,
            head_norms: matches!(architecture, Architecture::Qwen3 | Architecture::Gemma3),
            post_norms: gemma,
            // llama.cpp ignores an output tensor in Gemma 2.
            tied: architecture == Architecture::Gemma2 || gguf.find("output.weight").is_none(),
            biases: biases(gguf, architecture),
        };
        Ok(model)
    }
}

/// Finds out which products have a bias from the tensors of the first layer, because the metadata
/// does not have this.
fn biases(gguf: &Gguf, architecture: Architecture) -> Biases {
    let has = |name: &str| gguf.find(name).is_some();
    let llama = architecture == Architecture::Llama;
    Biases {
        query_key_value: has("blk.0.attn_q.bias"),
        attention_output: llama && has("blk.0.attn_output.bias"),
        feed_forward: llama && has("blk.0.ffn_up.bias"),
        output: architecture == Architecture::Qwen2 && has("output.bias"),
    }
}

/// Returns the sliding window and the layers that have it. The window of Mistral is ignored, as in
/// llama.cpp, where the `llama` architecture has none.
fn window(fields: &Fields, layers: usize) -> Result<(Option<usize>, Vec<bool>)> {
    const KEY: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let (window, pattern) = match fields.architecture {
        Architecture::Gemma2 => (fields.size_or(KEY, 4096, MAX_CONTEXT)?, 2),
        // No window if the key is missing or zero.
        Architecture::Gemma3 if fields.number_or(KEY, 0)? > 0 => {
            (fields.size(KEY, MAX_CONTEXT)?, 6)
        }
        _ => return Ok((None, Vec::new())),
    };
    if let Some(listed) = fields.bools(PATTERN, layers)? {
        return Ok((Some(window), listed));
    }
    let pattern = fields.number_or(PATTERN, pattern)?;
    // The last of every `pattern` layers sees all positions; with 0, no layer does.
    let windowed = (0..layers as u64).map(|layer| pattern == 0 || layer % pattern < pattern - 1);
    Ok((Some(window), windowed.collect()))
}

/// Returns the caps of attention scores and of logits; 0 in the file stands for no cap.
fn softcaps(fields: &Fields) -> Result<[Option<f64>; 2]> {
    let defaults = match fields.architecture {
        Architecture::Gemma2 => [Some(50.0), Some(30.0)],
        Architecture::Gemma3 => [None, Some(0.0)],
        _ => return Ok([None, None]),
    };
    let keys = ["attn_logit_softcapping", "final_logit_softcapping"];
    let mut caps = [None, None];
    for ((cap, key), default) in caps.iter_mut().zip(keys).zip(defaults) {
        let Some(default) = default else { continue };
        let value = fields.finite_or(key, default)?;
        if value < 0.0 {
            return Err(fields.invalid_key(key, "a number of at least 0", value.to_string()));
        }
        *cap = Some(value).filter(|value| *value > 0.0);
    }
    Ok(caps)
}
