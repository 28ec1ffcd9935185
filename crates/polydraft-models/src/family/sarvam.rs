//! Sarvam: GLM-4.5's experts with wholly rotated heads and tensors of other names, or the
//! architecture of DeepSeek V3.
//!
//! Source: Sarvam AI 2026.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_with_partial_rope, mtp_modules, sigmoid_experts};
use super::deepseek::read_latent;
use crate::config::{Config, QkNorm};
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "SarvamMoEForCausalLM", read };
pub(super) const LATENT: Family =
    Family { architecture: "SarvamMLAForCausalLM", read: read_latent_family };

const NAMES: Names = Names {
    embedding: "model.word_embeddings",
    query_key_value: &["attention.query_key_value"],
    attention_output: "attention.dense",
    qk_norms: ["attention.query_layernorm", "attention.key_layernorm"],
    experts: ExpertNames { correction: "mlp.gate.expert_bias", ..LLAMA_NAMES.experts },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_with_partial_rope(family, fields, 1.0)?;
    let bias = fields.flag("attention_bias", false)?;
    config.biases.query_key_value = fields.flag("use_qkv_bias", bias)?;
    if fields.flag("use_qk_norm", true)? {
        config.attention.qk_norm = QkNorm::PerHead;
    }
    config.experts = Some(sigmoid_experts(&config, fields, [128, 6, 1024])?);
    config.mtp_modules = mtp_modules(fields)?;
    config.names = &NAMES;
    Ok(config)
}

fn read_latent_family(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, None)?;
    config.experts = Some(sigmoid_experts(&config, fields, [128, 8, 2048])?);
    Ok(config)
}
