//! Gemma 2: norms around each block whose weights are offsets from one, soft caps on scores and
//! logits, a sliding window in every other layer, scaled embeddings.
//!
//! Source: Gemma Team 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, set_window, sliding_window};
use crate::config::{Config, NormKind, NormOrder, activation};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Gemma2ForCausalLM", read };

pub(super) const NAMES: Names = Names {
    attention_norms: ["input_layernorm", "post_attention_layernorm"],
    mlp_norms: ["pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = gemma_like(family, fields)?;
    // The default is for a missing field only; null is no cap.
    let cap = |field: &str, default| match fields.number(field)? {
        None if !fields.contains(field) => Ok(Some(default)),
        given => Ok::<_, String>(given),
    };
    config.attention.softcap = cap("attn_logit_softcapping", 50.0)?;
    config.logit_softcap = cap("final_logit_softcapping", 30.0)?;
    set_window(&mut config, fields, sliding_window(fields)?, |layer| layer % 2 == 0)?;
    Ok(config)
}

/// Reads the fields that Gemma 2, 3 and 4 share.
pub(super) fn gemma_like(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    // Published files have a hidden_act too, which the model does not use.
    config.feed_forward.activation = activation(fields, "hidden_activation", "gelu_pytorch_tanh")?;
    config.head_dim = fields.size_or("head_dim", 256, 1 << 12)?;
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.attention.scale = scalar.powf(-0.5);
    config.norm = NormKind::RmsPlusOne;
    config.norm_order = NormOrder::Sandwich;
    config.embedding_scale = (config.hidden as f64).sqrt();
    config.tied = fields.flag("tie_word_embeddings", true)?;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    config.names = &NAMES;
    Ok(config)
}
