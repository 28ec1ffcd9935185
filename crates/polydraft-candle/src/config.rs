//! `config.json`: the shape of a decoder, checked before anything is allocated.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::{Error, Result};

/// The architectures that can be loaded, as `config.json` names them.
pub const ARCHITECTURES: [&str; 1] = ["LlamaForCausalLM"];

/// The shape of a decoder, in the terms of Hugging Face.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Rows of the embedding.
    pub vocabulary: usize,
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
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in the norms.
    pub norm_epsilon: f64,
    /// Whether input and output embedding are one tensor.
    pub tied: bool,
    /// Tokens that end a text, unless `generation_config.json` names others.
    pub end_tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct File {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    rope_parameters: Option<RopeParameters>,
    rms_norm_eps: Option<f64>,
    #[serde(default)]
    tie_word_embeddings: bool,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    eos_token_id: EndTokens,
}

/// Where newer versions of transformers keep the rotary settings.
#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

/// One id, several, or none.
#[derive(Deserialize, Default)]
#[serde(untagged)]
pub(crate) enum EndTokens {
    One(u32),
    Several(Vec<u32>),
    #[default]
    None,
}

impl EndTokens {
    pub fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Several(ids) => ids,
            Self::None => Vec::new(),
        }
    }
}

impl Config {
    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// A file that is missing or no such JSON; an architecture or a feature that is not known; sizes that are absurd
    /// or contradict each other. The field is named.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|problem| Error::File { path: path.to_owned(), problem })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        // The architecture first: another one's fields may be missing or mean something else.
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let known = format!("expected one of the known architectures ({})", ARCHITECTURES.join(", "));
        match value.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str) {
            Some(name) if ARCHITECTURES.contains(&name) => {}
            Some(name) => return Err(format!("architectures: {known}, found {name:?}")),
            None => return Err(format!("architectures: {known}, found none")),
        }
        let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
        file.check_features()?;
        let parameters = file.rope_parameters.as_ref();
        let heads = size("num_attention_heads", file.num_attention_heads, 1 << 12)?;
        let config = Self {
            vocabulary: size("vocab_size", file.vocab_size, 1 << 24)?,
            hidden: size("hidden_size", file.hidden_size, 1 << 17)?,
            intermediate: size("intermediate_size", file.intermediate_size, 1 << 20)?,
            layers: size("num_hidden_layers", file.num_hidden_layers, 1 << 12)?,
            heads,
            key_value_heads: size("num_key_value_heads", file.num_key_value_heads.unwrap_or(heads), 1 << 12)?,
            head: size("head_dim", file.head_dim.unwrap_or(file.hidden_size / heads), 1 << 12)?,
            context: size("max_position_embeddings", file.max_position_embeddings, 1 << 30)?,
            rope_theta: file.rope_theta.or(parameters.and_then(|p| p.rope_theta)).unwrap_or(10_000.0),
            norm_epsilon: file.rms_norm_eps.unwrap_or(1e-6),
            tied: file.tie_word_embeddings,
            end_tokens: file.eos_token_id.into_vec(),
        };
        if !config.heads.is_multiple_of(config.key_value_heads) {
            return Err(format!(
                "num_key_value_heads: expected a divisor of num_attention_heads = {}, found {}",
                config.heads, config.key_value_heads
            ));
        }
        if !config.head.is_multiple_of(2) {
            return Err(format!("head_dim: expected an even number, found {}", config.head));
        }
        for (name, value) in [("rope_theta", config.rope_theta), ("rms_norm_eps", config.norm_epsilon)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("{name}: expected a positive number, found {value}"));
            }
        }
        Ok(config)
    }
}

impl File {
    /// What would silently compute something else if it were ignored.
    fn check_features(&self) -> std::result::Result<(), String> {
        if let Some(act) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(format!("hidden_act: expected \"silu\", found {act:?}"));
        }
        if self.attention_bias || self.mlp_bias {
            return Err("attention_bias, mlp_bias: expected false, found true".to_owned());
        }
        if let Some(scaling) = self.rope_scaling.as_ref().filter(|s| !s.is_null()) {
            return Err(format!("rope_scaling: expected none, found {scaling}"));
        }
        let kind = self.rope_parameters.as_ref().and_then(|p| p.rope_type.as_deref());
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return Err(format!("rope_parameters: expected rope_type \"default\", found {kind:?}"));
        }
        Ok(())
    }
}

fn size(field: &str, value: usize, most: usize) -> std::result::Result<usize, String> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{field}: expected a number from 1 to {most}, found {value}"))
}
