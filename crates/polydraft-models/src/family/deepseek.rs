//! DeepSeek V2, V3, R1 and models with the same architecture (Kimi K2, Moonlight): multi-head
//! latent attention, many small experts with shared ones, dense first layers. GLM-4.7-Flash lists
//! its dense layers, Mistral 4 has softmax scores and scales queries by position, and Youtu has no
//! experts.
//!
//! Source: DeepSeek-AI 2024 (V2, V3); Zhipu AI 2026; Mistral AI 2026; Tencent 2025.

use polydraft_text::Fields;

use super::common::{
    Family, Result, llama_with_rope, mtp_modules, plain_experts, query_scaling, sigmoid_experts,
    sparse_layers,
};
use crate::config::{
    Config, ExpertGroups, Experts, LatentShape, Rope, RotaryPairs, RouterScores, SharedExpert,
};

pub(super) const V2: Family = Family { architecture: "DeepseekV2ForCausalLM", read: read_v2 };
pub(super) const V3: Family = Family { architecture: "DeepseekV3ForCausalLM", read: read_v3 };
pub(super) const GLM: Family = Family { architecture: "Glm4MoeLiteForCausalLM", read: read_glm };
pub(super) const MISTRAL4: Family =
    Family { architecture: "Mistral4ForCausalLM", read: read_mistral4 };
pub(super) const YOUTU: Family = Family { architecture: "YoutuForCausalLM", read: read_youtu };

/// Reads the fields that all of them share; `query_rank` is the default rank of compressed queries.
pub(super) fn read_latent(
    family: &Family,
    fields: &Fields,
    query_rank: Option<usize>,
) -> Result<Config> {
    const WIDEST: usize = 1 << 14;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let pairs = match fields.flag("rope_interleave", true)? {
        true => RotaryPairs::Neighbours,
        false => RotaryPairs::Halves,
    };
    let query_rank = match fields.contains("q_lora_rank") {
        true => fields.get("q_lora_rank")?,
        false => query_rank,
    };
    if query_rank.is_some_and(|rank| !(1..=WIDEST).contains(&rank)) {
        return Err(format!("q_lora_rank: expected null or at most {WIDEST}, got {query_rank:?}"));
    }
    let latent = LatentShape {
        query_rank,
        rank: fields.size_or("kv_lora_rank", 512, WIDEST)?,
        plain: fields.size_or("qk_nope_head_dim", 128, WIDEST)?,
        rotated: fields.size_or("qk_rope_head_dim", 64, WIDEST)?,
        value: fields.size_or("v_head_dim", 128, WIDEST)?,
    };
    let whole = latent.plain + latent.rotated;
    let rope = Rope::partial(fields, context, whole, 1.0)?;
    // A fraction may say what the widths of a head say too.
    if let Some(got) = rope.dimensions.filter(|rotated| *rotated != latent.rotated) {
        let rotated = latent.rotated;
        return Err(format!(
            "partial_rotary_factor: expected 1, or {rotated} of {whole} numbers, got {got}"
        ));
    }
    let mut config = llama_with_rope(family, fields, Rope { pairs, dimensions: None, ..rope })?;
    // RoPE applies to heads of `head_dim`, here the rotated part alone.
    config.head_dim = latent.rotated;
    config.key_value_heads = config.heads;
    config.attention.scale = (whole as f64).powf(-0.5) * yarn_factor(fields)?.powi(2);
    config.attention.latent = Some(latent);
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    config.mtp_modules = mtp_modules(fields)?;
    Ok(config)
}

/// Factor of queries and of keys in an extended context (YaRN).
fn yarn_factor(fields: &Fields) -> Result<f64> {
    let rope = match fields.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => fields.object("rope_parameters")?,
    };
    let Some(rope) = rope else { return Ok(1.0) };
    match (rope.number("factor")?, rope.get::<f64>("mscale_all_dim")?.unwrap_or(0.0)) {
        (Some(factor), weight) if factor > 1.0 && weight != 0.0 => {
            Ok(0.1 * weight * factor.ln() + 1.0)
        }
        _ => Ok(1.0),
    }
}

fn read_v2(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, Some(1536))?;
    if fields.flag("norm_topk_prob", false)? {
        return Err("norm_topk_prob: expected false, got true".to_owned());
    }
    let intermediate = fields.size_or("moe_intermediate_size", 1407, 1 << 20)?;
    let count = fields.size_or("n_routed_experts", 64, 1 << 12)?;
    let used = fields.size("num_experts_per_tok", 1 << 12)?;
    let groups = match fields.get::<String>("topk_method")?.as_deref() {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => Some(ExpertGroups {
            count: fields.size("n_group", 1 << 12)?,
            used: fields.size("topk_group", 1 << 12)?,
            best_scores: 1,
        }),
        Some(other) => {
            let expected = "greedy or group_limited_greedy";
            return Err(format!("topk_method: expected {expected}, got {other:?}"));
        }
    };
    let shared = fields.get::<usize>("n_shared_experts")?.unwrap_or(2).min(1 << 8);
    let dense = fields.get::<usize>("first_k_dense_replace")?.unwrap_or(0);
    config.experts = Some(Experts {
        scale: fields.number("routed_scaling_factor")?.unwrap_or(1.0),
        groups,
        shared: (shared > 0)
            .then(|| SharedExpert { intermediate: shared * intermediate, gated: false }),
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(&config, [count, used, intermediate])
    });
    Ok(config)
}

fn read_v3(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, Some(1536))?;
    config.experts = Some(sigmoid_experts(&config, fields, [256, 8, 2048])?);
    Ok(config)
}

fn read_glm(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, Some(768))?;
    config.norm_epsilon = fields.number("rms_norm_eps")?.unwrap_or(1e-5);
    let experts = sigmoid_experts(&config, fields, [64, 4, 1536])?;
    let layers = sparse_layers(fields, &experts.layers)?;
    config.experts = Some(Experts { layers, ..experts });
    Ok(config)
}

fn read_mistral4(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, Some(1024))?;
    config.attention.query_scaling = query_scaling(fields)?;
    let experts = sigmoid_experts(&config, fields, [128, 4, 2048])?;
    let dense = fields.get::<usize>("first_k_dense_replace")?.unwrap_or(0);
    config.experts = Some(Experts {
        scores: RouterScores::Softmax,
        corrected: false,
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..experts
    });
    Ok(config)
}

fn read_youtu(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_latent(family, fields, Some(1536))?;
    config.tied = fields.flag("tie_word_embeddings", true)?;
    Ok(config)
}
