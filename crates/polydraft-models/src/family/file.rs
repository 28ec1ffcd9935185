//! GGUF files of the families: their keys become the fields that `config.json` would have, and the
//! family reads those.
//!
//! Source: llama.cpp's converter and its models' `load_arch_hparams` (commit of October 2026). What
//! the converter changes in tensors is here too: queries and keys in another order of rows, several
//! tensors in one. Deviations: where llama.cpp computes something else than transformers (groups of
//! DeepSeek V2's experts, Phi-3's window), transformers counts.

pub(crate) mod assistant;
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
use crate::config::{Config, FILE_NAMES, NormKind, Positions};
use crate::names::{Names, RecurrentNames};

/// A family in GGUF files.
struct InFile {
    /// As `general.architecture` names it.
    name: &'static str,
    /// The family that reads it; of several the one that the keys say.
    family: fn(&Keys) -> &'static str,
    names: &'static Names,
    /// Whether rows of queries and keys are in the order of neighbours, where the family's own is
    /// that of halves.
    permuted: bool,
    /// Common keys that are lists there, which `more` reads.
    lists: &'static [&'static str],
    /// What it has besides the common keys.
    more: fn(&Keys, &mut Map<String, Value>) -> Result<()>,
}

/// No more are listed: a file's number is a stranger's claim.
const MOST_LAYERS: usize = 1 << 12;

const BEHIND: Names = Names {
    attention_norms: ["post_attention_norm", ""],
    mlp_norms: ["post_ffw_norm", ""],
    ..FILE_NAMES
};
const POST: Names = Names { mlp_norms: ["post_attention_norm", ""], ..FILE_NAMES };
const UP: Names = Names { mlp_in: &["ffn_up"], ..FILE_NAMES };
const PHI3: Names = Names { query_key_value: &["attn_qkv"], ..UP };

const PLAIN: InFile = InFile {
    name: "",
    family: |_| "",
    names: &FILE_NAMES,
    permuted: false,
    lists: &[],
    more: |_, _| Ok(()),
};

const FILES: &[InFile] = &[
    InFile { name: "llama", family: |_| "MixtralForCausalLM", permuted: true, ..PLAIN },
    InFile { name: "smollm3", family: |_| "SmolLM3ForCausalLM", permuted: true, ..PLAIN },
    InFile {
        name: "granite",
        family: |_| "GraniteForCausalLM",
        permuted: true,
        more: granite,
        ..PLAIN
    },
    InFile {
        name: "granitemoe",
        family: |keys| match keys.size("expert_shared_feed_forward_length") {
            Ok(Some(1..)) => "GraniteMoeSharedForCausalLM",
            _ => "GraniteMoeForCausalLM",
        },
        permuted: true,
        more: granite,
        ..PLAIN
    },
    InFile {
        name: "granitehybrid",
        family: |_| "GraniteMoeHybridForCausalLM",
        names: &hybrid::STATE_SPACE,
        permuted: true,
        more: hybrid::granite,
        ..PLAIN
    },
    InFile {
        name: "nemotron_h",
        family: |_| "NemotronHForCausalLM",
        names: &hybrid::ONE_BLOCK,
        more: hybrid::nemotron,
        ..PLAIN
    },
    InFile {
        name: "nemotron_h_moe",
        family: |_| "NemotronHForCausalLM",
        names: &hybrid::ONE_BLOCK,
        more: hybrid::nemotron,
        ..PLAIN
    },
    InFile { name: "arcee", family: |_| "ArceeForCausalLM", names: &UP, permuted: true, ..PLAIN },
    InFile {
        name: "mistral3",
        family: |_| "Ministral3ForCausalLM",
        permuted: true,
        more: ministral3,
        ..PLAIN
    },
    InFile {
        name: "olmo2",
        family: |keys| match keys.size("attention.sliding_window") {
            Ok(Some(1..)) => "Olmo3ForCausalLM",
            _ => "Olmo2ForCausalLM",
        },
        names: &BEHIND,
        more: olmo3,
        ..PLAIN
    },
    InFile { name: "phi3", family: |_| "Phi3ForCausalLM", names: &PHI3, more: phi3, ..PLAIN },
    InFile {
        name: "glm4",
        family: |_| "Glm4ForCausalLM",
        names: &Names {
            attention_norms: ["attn_norm", "post_attention_norm"],
            mlp_norms: ["ffn_norm", "post_ffw_norm"],
            ..UP
        },
        more: partial,
        ..PLAIN
    },
    InFile {
        name: "cohere2",
        family: |_| "Cohere2ForCausalLM",
        more: |keys, fields| {
            fields.extend(keys.number("logit_scale")?.map(|n| ("logit_scale".into(), json!(n))));
            windows(keys, fields, Some(4))
        },
        ..PLAIN
    },
    InFile {
        name: "exaone4",
        family: |_| "Exaone4ForCausalLM",
        names: &BEHIND,
        more: |keys, fields| {
            // Of the small ones llama.cpp has no window, whatever the file says.
            match keys.size("block_count")? == Some(64) {
                true => windows(keys, fields, Some(4)),
                false => windows(keys, fields, None),
            }
        },
        ..PLAIN
    },
    InFile {
        name: "gemma4",
        family: |_| "Gemma4ForCausalLM",
        names: &gemma4::NAMES,
        lists: &["attention.head_count_kv", "feed_forward_length"],
        more: gemma4::more,
        ..PLAIN
    },
    InFile { name: "seed_oss", family: |_| "SeedOssForCausalLM", names: &POST, ..PLAIN },
    InFile { name: "qwen2vl", family: |_| "Qwen2ForCausalLM", ..PLAIN },
    InFile { name: "qwen3vl", family: |_| "Qwen3ForCausalLM", ..PLAIN },
    InFile { name: "qwen2moe", family: |_| "Qwen2MoeForCausalLM", ..PLAIN },
    InFile {
        name: "qwen3moe",
        family: |_| "Qwen3MoeForCausalLM",
        more: |_, fields| {
            fields.insert("norm_topk_prob".into(), json!(true));
            Ok(())
        },
        ..PLAIN
    },
    InFile { name: "olmoe", family: |_| "OlmoeForCausalLM", ..PLAIN },
    InFile {
        name: "glm4moe",
        family: |_| "Glm4MoeForCausalLM",
        names: &POST,
        more: |keys, fields| {
            fields.insert("use_qk_norm".into(), json!(keys.has_tensor("blk.0.attn_q_norm.weight")));
            partial(keys, fields)
        },
        ..PLAIN
    },
    InFile {
        name: "gpt-oss",
        family: |_| "GptOssForCausalLM",
        names: &POST,
        more: |keys, fields| {
            if let Some(rope) = fields.get_mut("rope_scaling").and_then(Value::as_object_mut) {
                rope.insert("truncate".into(), json!(false));
            }
            windows(keys, fields, Some(2))
        },
        ..PLAIN
    },
    InFile {
        name: "deepseek2",
        family: |keys| match keys.size("expert_gating_func") {
            Ok(Some(2)) => "DeepseekV3ForCausalLM",
            _ => "DeepseekV2ForCausalLM",
        },
        more: deepseek,
        ..PLAIN
    },
    InFile {
        name: "qwen3next",
        family: |_| "Qwen3NextForCausalLM",
        names: &Names {
            recurrent: RecurrentNames { strength: "ssm_ba", decay: "", ..FILE_NAMES.recurrent },
            ..POST
        },
        more: hybrid::qwen3_next,
        ..PLAIN
    },
    InFile {
        name: "qwen35",
        family: |_| "Qwen3_5ForCausalLM",
        names: &POST,
        more: hybrid::qwen3_5,
        ..PLAIN
    },
    InFile {
        name: "qwen35moe",
        family: |_| "Qwen3_5MoeForCausalLM",
        names: &POST,
        more: hybrid::qwen3_5,
        ..PLAIN
    },
    InFile {
        name: "lfm2",
        family: |_| "Lfm2ForCausalLM",
        names: &hybrid::LFM2,
        more: hybrid::lfm2,
        ..PLAIN
    },
    InFile {
        name: "lfm2moe",
        family: |_| "Lfm2MoeForCausalLM",
        names: &hybrid::LFM2,
        more: hybrid::lfm2,
        ..PLAIN
    },
];

/// The architectures that are read here, as `general.architecture` names them.
pub fn file_architectures() -> impl Iterator<Item = &'static str> {
    FILES.iter().skip(1).map(|file| file.name)
}

/// A configuration, and of tensors whose rows are in another order the width of a head.
pub(crate) type Found = (Config, BTreeMap<String, usize>);

/// The configuration of a file's model, if it is of an architecture that is read here.
pub(crate) fn of_gguf(gguf: &Gguf) -> Option<Result<Found>> {
    let name = gguf.metadata().str("general.architecture").ok()?;
    let file = FILES.iter().find(|file| file.name == name)?;
    let keys = Keys::new(gguf, file.name);
    // Without experts this one is described elsewhere.
    let experts = keys.size("expert_count").ok().flatten().unwrap_or(0);
    (file.name != "llama" || experts > 0).then(|| read(file, &keys))
}

fn read(file: &InFile, keys: &Keys) -> Result<Found> {
    keys.refuse_others()?;
    let mut fields = keys.common(file.lists)?;
    (file.more)(keys, &mut fields)?;
    let architecture = (file.family)(keys);
    let family = FAMILIES.iter().find(|family| family.architecture == architecture);
    let family = family.ok_or_else(|| format!("{architecture}: expected a known family"))?;
    let fields = Value::Object(fields);
    let mut config = (family.read)(family, &Fields::of(&fields)?)?;
    config.architecture = file.name;
    config.names = file.names;
    // What is there counts.
    let attention = config.cached_layers().next().unwrap_or(0);
    let has_bias = |part: &str| keys.has_tensor(&format!("blk.{attention}.{part}.bias"));
    config.biases.query_key_value = ["attn_q", "attn_qkv", "attn_q_a"].into_iter().any(has_bias);
    config.biases.output = has_bias("attn_output");
    // A file has the sum where a weight counts from one.
    if config.norm == NormKind::RmsPlusOne {
        config.norm = NormKind::Rms;
    }
    config.biases.feed_forward =
        (0..config.layers).any(|layer| keys.has_tensor(&format!("blk.{layer}.ffn_up.bias")));
    config.layer_scales &= keys.has_tensor("blk.0.layer_output_scale.weight");
    let all = config.further_numbers().end;
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
                permuted.insert(format!("blk.{layer}.{part}"), config.head);
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
        // 0 is none.
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
    // The two weights of the gain are alike in all such models: it is one.
    if let Some(weight) = keys.number("rope.scaling.yarn_log_multiplier")?.filter(|w| *w != 0.0) {
        rope.extend(["mscale", "mscale_all_dim"].map(|name| (name.to_owned(), json!(weight))));
    }
    if let Some(beta) = keys.number("attention.temperature_scale")?.filter(|beta| *beta != 0.0) {
        rope.insert("llama_4_scaling_beta".into(), json!(beta));
    }
    Ok(())
}

/// The window of the layers that a pattern lists: in turn, the last of every `period` sees
/// everything where nothing else is said; without a period no layer has it.
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
            (0..layers.min(MOST_LAYERS) as u64)
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

/// Windows, whose layers turn without a scaling.
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

/// The part of a head that is turned.
fn partial(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let head = keys.head()?;
    if let Some(turned) = keys.size("rope.dimension_count")? {
        fields.insert("partial_rotary_factor".into(), json!(turned as f64 / head as f64));
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
    let rotated = keys.needed("rope.dimension_count")?;
    let key = or("attention.key_length_mla", "attention.key_length")?.unwrap_or(0);
    for (field, value) in [
        ("q_lora_rank", keys.size("attention.q_lora_rank")?.filter(|rank| *rank > 0)),
        ("kv_lora_rank", Some(keys.needed("attention.kv_lora_rank")?)),
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
    // A tenth of the weight of the gain; the other weight is the same in all such models.
    if let (Some(weight), Some(rope)) = (
        keys.number("rope.scaling.yarn_log_multiplier")?,
        fields.get_mut("rope_scaling").and_then(Value::as_object_mut),
    ) {
        let weight = json!(weight * 10.0);
        rope.extend(["mscale", "mscale_all_dim"].map(|name| (name.to_owned(), weight.clone())));
    }
    Ok(())
}
