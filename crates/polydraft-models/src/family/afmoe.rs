//! AFMoE (Trinity): norms around the blocks, a gate of the attention's output, positions in layers
//! with a sliding window only, experts with sigmoid scores.
//!
//! Source: Arcee AI 2025.

use polydraft_text::Fields;

use super::common::{Family, Result, layers_of_kind, llama_like, plain_experts, set_window};
use crate::config::{
    Config, Experts, GateFunction, GateRows, NormOrder, OutputGate, QkNorm, RouterScores,
    SharedExpert,
};
use crate::names::{ExpertNames, LLAMA_NAMES, Names};

pub(super) const FAMILY: Family = Family { architecture: "AfmoeForCausalLM", read };

const NAMES: Names = Names {
    attention_norms: ["input_layernorm", "post_attention_layernorm"],
    mlp_norms: ["pre_mlp_layernorm", "post_mlp_layernorm"],
    experts: ExpertNames {
        router: "mlp.router.gate",
        correction: "mlp.expert_bias",
        ..LLAMA_NAMES.experts
    },
    ..LLAMA_NAMES
};

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = llama_like(family, fields)?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    config.norm_order = NormOrder::Sandwich;
    config.attention.qk_norm = QkNorm::PerHead;
    config.attention.gate =
        Some(OutputGate { rows: GateRows::PerNumber, function: GateFunction::Sigmoid });
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    if fields.flag("mup_enabled", false)? {
        config.embedding_scale = (config.hidden as f64).sqrt();
    }
    let period = fields.size_or("global_attn_every_n_layers", 4, 1 << 12)?;
    let is_local = |layer: usize| !(layer + 1).is_multiple_of(period);
    let listed = layers_of_kind(fields, "sliding_attention")?;
    let local = listed.unwrap_or_else(|| (0..config.layers).map(is_local).collect());
    let window = match fields.contains("sliding_window") {
        true => fields.get::<usize>("sliding_window")?,
        false => Some(1024),
    };
    set_window(&mut config, fields, window, is_local)?;
    config.attention.unrotated = local.iter().map(|local| !local).collect();
    let width = fields.size_or("moe_intermediate_size", 1408, 1 << 20)?;
    let shape = [
        fields.size_or("num_experts", 64, 1 << 12)?,
        fields.size_or("num_experts_per_tok", 6, 1 << 12)?,
        width,
    ];
    let shared = fields.get::<usize>("num_shared_experts")?.unwrap_or(2).min(1 << 8);
    let dense = fields.get::<usize>("num_dense_layers")?.unwrap_or(1);
    config.experts = Some(Experts {
        scores: RouterScores::Sigmoid,
        normalised: true,
        scale: fields.number("route_scale")?.unwrap_or(1.0),
        corrected: true,
        shared: (shared > 0).then(|| SharedExpert { intermediate: shared * width, gated: false }),
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(&config, shape)
    });
    config.names = &NAMES;
    Ok(config)
}
