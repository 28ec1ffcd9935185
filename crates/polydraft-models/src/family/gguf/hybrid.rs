//! Families with recurrent layers in GGUF files.

use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::{MAX_LAYERS, granite as granite_factors, partial};
use crate::config::GGUF_NAMES;
use crate::names::{ExpertNames, Names, RecurrentNames};

pub(super) const LFM2: Names = Names {
    recurrent: RecurrentNames {
        into: "shortconv.in_proj",
        convolution: "shortconv.conv",
        output: "shortconv.out_proj",
        ..GGUF_NAMES.recurrent
    },
    norm: "token_embd_norm",
    ..GGUF_NAMES
};

pub(super) const STATE_SPACE: Names =
    Names { recurrent: RecurrentNames { into: "ssm_in", ..GGUF_NAMES.recurrent }, ..GGUF_NAMES };

/// Names for one block with one norm per layer. MTP layers have both blocks, each with its norm.
pub(super) const ONE_BLOCK: Names = Names {
    mlp_norms: ["post_attention_norm", ""],
    mlp_in: &["ffn_up"],
    experts: ExpertNames {
        mlp_in: &["ffn_up_exps"],
        shared_in: &["ffn_up_shexp"],
        ..GGUF_NAMES.experts
    },
    ..STATE_SPACE
};

/// Keys of the gated delta rule: sizes of keys and values, and the recurrent layers.
pub(super) fn qwen3_next(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let values = keys.required("ssm.time_step_rank")?;
    for (field, size) in [
        ("linear_conv_kernel_dim", keys.required("ssm.conv_kernel")?),
        ("linear_num_key_heads", keys.required("ssm.group_count")?),
        ("linear_num_value_heads", values),
        ("linear_key_head_dim", keys.required("ssm.state_size")?),
        ("linear_value_head_dim", keys.required("ssm.inner_size")? / values.max(1)),
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

/// Like [`qwen3_next`]; value heads use the key heads in rotation instead of in groups.
pub(super) fn qwen3_5(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    fields.insert("linear_heads_in_turn".into(), json!(true));
    qwen3_next(keys, fields)
}

/// LFM2: layers without key heads are convolutions.
pub(super) fn lfm2(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    fields.insert("conv_L_cache".into(), json!(keys.required("shortconv.l_cache")?));
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

/// Granite's factors; layers without key heads are state spaces.
pub(super) fn granite(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    granite_factors(keys, fields)?;
    fields.entry("num_local_experts").or_insert(json!(0));
    let is_rotated = keys.flag("rope.scaling.finetuned")?.unwrap_or(true);
    fields.insert("position_embedding_type".into(), json!(is_rotated.then_some("rope")));
    let (inner, hidden) = (keys.required("ssm.inner_size")?, keys.required("embedding_length")?);
    for (field, size) in [
        ("mamba_d_conv", keys.required("ssm.conv_kernel")?),
        ("mamba_d_state", keys.required("ssm.state_size")?),
        ("mamba_n_groups", keys.required("ssm.group_count")?),
        ("mamba_n_heads", keys.required("ssm.time_step_rank")?),
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

/// Nemotron-H: layers with key heads have attention, layers with an inner width have a feed-forward
/// block or experts.
pub(super) fn nemotron(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    let heads = keys.required("ssm.time_step_rank")?;
    for (field, size) in [
        ("conv_kernel", keys.required("ssm.conv_kernel")?),
        ("ssm_state_size", keys.required("ssm.state_size")?),
        ("n_groups", keys.required("ssm.group_count")?),
        ("mamba_num_heads", heads),
        ("mamba_head_dim", keys.required("ssm.inner_size")? / heads.max(1)),
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
    // The lists include the MTP layers.
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
    layers.min(MAX_LAYERS as u64) as usize
}

fn set_types(fields: &mut Map<String, Value>, recurrent: Vec<bool>, kind: &str) {
    let name = |recurrent: bool| if recurrent { kind } else { "full_attention" };
    let types: Vec<&str> = recurrent.into_iter().map(name).collect();
    fields.insert("layer_types".into(), json!(types));
}
