//! OLMoE: OLMo with experts, and norms of queries and keys across heads.
//!
//! Source: Muennighoff et al. 2024.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, plain_experts};
use crate::config::{Config, Experts, QkNorm};

pub(super) const FAMILY: Family = Family { architecture: "OlmoeForCausalLM", read };

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    if let Some(cap) = fields.number("clip_qkv")? {
        return Err(format!("clip_qkv: expected null, got {cap}"));
    }
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.attention.qk_norm = QkNorm::AcrossHeads;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    let experts = plain_experts(
        &config,
        [
            fields.size_or("num_experts", 64, 1 << 12)?,
            fields.size_or("num_experts_per_tok", 8, 1 << 12)?,
            config.intermediate,
        ],
    );
    let normalised = fields.flag("norm_topk_prob", false)?;
    config.experts = Some(Experts { normalised, ..experts });
    Ok(config)
}
