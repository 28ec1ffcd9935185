//! OPT: learned positions, layer norms with biases, ReLU without a gate. The 350M model has norms
//! after the blocks and projections around a narrower embedding. Galactica has the same
//! architecture without biases and with norms that have no weights.
//!
//! Source: Zhang et al. 2022.

use polydraft_text::{Fields, end_tokens};

use super::common::{Family, Result};
use crate::config::{
    Attention, Biases, Config, FeedForward, Feedback, NormKind, NormOrder, Positions, activation,
};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "OPTForCausalLM", read };

const NAMES: Names = Names {
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    project_in: "model.decoder.project_in",
    project_out: "model.decoder.project_out",
    layers: "model.decoder.layers",
    query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    attention_output: "self_attn.out_proj",
    qk_norms: ["", ""],
    attention_norms: ["self_attn_layer_norm", ""],
    mlp_norms: ["final_layer_norm", ""],
    mlp_in: &["fc1"],
    mlp_out: "fc2",
    norm: "model.decoder.final_layer_norm",
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let hidden = fields.size("hidden_size", 1 << 17)?;
    let heads = fields.size("num_attention_heads", 1 << 12)?;
    if !hidden.is_multiple_of(heads) {
        return Err(format!(
            "num_attention_heads: expected a divisor of hidden_size = {hidden}, got {heads}"
        ));
    }
    let before = fields.flag("do_layer_norm_before", true)?;
    let bias = fields.flag("enable_bias", true)?;
    let learned_norms = fields.flag("layer_norm_elementwise_affine", true)?;
    Ok(Config {
        architecture: family.architecture,
        vocabulary: fields.size("vocab_size", 1 << 24)?,
        embedding: fields.size_or("word_embed_proj_dim", hidden, 1 << 17)?,
        hidden,
        intermediate: fields.size("ffn_dim", 1 << 20)?,
        layers: fields.size("num_hidden_layers", 1 << 12)?,
        heads,
        key_value_heads: heads,
        head_dim: hidden / heads,
        context: fields.size("max_position_embeddings", 1 << 30)?,
        // The first two rows are padding.
        positions: Positions::Learned { offset: 2 },
        attention: Attention::plain(hidden / heads),
        norm: if learned_norms { NormKind::Layer } else { NormKind::LayerPlain },
        norm_epsilon: 1e-5,
        norm_order: if before { NormOrder::Pre } else { NormOrder::Post },
        final_norm: before && !fields.flag("_remove_final_layer_norm", false)?,
        feed_forward: FeedForward {
            activation: activation(fields, "activation_function", "relu")?,
            gated: false,
        },
        double_wide_mlp: false,
        experts: None,
        blocks: Vec::new(),
        recurrent: None,
        per_layer: None,
        layer_scales: false,
        residual_scale: 1.0,
        logit_scale: 1.0,
        biases: Biases { query_key_value: bias, output: bias, feed_forward: bias },
        embedding_scale: 1.0,
        logit_softcap: None,
        tied: fields.flag("tie_word_embeddings", true)?,
        end_tokens: end_tokens(fields)?,
        mtp_modules: 0,
        mtp_layers: Vec::new(),
        feedback: Feedback::BeforeNorm,
        is_multimodal: false,
        names: &NAMES,
    })
}
