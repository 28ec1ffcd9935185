//! What model a file holds, in the terms of every decoder: read from the metadata, with llama.cpp's
//! defaults.
//!
//! Source: `load_hparams` and the models of llama.cpp (commit 0c1e570). Deviations:
//! 1. What the five architectures here do not use (experts, more token types, layers that predict
//!    further tokens, attention in both directions, LongRoPE) is refused by the key's name where
//!    llama.cpp would take another path.
//! 2. Integers of any type that fits are taken, llama.cpp wants the very type.

mod fields;
mod rope;
mod tensors;

pub use rope::{RopePairs, RopeScaling, RopeSettings};
pub use tensors::{ExpectedTensor, TensorRole};

use std::fmt;

use crate::{Gguf, Result};
use fields::Fields;

/// The architectures that are described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 1 to 3, Mistral, SmolLM and what else is built like them.
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
    /// Every architecture.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Gemma2, Self::Gemma3];

    /// As `general.architecture` names it; its keys begin with it.
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

/// A decoder: x + f(norm(x)) for attention and feed-forward in every layer, with gated feed-forward
/// and rotary positions. Norms are x / rms(x) · weight: Gemma's "one plus weight" is in the file's
/// weights already.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelDescription {
    /// The architecture.
    pub architecture: Architecture,
    /// `general.name`.
    pub name: Option<String>,
    /// Decoder blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; it divides `heads`.
    pub key_value_heads: usize,
    /// Width of a query's and of a key's head.
    pub key_head: usize,
    /// Width of a value's head.
    pub value_head: usize,
    /// Tokens of the context.
    pub context: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Added to the mean square in the norms.
    pub norm_epsilon: f64,
    /// The rotation of queries and keys.
    pub rope: RopeSettings,
    /// The rotation in the layers of the sliding window, if another.
    pub window_rope: Option<RopeSettings>,
    /// How many tokens, itself included, a token sees in the layers of `windowed`.
    pub window: Option<usize>,
    /// Which layers have the window, `[layers]`; empty without one.
    pub windowed: Vec<bool>,
    /// Scores are multiplied by this.
    pub attention_scale: f64,
    /// Scores x become c · tanh(x / c).
    pub attention_softcap: Option<f64>,
    /// Logits x become c · tanh(x / c).
    pub logit_softcap: Option<f64>,
    /// Embedded tokens are multiplied by this.
    pub embedding_scale: f64,
    /// The gate's activation is GELU, approximated by tanh; else SiLU.
    pub gelu: bool,
    /// Whether each head's queries and keys pass a norm before they are rotated.
    pub head_norms: bool,
    /// Whether there are norms after attention and feed-forward too, before their results are
    /// added.
    pub post_norms: bool,
    /// Whether input and output embedding are one tensor.
    pub tied: bool,
    /// Which products add a bias.
    pub biases: Biases,
}

/// Which products add a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Biases {
    /// Those of the query, key and value projections.
    pub query_key_value: bool,
    /// The one after the attention.
    pub attention_output: bool,
    /// Those of the feed-forward blocks.
    pub feed_forward: bool,
    /// The one that makes the logits.
    pub output: bool,
}

/// Layers of the published models of 27 billion parameters: their scale is not that of the head's
/// width.
const GEMMA2_LARGEST: usize = 46;
const GEMMA3_LARGEST: usize = 62;
const MOST_LAYERS: usize = 1 << 12;
const MOST_HEADS: usize = 1 << 12;
const WIDEST: usize = 1 << 20;
const LONGEST: usize = 1 << 30;

impl ModelDescription {
    /// Reads the description of the model in a file.
    ///
    /// # Errors
    /// An architecture or a feature that is not described here; a key that is missing, or out of
    /// its range, or contradicts another or the tensors. The key or the tensor is named.
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let fields = Fields::new(gguf)?;
        let architecture = fields.architecture;
        fields.refuse_others()?;
        let layers = fields.size("block_count", MOST_LAYERS)?;
        let hidden = fields.size("embedding_length", WIDEST)?;
        let heads = fields.per_layer("attention.head_count", layers, MOST_HEADS)?;
        let key_value_heads = match fields.has("attention.head_count_kv") {
            true => fields.per_layer("attention.head_count_kv", layers, MOST_HEADS)?,
            false => heads,
        };
        if !heads.is_multiple_of(key_value_heads) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(fields.wrong(
                "attention.head_count_kv",
                expected,
                key_value_heads.to_string(),
            ));
        }
        let key_head = fields.size_or("attention.key_length", hidden / heads, MOST_HEADS)?;
        let value_head = fields.size_or("attention.value_length", hidden / heads, MOST_HEADS)?;
        let context = fields.size("context_length", LONGEST)?;
        let rope = RopeSettings::read(&fields, key_head, context)?;
        let (window, windowed) = window(&fields, layers)?;
        let window_rope = match window {
            Some(_) => RopeSettings::of_window(&fields, &rope)?,
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
            intermediate: fields.per_layer("feed_forward_length", layers, WIDEST)?,
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
            // llama.cpp never looks for another tensor in Gemma 2.
            tied: architecture == Architecture::Gemma2 || gguf.find("output.weight").is_none(),
            biases: biases(gguf, architecture),
        };
        Ok(model)
    }
}

/// By what is in the first layer: the metadata does not say it.
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

/// The sliding window and the layers that have it. Mistral's is ignored, as llama.cpp does: its
/// files of the `llama` architecture have none.
fn window(fields: &Fields, layers: usize) -> Result<(Option<usize>, Vec<bool>)> {
    const KEY: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let (window, pattern) = match fields.architecture {
        Architecture::Gemma2 => (fields.size_or(KEY, 4096, LONGEST)?, 2),
        // No window where the key is missing or zero.
        Architecture::Gemma3 if fields.number_or(KEY, 0)? > 0 => (fields.size(KEY, LONGEST)?, 6),
        _ => return Ok((None, Vec::new())),
    };
    if let Some(listed) = fields.bools(PATTERN, layers)? {
        return Ok((Some(window), listed));
    }
    let pattern = fields.number_or(PATTERN, pattern)?;
    // The last of every so many layers sees everything; 0: none does.
    let windowed = (0..layers as u64).map(|layer| pattern == 0 || layer % pattern < pattern - 1);
    Ok((Some(window), windowed.collect()))
}

/// Of the scores and of the logits; 0 is none.
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
            return Err(fields.wrong(key, "a number of at least 0", value.to_string()));
        }
        *cap = Some(value).filter(|value| *value > 0.0);
    }
    Ok(caps)
}
