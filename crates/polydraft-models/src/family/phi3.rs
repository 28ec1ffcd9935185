//! Phi-3, 3.5 and 4: Llama with merged matrices for queries, keys and values, and for gate and up
//! projections. Phi-4-mini has partial rotation, and long-context models have LongRoPE.
//!
//! Source: Abdin et al. 2024; Microsoft 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope, set_window};
use crate::config::Config;
use crate::names::{LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "Phi3ForCausalLM", read };

const NAMES: Names = Names {
    query_key_value: &["self_attn.qkv_proj"],
    mlp_in: &["mlp.gate_up_proj"],
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 1.0)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    let window = fields.get::<usize>("sliding_window")?.filter(|window| *window < config.context);
    set_window(&mut config, fields, window, |_| true)?;
    config.names = &NAMES;
    Ok(config)
}
