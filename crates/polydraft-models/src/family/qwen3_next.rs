//! Qwen3-Next and Qwen3.5: three of four layers are recurrent with the gated delta rule, the fourth
//! has gated attention; experts with a shared one, or dense blocks. Norm weights are offsets from
//! one.
//!
//! Source: Qwen Team 2025 and 2026; Yang, Kautz, Hatamizadeh 2025 (Gated Delta Networks).

use polydraft_kernels::{DeltaRule, KeyHeadOrder};
use polydraft_text::Fields;

use super::common::{Family, Result, layers_of_kind, llama_with_rope, plain_experts};
use super::qwen_moe;
use crate::config::{
    Biases, Config, Experts, Feedback, GateFunction, GateRows, Mixer, NormKind, OutputGate, QkNorm,
    Recurrent, Rope, SharedExpert,
};
use crate::names::{Names, RecurrentNames};

pub(super) const NEXT: Family = Family { architecture: "Qwen3NextForCausalLM", read: read_next };
pub(super) const DENSE: Family = Family { architecture: "Qwen3_5ForCausalLM", read };
pub(super) const MOE: Family = Family { architecture: "Qwen3_5MoeForCausalLM", read: read_moe };

/// Names with merged projections: one tensor in place of two.
const NEXT_NAMES: Names = Names {
    recurrent: RecurrentNames {
        into: "linear_attn.in_proj_qkvz",
        gate: "",
        strength: "linear_attn.in_proj_ba",
        decay: "",
        ..qwen_moe::NAMES.recurrent
    },
    ..qwen_moe::NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    const WIDEST: usize = 1 << 12;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let head = fields.size_or("head_dim", 256, WIDEST)?;
    let mut config = llama_with_rope(family, fields, Rope::partial(fields, context, head, 0.25)?)?;
    config.head_dim = head;
    config.attention.scale = (head as f64).powf(-0.5);
    config.attention.qk_norm = QkNorm::PerHead;
    config.attention.gate =
        Some(OutputGate { rows: GateRows::AfterQueries, function: GateFunction::Sigmoid });
    config.norm = NormKind::RmsPlusOne;
    let bias = fields.flag("attention_bias", false)?;
    config.biases = Biases { query_key_value: bias, output: bias, feed_forward: false };
    let order = match fields.flag("linear_heads_in_turn", false)? {
        true => KeyHeadOrder::Interleaved,
        false => KeyHeadOrder::Grouped,
    };
    config.recurrent = Some(Recurrent {
        mixer: Mixer::Delta(DeltaRule {
            key_heads: fields.size_or("linear_num_key_heads", 16, WIDEST)?,
            value_heads: fields.size_or("linear_num_value_heads", 32, WIDEST)?,
            key: fields.size_or("linear_key_head_dim", 128, WIDEST)?,
            value: fields.size_or("linear_value_head_dim", 128, WIDEST)?,
            order,
        }),
        kernel: fields.size_or("linear_conv_kernel_dim", 4, 1 << 8)?,
        layers: recurrent_layers(&config, fields)?,
    });
    // Modules without tensors are dropped later.
    config.mtp_modules = fields.get::<usize>("mtp_num_hidden_layers")?.unwrap_or(1).min(1 << 8);
    config.feedback = Feedback::AfterNorm;
    Ok(config)
}

/// Recurrent layers as listed, or all but every `full_attention_interval`-th.
fn recurrent_layers(config: &Config, fields: &Fields) -> Result<Vec<bool>> {
    if let Some(listed) = layers_of_kind(fields, "linear_attention")? {
        return Ok(listed);
    }
    let interval = fields.size_or("full_attention_interval", 4, 1 << 12)?;
    Ok((1..=config.layers).map(|layer| !layer.is_multiple_of(interval)).collect())
}

fn read_next(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    let mut experts = qwen_moe::experts(&config, fields, [512, 10, 512])?;
    experts.normalised = fields.flag("norm_topk_prob", true)?;
    experts.shared = Some(shared(fields)?);
    config.experts = Some(experts);
    config.names = &NEXT_NAMES;
    Ok(config)
}

fn read_moe(family: &Family, fields: &Fields) -> Result<Config> {
    // All layers have experts.
    let mut config = read(family, fields)?;
    let shape = [
        fields.size_or("num_experts", 256, 1 << 12)?,
        fields.size_or("num_experts_per_tok", 8, 1 << 12)?,
        fields.size_or("moe_intermediate_size", 512, 1 << 20)?,
    ];
    let plain = plain_experts(&config, shape);
    config.experts = Some(Experts { normalised: true, shared: Some(shared(fields)?), ..plain });
    config.names = &qwen_moe::NAMES;
    Ok(config)
}

/// Reads the shared expert.
fn shared(fields: &Fields) -> Result<SharedExpert> {
    let intermediate = fields.size_or("shared_expert_intermediate_size", 512, 1 << 20)?;
    Ok(SharedExpert { intermediate, gated: true })
}
