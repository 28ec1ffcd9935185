//! GGUF files of the families: metadata keys are translated to the fields of `config.json`, which
//! the family then reads.
//!
//! Source: llama.cpp's converter and its models' `load_arch_hparams` (commit of October 2026). This
//! module also has the converter's changes of tensors: permuted rows of queries and keys, merged
//! tensors. Deviations: where llama.cpp and transformers differ (groups of DeepSeek V2's experts,
//! Phi-3's window), this follows transformers.

pub(crate) mod assistant;
mod autumn;
pub(crate) mod block;
pub(crate) mod eagle3;
mod gemma4;
mod hybrid;

use std::collections::BTreeMap;

use polydraft_gguf::Gguf;
use polydraft_text::Fields;
use serde_json::{Map, Value, json};

use super::FAMILIES;
use super::common::Result;
use super::keys::Keys;
use crate::config::{Config, GGUF_NAMES, NormKind, Positions};
use crate::names::{Names, RecurrentNames};

/// An architecture in GGUF files.
struct GgufFamily {
    /// Name in `general.architecture`.
    name: &'static str,
    /// Architecture in `config.json` of the family that reads the fields.
    family: fn(&Keys) -> &'static str,
    names: &'static Names,
    /// Whether rows of queries and keys are permuted for rotation of neighbours, while the family
    /// rotates halves.
    permuted: bool,
    /// Common keys that are lists in this architecture, which `extra` reads.
    lists: &'static [&'static str],
    /// Translates keys that are not common to all architectures.
    extra: fn(&Keys, &mut Map<String, Value>) -> Result<()>,
}

/// Maximum number of layers that lists are made for, since files are not trusted.
const MAX_LAYERS: usize = 1 << 12;

const BLOCK_OUTPUT_NORMS: Names = Names {
    attention_norms: ["post_attention_norm", ""],
    mlp_norms: ["post_ffw_norm", ""],
    ..GGUF_NAMES
};
const PRE_MLP_NORM: Names = Names { mlp_norms: ["post_attention_norm", ""], ..GGUF_NAMES };
const BLOCKS_WITH_UP: Names = Names { mlp_in: &["ffn_up"], ..GGUF_NAMES };
const PHI3: Names = Names { query_key_value: &["attn_qkv"], ..BLOCKS_WITH_UP };

const PLAIN: GgufFamily = GgufFamily {
    name: "",
    family: |_| "",
    names: &GGUF_NAMES,
    permuted: false,
    lists: &[],
    extra: |_, _| Ok(()),
};

const FILES: &[GgufFamily] = &[
    GgufFamily { name: "llama", family: |_| "MixtralForCausalLM", permuted: true, ..PLAIN },
    GgufFamily { name: "smollm3", family: |_| "SmolLM3ForCausalLM", permuted: true, ..PLAIN },
    GgufFamily {
        name: "granite",
        family: |_| "GraniteForCausalLM",
        permuted: true,
        extra: granite,
        ..PLAIN
    },
    GgufFamily {
        name: "granitemoe",
        family: |keys| match keys.size("expert_shared_feed_forward_length") {
            Ok(Some(1..)) => "GraniteMoeSharedForCausalLM",
            _ => "GraniteMoeForCausalLM",
        },
        permuted: true,
        extra: granite,
        ..PLAIN
    },
    GgufFamily {
        name: "granitehybrid",
        family: |_| "GraniteMoeHybridForCausalLM",
        names: &hybrid::STATE_SPACE,
        permuted: true,
        extra: hybrid::granite,
        ..PLAIN
    },
    GgufFamily {
        name: "nemotron_h",
        family: |_| "NemotronHForCausalLM",
        names: &hybrid::ONE_BLOCK,
        extra: hybrid::nemotron,
        ..PLAIN
    },
    GgufFamily {
        name: "nemotron_h_moe",
        family: |_| "NemotronHForCausalLM",
        names: &hybrid::ONE_BLOCK,
        extra: hybrid::nemotron,
        ..PLAIN
    },
    GgufFamily {
        name: "arcee",
        family: |_| "ArceeForCausalLM",
        names: &BLOCKS_WITH_UP,
        permuted: true,
        ..PLAIN
    },
    GgufFamily {
        name: "mistral3",
        family: |_| "Ministral3ForCausalLM",
        permuted: true,
        extra: ministral3,
        ..PLAIN
    },
    GgufFamily {
        name: "olmo2",
        family: |keys| match keys.size("attention.sliding_window") {
            Ok(Some(1..)) => "Olmo3ForCausalLM",
            _ => "Olmo2ForCausalLM",
        },
        names: &BLOCK_OUTPUT_NORMS,
        extra: olmo3,
        ..PLAIN
    },
    GgufFamily { name: "phi3", family: |_| "Phi3ForCausalLM", names: &PHI3, extra: phi3, ..PLAIN },
    GgufFamily {
        name: "glm4",
        family: |_| "Glm4ForCausalLM",
        names: &Names {
            attention_norms: ["attn_norm", "post_attention_norm"],
            mlp_norms: ["ffn_norm", "post_ffw_norm"],
            ..BLOCKS_WITH_UP
        },
        extra: partial,
        ..PLAIN
    },
    GgufFamily {
        name: "cohere2",
        family: |_| "Cohere2ForCausalLM",
        extra: |keys, fields| {
            fields.extend(keys.number("logit_scale")?.map(|n| ("logit_scale".into(), json!(n))));
            windows(keys, fields, Some(4))
        },
        ..PLAIN
    },
    GgufFamily {
        name: "exaone4",
        family: |_| "Exaone4ForCausalLM",
        names: &BLOCK_OUTPUT_NORMS,
        extra: |keys, fields| {
            // In small models llama.cpp has no window, whatever the file has.
            match keys.size("block_count")? == Some(64) {
                true => windows(keys, fields, Some(4)),
                false => windows(keys, fields, None),
            }
        },
        ..PLAIN
    },
    GgufFamily {
        name: "gemma4",
        family: |_| "Gemma4ForCausalLM",
        names: &gemma4::NAMES,
        lists: &["attention.head_count_kv", "feed_forward_length"],
        extra: gemma4::extra_fields,
        ..PLAIN
    },
    GgufFamily {
        name: "seed_oss",
        family: |_| "SeedOssForCausalLM",
        names: &PRE_MLP_NORM,
        ..PLAIN
    },
    GgufFamily { name: "qwen2vl", family: |_| "Qwen2ForCausalLM", ..PLAIN },
    GgufFamily { name: "qwen3vl", family: |_| "Qwen3ForCausalLM", ..PLAIN },
    GgufFamily { name: "qwen2moe", family: |_| "Qwen2MoeForCausalLM", ..PLAIN },
    GgufFamily {
        name: "qwen3moe",
        family: |_| "Qwen3MoeForCausalLM",
        extra: |_, fields| {
            fields.insert("norm_topk_prob".into(), json!(true));
            Ok(())
        },
        ..PLAIN
    },
    GgufFamily { name: "olmoe", family: |_| "OlmoeForCausalLM", ..PLAIN },
    GgufFamily {
        name: "glm4moe",
        family: |_| "Glm4MoeForCausalLM",
        names: &PRE_MLP_NORM,
        extra: |keys, fields| {
            fields.insert("use_qk_norm".into(), json!(keys.has_tensor("blk.0.attn_q_norm.weight")));
            // Solar Open has no dense layers.
            fields.entry("first_k_dense_replace").or_insert(json!(0));
            partial(keys, fields)
        },
        ..PLAIN
    },
    GgufFamily {
        name: "gpt-oss",
        family: |_| "GptOssForCausalLM",
        names: &PRE_MLP_NORM,
        extra: |keys, fields| {
            if let Some(rope) = fields.get_mut("rope_scaling").and_then(Value::as_object_mut) {
                rope.insert("truncate".into(), json!(false));
            }
            windows(keys, fields, Some(2))
        },
        ..PLAIN
    },
    GgufFamily {
        name: "deepseek2",
        family: |keys| match keys.size("expert_gating_func") {
            Ok(Some(2)) => "DeepseekV3ForCausalLM",
            _ => "DeepseekV2ForCausalLM",
        },
        extra: deepseek,
        ..PLAIN
    },
    GgufFamily {
        name: "qwen3next",
        family: |_| "Qwen3NextForCausalLM",
        names: &Names {
            recurrent: RecurrentNames { strength: "ssm_ba", decay: "", ..GGUF_NAMES.recurrent },
            ..PRE_MLP_NORM
        },
        extra: hybrid::qwen3_next,
        ..PLAIN
    },
    GgufFamily {
        name: "qwen35",
        family: |_| "Qwen3_5ForCausalLM",
        names: &PRE_MLP_NORM,
        extra: hybrid::qwen3_5,
        ..PLAIN
    },
    GgufFamily {
        name: "qwen35moe",
        family: |_| "Qwen3_5MoeForCausalLM",
        names: &PRE_MLP_NORM,
        extra: hybrid::qwen3_5,
        ..PLAIN
    },
    GgufFamily {
        name: "lfm2",
        family: |_| "Lfm2ForCausalLM",
        names: &hybrid::LFM2,
        extra: hybrid::lfm2,
        ..PLAIN
    },
    GgufFamily {
        name: "lfm2moe",
        family: |_| "Lfm2MoeForCausalLM",
        names: &hybrid::LFM2,
        extra: hybrid::lfm2,
        ..PLAIN
    },
];

fn all_files() -> impl Iterator<Item = &'static GgufFamily> {
    FILES.iter().chain(autumn::FILES)
}

/// Supported architectures in GGUF files, by their names in `general.architecture`.
pub fn gguf_architectures() -> impl Iterator<Item = &'static str> {
    all_files().skip(1).map(|file| file.name)
}

/// A configuration, and the head widths of tensors whose rows are permuted.
pub(crate) type GgufConfig = (Config, BTreeMap<String, usize>);

/// Configuration of a file's model; `None` if this module does not read its architecture.
pub(crate) fn config_from_gguf(gguf: &Gguf) -> Option<Result<GgufConfig>> {
    let name = gguf.metadata().str("general.architecture").ok()?;
    let file = all_files().find(|file| file.name == name)?;
    let keys = Keys::new(gguf, file.name);
    // `polydraft_gguf::ModelDescription` reads Llama without experts.
    let experts = keys.size("expert_count").ok().flatten().unwrap_or(0);
    (file.name != "llama" || experts > 0).then(|| read(file, &keys))
}

/// Whether a file has MTP layers without the model that they belong to.
pub(crate) fn has_mtp_only(gguf: &Gguf, config: &Config) -> bool {
    config.mtp_modules > 0 && !gguf.tensors().any(|tensor| tensor.name().starts_with("blk.0."))
}

fn read(file: &GgufFamily, keys: &Keys) -> Result<GgufConfig> {
    keys.reject_unsupported()?;
    let mut fields = keys.common(file.lists)?;
    (file.extra)(keys, &mut fields)?;
    let architecture = (file.family)(keys);
    let family = FAMILIES.iter().find(|family| family.architecture == architecture);
    let family = family.ok_or_else(|| format!("{architecture}: expected a known family"))?;
    let fields = Value::Object(fields);
    let mut config = (family.read)(family, &Fields::new(&fields)?)?;
    config.architecture = file.name;
    config.names = file.names;
    // Biases are detected by their tensors.
    let attention = config.cached_layers().next().unwrap_or(0);
    let has_bias = |part: &str| keys.has_tensor(&format!("blk.{attention}.{part}.bias"));
    config.biases.query_key_value = ["attn_q", "attn_qkv", "attn_q_a"].into_iter().any(has_bias);
    config.biases.output = has_bias("attn_output");
    // Files store 1 + weight for such norms.
    if config.norm == NormKind::RmsPlusOne {
        config.norm = NormKind::Rms;
    }
    config.biases.feed_forward =
        (0..config.layers).any(|layer| keys.has_tensor(&format!("blk.{layer}.ffn_up.bias")));
    config.layer_scales &= keys.has_tensor("blk.0.layer_output_scale.weight");
    let all = config.mtp_layer_numbers().end;
    if let Some(experts) = &mut config.experts {
        experts.scaled &= keys.has_tensor("blk.0.ffn_down_exps.scale");
        experts.corrected =
            (0..all).any(|layer| keys.has_tensor(&format!("blk.{layer}.exp_probs_b.bias")));
    }
    if let (Positions::Rotary(rope), Some(divisors)) =
        (&mut config.positions, keys.numbers("rope_freqs.weight")?)
    {
        rope.divisors = divisors;
    }
    config.check()?;
    let mut permuted = BTreeMap::new();
    if file.permuted {
        for layer in 0..config.layers {
            for part in ["attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias"] {
                permuted.insert(format!("blk.{layer}.{part}"), config.head_dim);
            }
        }
    }
    Ok((config, permuted))
}

fn granite(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    for (key, field) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        // 0 stands for a missing value.
        let value = keys.number(key)?.filter(|value| *value != 0.0);
        fields.extend(value.map(|value| (field.to_owned(), json!(value))));
    }
    if let Some(width) = keys.size("expert_shared_feed_forward_length")? {
        fields.insert("shared_intermediate_size".into(), json!(width));
    }
    if !fields.contains_key("attention_multiplier") {
        let head = keys.head()?.max(1) as f64;
        fields.insert("attention_multiplier".into(), json!(head.powf(-0.5)));
    }
    Ok(())
}

fn ministral3(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let Some(rope) = fields.get_mut("rope_scaling").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    // The two YaRN multipliers are equal in all such models.
    if let Some(weight) = keys.number("rope.scaling.yarn_log_multiplier")?.filter(|w| *w != 0.0) {
        rope.extend(["mscale", "mscale_all_dim"].map(|name| (name.to_owned(), json!(weight))));
    }
    if let Some(beta) = keys.number("attention.temperature_scale")?.filter(|beta| *beta != 0.0) {
        rope.insert("llama_4_scaling_beta".into(), json!(beta));
    }
    Ok(())
}

/// Sets the sliding window of the layers that the file's pattern lists; by default the last of
/// every `period` layers has full attention. Without `period` no layer has a window.
fn windows(keys: &Keys, fields: &mut Map<String, Value>, period: Option<u64>) -> Result<()> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let window = keys.size("attention.sliding_window")?.filter(|window| *window > 0);
    let (Some(window), Some(period)) = (window, period) else {
        fields.insert("sliding_window".into(), Value::Null);
        return Ok(());
    };
    let windowed: Vec<bool> = match keys.bools(PATTERN, layers)? {
        Some(listed) => listed,
        None => {
            let period = keys.size(PATTERN)?.unwrap_or(period);
            (0..layers.min(MAX_LAYERS) as u64)
                .map(|layer| period == 0 || layer % period < period - 1)
                .collect()
        }
    };
    let names = windowed.into_iter().map(|windowed| match windowed {
        true => "sliding_attention",
        false => "full_attention",
    });
    fields.insert("sliding_window".into(), json!(window));
    fields.insert("layer_types".into(), json!(names.collect::<Vec<_>>()));
    Ok(())
}

/// Sliding windows; layers with a window have no RoPE scaling.
fn olmo3(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    if keys.size("attention.sliding_window")?.is_none_or(|window| window == 0) {
        return Ok(());
    }
    windows(keys, fields, Some(4))?;
    let base = fields.get("rope_theta").cloned().unwrap_or_default();
    let mut full = match fields.remove("rope_scaling") {
        Some(Value::Object(scaling)) => scaling,
        _ => Map::new(),
    };
    full.insert("rope_theta".into(), base.clone());
    let swa = keys.number("rope.freq_base_swa")?.map_or(base, |base| json!(base));
    let by_kind = json!({ "full_attention": full, "sliding_attention": { "rope_theta": swa } });
    fields.insert("rope_parameters".into(), by_kind);
    Ok(())
}

/// Partial rotation of heads.
fn partial(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let head = keys.head()?;
    if let Some(rotated) = keys.size("rope.dimension_count")? {
        fields.insert("partial_rotary_factor".into(), json!(rotated as f64 / head as f64));
    }
    Ok(())
}

fn phi3(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    partial(keys, fields)?;
    let window = keys.size("attention.sliding_window")?.filter(|window| *window > 0);
    fields.insert("sliding_window".into(), json!(window));
    if let Some(short) = keys.numbers("rope_factors_short.weight")? {
        let mut scaling = Map::new();
        scaling.insert("rope_type".into(), json!("longrope"));
        scaling.insert("short_factor".into(), json!(short));
        let amplitude = keys.number("rope.scaling.attn_factor")?;
        scaling.insert("attention_factor".into(), json!(amplitude.unwrap_or(1.0)));
        let original = keys.size("rope.scaling.original_context_length")?;
        scaling.insert("original_max_position_embeddings".into(), json!(original));
        fields.insert("rope_scaling".into(), Value::Object(scaling));
    }
    Ok(())
}

fn deepseek(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let or = |key: &str, other: &str| match keys.size(key)? {
        Some(size) => Ok(Some(size)),
        None => keys.size(other),
    };
    let rotated = keys.required("rope.dimension_count")?;
    let key = or("attention.key_length_mla", "attention.key_length")?.unwrap_or(0);
    for (field, value) in [
        ("q_lora_rank", keys.size("attention.q_lora_rank")?.filter(|rank| *rank > 0)),
        ("kv_lora_rank", Some(keys.required("attention.kv_lora_rank")?)),
        ("qk_nope_head_dim", Some(key.saturating_sub(rotated))),
        ("qk_rope_head_dim", Some(rotated)),
        ("v_head_dim", or("attention.value_length_mla", "attention.value_length")?),
        ("num_key_value_heads", None),
        ("head_dim", None),
    ] {
        fields.insert(field.to_owned(), json!(value));
    }
    let is_grouped = keys.size("expert_group_count")?.is_some_and(|count| count > 1);
    let is_v2 = keys.size("expert_gating_func")? != Some(2);
    if is_grouped && is_v2 {
        fields.insert("topk_method".into(), json!("group_limited_greedy"));
    }
    if !is_v2 && !fields.contains_key("norm_topk_prob") {
        fields.insert("norm_topk_prob".into(), json!(false));
    }
    // The key is a tenth of the YaRN multiplier; both multipliers are equal in all such models.
    if let (Some(weight), Some(rope)) = (
        keys.number("rope.scaling.yarn_log_multiplier")?,
        fields.get_mut("rope_scaling").and_then(Value::as_object_mut),
    ) {
        let weight = json!(weight * 10.0);
        rope.extend(["mscale", "mscale_all_dim"].map(|name| (name.to_owned(), weight.clone())));
    }
    Ok(())
}
