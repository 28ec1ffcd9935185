//! Qwen2-MoE and Qwen3-MoE: Qwen2 and Qwen3 with experts; Qwen2-MoE has a gated shared expert too.
//!
//! Source: Qwen Team 2024; Yang et al. 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, llama_like, plain_experts, set_window, sliding_window};
use crate::config::{Config, Experts, QkNorm, SharedExpert};
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const QWEN2: Family = Family { architecture: "Qwen2MoeForCausalLM", read: read_qwen2 };
pub(super) const QWEN3: Family = Family { architecture: "Qwen3MoeForCausalLM", read: read_qwen3 };

pub(super) const NAMES: Names = Names {
    experts: ExpertNames {
        shared_in: &["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
        shared_out: "mlp.shared_expert.down_proj",
        shared_gate: "mlp.shared_expert_gate",
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read_qwen2(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.biases.query_key_value = fields.flag("qkv_bias", true)?;
    let first = fields.get("max_window_layers")?.unwrap_or(28);
    let window = window(fields)?;
    set_window(&mut config, fields, window, |layer| layer % 2 == 0 && layer < first)?;
    let intermediate = fields.size_or("shared_expert_intermediate_size", 5632, 1 << 20)?;
    let shared = Some(SharedExpert { intermediate, gated: true });
    config.experts = Some(Experts { shared, ..experts(&config, fields, [60, 4, 1408])? });
    config.names = &NAMES;
    Ok(config)
}

fn read_qwen3(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.attention.qk_norm = QkNorm::PerHead;
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    let window = window(fields)?;
    set_window(&mut config, fields, window, |_| true)?;
    config.experts = Some(experts(&config, fields, [128, 8, 768])?);
    config.names = &NAMES;
    Ok(config)
}

fn window(fields: &Fields) -> Result<Option<usize>> {
    match fields.flag("use_sliding_window", false)? {
        true => sliding_window(fields),
        false => Ok(None),
    }
}

/// Reads experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`.
/// `defaults` are the number of experts, the number that compute a token, and their inner width.
pub(super) fn experts(config: &Config, fields: &Fields, defaults: [usize; 3]) -> Result<Experts> {
    // transformers 5 writes `num_local_experts`.
    let count = match fields.contains("num_experts") {
        true => fields.size("num_experts", 1 << 12)?,
        false => fields.size_or("num_local_experts", defaults[0], 1 << 12)?,
    };
    let plain = plain_experts(
        config,
        [
            count,
            fields.size_or("num_experts_per_tok", defaults[1], 1 << 12)?,
            fields.size_or("moe_intermediate_size", defaults[2], 1 << 20)?,
        ],
    );
    let step = fields.size_or("decoder_sparse_step", 1, 1 << 12)?;
    let dense = fields.get::<Vec<usize>>("mlp_only_layers")?.unwrap_or_default();
    let has = |layer: usize| !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    Ok(Experts {
        normalised: fields.flag("norm_topk_prob", false)?,
        layers: (0..config.layers).map(has).collect(),
        ..plain
    })
}
