//! GLM-4.5 and 4.6: experts as in DeepSeek V3 with dense first layers; half of each head rotated.
//!
//! Source: GLM-4.5 Team 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope, mtp_modules, sigmoid_experts};
use crate::config::{Config, QkNorm};

pub(super) const FAMILY: Family = Family { architecture: "Glm4MoeForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 0.5)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.biases.query_key_value = fields.flag("attention_bias", false)?;
    if fields.flag("use_qk_norm", false)? {
        config.attention.qk_norm = QkNorm::PerHead;
    }
    config.experts = Some(sigmoid_experts(&config, fields, [128, 8, 1408])?);
    config.mtp_modules = mtp_modules(fields)?;
    Ok(config)
}
