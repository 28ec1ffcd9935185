//! Families of which some layers keep a state, in GGUF files.

use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::{MOST_LAYERS, granite as granite_factors, partial};
use crate::config::FILE_NAMES;
use crate::names::{ExpertNames, Names, RecurrentNames};

pub(super) const LFM2: Names = Names {
    recurrent: RecurrentNames {
        into: "shortconv.in_proj",
        convolution: "shortconv.conv",
        output: "shortconv.out_proj",
        ..FILE_NAMES.recurrent
    },
    norm: "token_embd_norm",
    ..FILE_NAMES
};

pub(super) const STATE_SPACE: Names =
    Names { recurrent: RecurrentNames { into: "ssm_in", ..FILE_NAMES.recurrent }, ..FILE_NAMES };

/// Of one block a layer, with one norm; what predicts further tokens has both, each with its own.
pub(super) const ONE_BLOCK: Names = Names {
    mlp_norms: ["post_attention_norm", ""],
    mlp_in: &["ffn_up"],
    experts: ExpertNames {
        mlp_in: &["ffn_up_exps"],
        shared_in: &["ffn_up_shexp"],
        ..FILE_NAMES.experts
    },
    ..STATE_SPACE
};

/// Of the gated delta rule: a file has one width for a key and a value.
pub(super) fn qwen3_next(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let values = keys.needed("ssm.time_step_rank")?;
    for (field, size) in [
        ("linear_conv_kernel_dim", keys.needed("ssm.conv_kernel")?),
        ("linear_num_key_heads", keys.needed("ssm.group_count")?),
        ("linear_num_value_heads", values),
        ("linear_key_head_dim", keys.needed("ssm.state_size")?),
        ("linear_value_head_dim", keys.needed("ssm.inner_size")? / values.max(1)),
    ] {
        fields.insert(field.to_owned(), json!(size));
    }
    let listed = keys.bools("attention.recurrent_layers", layers(fields))?;
    match listed {
        Some(listed) => set_types(fields, listed, "linear_attention"),
        None => {
            let interval = keys.size("full_attention_interval")?;
            fields.extend(interval.map(|size| ("full_attention_interval".into(), json!(size))));
        }
    }
    partial(keys, fields)
}

/// As [`qwen3_next`], with heads of values that take those of keys in turn.
pub(super) fn qwen3_5(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    fields.insert("linear_heads_in_turn".into(), json!(true));
    qwen3_next(keys, fields)
}

/// Layers with attention are those that have heads of keys.
pub(super) fn lfm2(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    fields.insert("conv_L_cache".into(), json!(keys.needed("shortconv.l_cache")?));
    fields.insert("block_auto_adjust_ff_dim".into(), json!(false));
    let epsilon = fields.get("rms_norm_eps").cloned();
    fields.extend(epsilon.map(|epsilon| ("norm_eps".to_owned(), epsilon)));
    let dense = keys.size("leading_dense_block_count")?;
    fields.extend(dense.map(|dense| ("num_dense_layers".to_owned(), json!(dense))));
    let count = layers(fields);
    let is_convolution = keys.zeros("attention.head_count_kv", count)?;
    let bias = (0..count).any(|layer| keys.has_tensor(&format!("blk.{layer}.shortconv.conv.bias")));
    fields.insert("conv_bias".into(), json!(bias));
    set_types(fields, is_convolution.unwrap_or_else(|| vec![false; count]), "conv");
    Ok(())
}

/// Granite's factors, and a state space in layers that have no heads of keys.
pub(super) fn granite(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    granite_factors(keys, fields)?;
    fields.entry("num_local_experts").or_insert(json!(0));
    let is_rotated = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    fields.insert("position_embedding_type".into(), json!(is_rotated.then_some("rope")));
    let (inner, hidden) = (keys.needed("ssm.inner_size")?, keys.needed("embedding_length")?);
    for (field, size) in [
        ("mamba_d_conv", keys.needed("ssm.conv_kernel")?),
        ("mamba_d_state", keys.needed("ssm.state_size")?),
        ("mamba_n_groups", keys.needed("ssm.group_count")?),
        ("mamba_n_heads", keys.needed("ssm.time_step_rank")?),
        ("mamba_expand", inner / hidden.max(1)),
    ] {
        fields.insert(field.to_owned(), json!(size));
    }
    let count = layers(fields);
    let bias = (0..count).any(|layer| keys.has_tensor(&format!("blk.{layer}.ssm_conv1d.bias")));
    fields.insert("mamba_conv_bias".into(), json!(bias));
    let is_recurrent = keys.zeros("attention.head_count_kv", count)?;
    set_types(fields, is_recurrent.unwrap_or_else(|| vec![false; count]), "mamba");
    Ok(())
}

/// Layers with attention are those that have heads of keys, layers with a feed-forward block or
/// experts those that have a width inside.
pub(super) fn nemotron(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let heads = keys.needed("ssm.time_step_rank")?;
    for (field, size) in [
        ("conv_kernel", keys.needed("ssm.conv_kernel")?),
        ("ssm_state_size", keys.needed("ssm.state_size")?),
        ("n_groups", keys.needed("ssm.group_count")?),
        ("mamba_num_heads", heads),
        ("mamba_head_dim", keys.needed("ssm.inner_size")? / heads.max(1)),
    ] {
        fields.insert(field.to_owned(), json!(size));
    }
    for (field, other) in [
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("layer_norm_epsilon", "rms_norm_eps"),
        ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    ] {
        let value = fields.get(other).cloned();
        fields.extend(value.map(|value| (field.to_owned(), value)));
    }
    let latent = keys.size("moe_latent_size")?;
    fields.extend(latent.map(|size| ("moe_latent_size".to_owned(), json!(size))));
    let count = layers(fields);
    // The lists go on with the layer that predicts further tokens.
    let all = count + keys.size("nextn_predict_layers")?.unwrap_or(0).min(1 << 8) as usize;
    fields.insert("mtp_layers_block_type".into(), json!(["attention_and_moe"]));
    let (cached, inner) =
        (keys.sizes("attention.head_count_kv", all)?, keys.sizes("feed_forward_length", all)?);
    let has_experts = keys.size("expert_count")?.is_some_and(|count| count > 0);
    let kind = |(cached, inner)| match (cached, inner) {
        (0, 0) => "mamba",
        (_, 0) => "attention",
        _ if has_experts => "moe",
        _ => "mlp",
    };
    let kinds: Vec<&str> = cached.into_iter().zip(inner).take(count).map(kind).collect();
    fields.insert("layers_block_type".into(), json!(kinds));
    let bias = (0..count).any(|layer| keys.has_tensor(&format!("blk.{layer}.ssm_conv1d.bias")));
    fields.insert("use_conv_bias".into(), json!(bias));
    Ok(())
}

fn layers(fields: &Map<String, Value>) -> usize {
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    layers.min(MOST_LAYERS as u64) as usize
}

fn set_types(fields: &mut Map<String, Value>, recurrent: Vec<bool>, kind: &str) {
    let name = |recurrent: bool| if recurrent { kind } else { "full_attention" };
    let types: Vec<&str> = recurrent.into_iter().map(name).collect();
    fields.insert("layer_types".into(), json!(types));
}
