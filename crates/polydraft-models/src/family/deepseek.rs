//! DeepSeek V2, V3, R1 and what is built like them (Kimi K2, Moonlight): a KV cache of one vector a
//! token, many small experts with shared ones, after some dense layers.
//!
//! Source: DeepSeek-AI 2024 (V2, V3).

use polydraft_text::Fields;

use super::common::{Family, Result, extra_layers, llama_with, plain_experts, sigmoid_experts};
use crate::config::{Config, Experts, Groups, Latent, Pairs, Rope, Shared};

pub(super) const V2: Family = Family { architecture: "DeepseekV2ForCausalLM", read: read_v2 };
pub(super) const V3: Family = Family { architecture: "DeepseekV3ForCausalLM", read: read_v3 };

/// What both share.
fn read(family: &Family, fields: &Fields) -> Result<Config> {
    const WIDEST: usize = 1 << 14;
    let context = fields.size("max_position_embeddings", 1 << 30)?;
    let pairs = match fields.flag("rope_interleave", true)? {
        true => Pairs::Neighbours,
        false => Pairs::Halves,
    };
    let rope = Rope { pairs, ..Rope::read(fields, context)? };
    let mut config = llama_with(family, fields, rope)?;
    let query_rank = match fields.given("q_lora_rank") {
        true => fields.get("q_lora_rank")?,
        false => Some(1536),
    };
    if query_rank.is_some_and(|rank| !(1..=WIDEST).contains(&rank)) {
        return Err(format!("q_lora_rank: expected null or at most {WIDEST}, got {query_rank:?}"));
    }
    let latent = Latent {
        query_rank,
        rank: fields.size_or("kv_lora_rank", 512, WIDEST)?,
        plain: fields.size_or("qk_nope_head_dim", 128, WIDEST)?,
        rotated: fields.size_or("qk_rope_head_dim", 64, WIDEST)?,
        value: fields.size_or("v_head_dim", 128, WIDEST)?,
    };
    // What is turned is as wide as a head elsewhere.
    config.head = latent.rotated;
    config.key_value_heads = config.heads;
    config.attention.scale =
        ((latent.plain + latent.rotated) as f64).powf(-0.5) * stretched(fields)?.powi(2);
    config.attention.latent = Some(latent);
    let bias = fields.flag("attention_bias", false)?;
    (config.biases.query_key_value, config.biases.output) = (bias, bias);
    config.extra_layers = extra_layers(fields)?;
    Ok(config)
}

/// What a stretched context multiplies scores by, twice.
fn stretched(fields: &Fields) -> Result<f64> {
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
    let mut config = read(family, fields)?;
    if fields.flag("norm_topk_prob", false)? {
        return Err("norm_topk_prob: expected false, got true".to_owned());
    }
    let intermediate = fields.size_or("moe_intermediate_size", 1407, 1 << 20)?;
    let count = fields.size_or("n_routed_experts", 64, 1 << 12)?;
    let used = fields.size("num_experts_per_tok", 1 << 12)?;
    let groups = match fields.get::<String>("topk_method")?.as_deref() {
        None | Some("greedy") => None,
        Some("group_limited_greedy") => Some(Groups {
            count: fields.size("n_group", 1 << 12)?,
            used: fields.size("topk_group", 1 << 12)?,
            best: 1,
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
        shared: (shared > 0).then(|| Shared { intermediate: shared * intermediate, gated: false }),
        layers: (0..config.layers).map(|layer| layer >= dense).collect(),
        ..plain_experts(&config, [count, used, intermediate])
    });
    Ok(config)
}

fn read_v3(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read(family, fields)?;
    config.experts = Some(sigmoid_experts(&config, fields, [256, 8, 2048])?);
    Ok(config)
}
