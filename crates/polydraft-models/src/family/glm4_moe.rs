//! GLM-4.5 and 4.6: experts chosen by corrected sigmoids, with shared ones, after some dense
//! layers; half of each head turned.
//!
//! Source: GLM-4.5 Team 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, extra_layers, llama_turned, sigmoid_experts};
use crate::config::{Config, HeadNorms};

pub(super) const FAMILY: Family = Family { architecture: "Glm4MoeForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_turned(family, fields, 0.5)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases.query_key_value = fields.flag("attention_bias", false)?;
    if fields.flag("use_qk_norm", false)? {
        config.attention.head_norms = HeadNorms::Each;
    }
    config.experts = Some(sigmoid_experts(&config, fields, [128, 8, 1408])?);
    config.extra_layers = extra_layers(fields)?;
    Ok(config)
}
