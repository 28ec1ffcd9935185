//! GLM-4 (0414): norms around the blocks, half of each head rotated, in pairs of neighbours; gate
//! and up projections in one matrix.
//!
//! Source: GLM Team 2024; Zhipu AI 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope};
use crate::config::{Config, NormOrder, Positions, RotaryPairs};
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Glm4ForCausalLM", read };
pub(super) const GLM: Family = Family { architecture: "GlmForCausalLM", read: read_glm };

const GLM_NAMES: Names = Names { mlp_in: &["mlp.gate_up_proj"], ..LLAMA_NAMES };
const NAMES: Names = Names {
    attention_norms: ["input_layernorm", "post_self_attn_layernorm"],
    mlp_norms: ["post_attention_layernorm", "post_mlp_layernorm"],
    ..GLM_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let config = read_glm(family, fields)?;
    Ok(Config { norm_order: NormOrder::Sandwich, names: &NAMES, ..config })
}

/// GLM-4 of 2024, with norms before the blocks.
fn read_glm(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 0.5)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1.5625e-7);
    config.biases.query_key_value = fields.flag("attention_bias", true)?;
    if let Positions::Rotary(rope) = &mut config.positions {
        rope.pairs = RotaryPairs::Neighbours;
    }
    config.names = &GLM_NAMES;
    Ok(config)
}
