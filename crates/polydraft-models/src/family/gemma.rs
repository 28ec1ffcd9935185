//! Gemma 1: norms whose weights are offsets from one, scaled embeddings.
//!
//! Source: Gemma Team 2024.

use polydraft_kernels::Activation;
use polydraft_text::Fields;

use super::common::{Family, Result, llama_like};
use crate::config::{Config, NormKind, activation};

pub(super) const FAMILY: Family = Family { architecture: "GemmaForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    // Older files say gelu, and mean its approximation.
    config.feed_forward.activation = match activation(fields, "hidden_act", "gelu_pytorch_tanh")? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    config.head_dim = fields.size_or("head_dim", 256, 1 << 12)?;
    config.attention.scale = (config.head_dim as f64).powf(-0.5);
    config.norm = NormKind::RmsPlusOne;
    config.embedding_scale = (config.hidden as f64).sqrt();
    config.tied = fields.flag("tie_word_embeddings", true)?;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    Ok(config)
}
