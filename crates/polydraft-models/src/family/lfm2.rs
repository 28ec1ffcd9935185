//! LFM2, LFM2-MoE and LFM3: most layers are a short convolution over tokens between two gates, the
//! others have attention. LFM3 has norms around its blocks, a gate per head, and attention with a
//! sliding window and a rotation of its own in every other such layer.
//!
//! Source: Liquid AI 2025 and 2026.

use polydraft_text::Fields;

use super::common::{
    Family, Result, layers_of_kind, llama_like, llama_with_rotations, plain_experts,
};
use crate::config::{
    Config, Experts, GateFunction, GateRows, Mixer, NormOrder, OutputGate, QkNorm, Recurrent,
    RouterScores,
};
use crate::names::{ExpertNames, LLAMA_NAMES, Names, RecurrentNames};

pub(super) const FAMILY: Family = Family { architecture: "Lfm2ForCausalLM", read };
pub(super) const LFM3: Family = Family { architecture: "Lfm3ForCausalLM", read: read_lfm3 };
pub(super) const MOE: Family = Family { architecture: "Lfm2MoeForCausalLM", read: read_moe };

const NAMES: Names = Names {
    attention_output: "self_attn.out_proj",
    qk_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
    attention_norms: ["operator_norm", ""],
    mlp_norms: ["ffn_norm", ""],
    mlp_in: &["feed_forward.w1", "feed_forward.w3"],
    mlp_out: "feed_forward.w2",
    norm: "model.embedding_norm",
    experts: ExpertNames {
        router: "feed_forward.gate",
        correction: "feed_forward.expert_bias",
        mlp_in: &["feed_forward.experts.#.w1", "feed_forward.experts.#.w3"],
        mlp_out: "feed_forward.experts.#.w2",
        ..LLAMA_NAMES.experts
    },
    recurrent: RecurrentNames {
        into: "conv.in_proj",
        convolution: "conv.conv",
        output: "conv.out_proj",
        ..LLAMA_NAMES.recurrent
    },
    ..LLAMA_NAMES
};

const LFM3_NAMES: Names = Names {
    attention_output: "self_attn.o_proj",
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    attention_norms: ["operator_norm", "post_operator_norm"],
    mlp_norms: ["ffn_norm", "post_ffn_norm"],
    ..NAMES
};

/// Reads the fields that LFM2 and LFM2-MoE share.
fn read_common(family: &Family, fields: &Fields) -> Result<Config> {
    let mut renamed = fields.to_value();
    // Some files have the second name only.
    if let (Some(inner), false) =
        (fields.get::<usize>("block_ff_dim")?, fields.contains("intermediate_size"))
    {
        renamed["intermediate_size"] = inner.into();
    }
    let mut config = llama_like(family, &Fields::new(&renamed)?)?;
    config.norm_epsilon = fields.number("norm_eps")?.unwrap_or(1e-5);
    config.attention.qk_norm = QkNorm::PerHead;
    config.tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", true)?)?;
    config.recurrent = Some(Recurrent {
        mixer: Mixer::Convolution { biased: fields.flag("conv_bias", false)? },
        kernel: fields.size_or("conv_L_cache", 3, 1 << 8)?,
        layers: convolutions(&config, fields)?,
    });
    config.names = &NAMES;
    Ok(config)
}

fn convolutions(config: &Config, fields: &Fields) -> Result<Vec<bool>> {
    if let Some(listed) = layers_of_kind(fields, "conv")? {
        return Ok(listed);
    }
    let attention = fields.get::<Vec<usize>>("full_attn_idxs")?;
    let attention = attention.unwrap_or_else(|| (0..config.layers).collect());
    Ok((0..config.layers).map(|layer| !attention.contains(&layer)).collect())
}

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_common(family, fields)?;
    let inner = fields.size_or("block_ff_dim", config.intermediate, 1 << 20)?;
    config.intermediate = inner;
    if fields.flag("block_auto_adjust_ff_dim", true)? {
        let factor = fields.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        let multiple = fields.size_or("block_multiple_of", 256, 1 << 20)?;
        // Rounded down twice, then up, as in the training of the models.
        let inner = (factor * (2 * inner / 3) as f64) as usize;
        config.intermediate = inner.min(1 << 22).next_multiple_of(multiple);
    }
    Ok(config)
}

fn read_lfm3(family: &Family, fields: &Fields) -> Result<Config> {
    let (mut config, windowed) = llama_with_rotations(family, fields)?;
    config.norm_epsilon = fields.number("norm_eps")?.unwrap_or(1e-5);
    config.tied = fields.flag("tie_word_embeddings", true)?;
    if fields.flag("use_sandwich_norm", true)? {
        config.norm_order = NormOrder::Sandwich;
    }
    if fields.flag("use_attention_gate", true)? {
        config.attention.gate =
            Some(OutputGate { rows: GateRows::PerHead, function: GateFunction::Sigmoid });
    }
    let kinds = match fields.get::<Vec<String>>("layer_types")? {
        Some(listed) => listed,
        None => (0..config.layers).map(|layer| default_kind(layer).to_owned()).collect(),
    };
    let known = ["conv", "sliding_attention", "full_attention"];
    if let Some(other) = kinds.iter().find(|kind| !known.contains(&&kind[..])) {
        return Err(format!("layer_types: expected one of {}, got {other:?}", known.join(", ")));
    }
    let are = |name: &str| kinds.iter().map(|kind| kind == name).collect::<Vec<_>>();
    let window = match fields.contains("sliding_window") {
        true => fields.get::<usize>("sliding_window")?,
        false => Some(256),
    };
    config.attention.windowed = are("sliding_attention");
    config.attention.window = window.filter(|_| config.attention.windowed.contains(&true));
    config.attention.window_rope = config.attention.window.map(|_| windowed);
    config.recurrent = Some(Recurrent {
        mixer: Mixer::Convolution { biased: fields.flag("conv_bias", false)? },
        kernel: fields.size_or("conv_L_cache", 7, 1 << 8)?,
        layers: are("conv"),
    });
    config.names = &LFM3_NAMES;
    Ok(config)
}

/// Kind of a layer in models that do not list them.
fn default_kind(layer: usize) -> &'static str {
    match layer % 4 {
        2 => "full_attention",
        0 if layer > 0 => "sliding_attention",
        _ => "conv",
    }
}

fn read_moe(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_common(family, fields)?;
    let shape = [
        fields.size_or("num_experts", 32, 1 << 12)?,
        fields.size_or("num_experts_per_tok", 4, 1 << 12)?,
        fields.size_or("moe_intermediate_size", 1792, 1 << 20)?,
    ];
    let dense = fields.get::<usize>("num_dense_layers")?.unwrap_or(2);
    config.experts = Some(Experts {
        scores: RouterScores::Sigmoid,
        normalised: fields.flag("norm_topk_prob", true)?,
        scale: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
        corrected: fields.flag("use_expert_bias", true)?,
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(&config, shape)
    });
    Ok(config)
}
