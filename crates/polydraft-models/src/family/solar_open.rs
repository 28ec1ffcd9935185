//! Solar Open: experts as in GLM-4.5 in every layer, wholly rotated heads.
//!
//! Source: Upstage 2026.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope, sigmoid_experts};
use crate::config::{Config, Experts};

pub(super) const FAMILY: Family = Family { architecture: "SolarOpenForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 1.0)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases.query_key_value = fields.flag("attention_bias", false)?;
    let experts = sigmoid_experts(&config, fields, [128, 8, 1280])?;
    config.experts = Some(Experts { layers: vec![true; config.layers], ..experts });
    Ok(config)
}
