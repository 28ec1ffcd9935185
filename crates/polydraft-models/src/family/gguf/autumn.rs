//! Families of 2026, and older small ones, in GGUF files.

use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::{BLOCKS_WITH_UP, GgufFamily, PLAIN, granite, olmo3, partial, windows};
use crate::config::GGUF_NAMES;
use crate::names::{ExpertNames, Names};

pub(super) const FILES: &[GgufFamily] = &[
    GgufFamily { name: "exaone", family: |_| "ExaoneForCausalLM", ..PLAIN },
    GgufFamily { name: "gemma", family: |_| "GemmaForCausalLM", ..PLAIN },
    GgufFamily {
        name: "starcoder2",
        family: |_| "Starcoder2ForCausalLM",
        names: &BLOCKS_WITH_UP,
        extra: |keys, fields| {
            let epsilon = keys.number("attention.layer_norm_epsilon")?;
            fields.extend(epsilon.map(|number| ("norm_epsilon".to_owned(), json!(number))));
            Ok(())
        },
        ..PLAIN
    },
    GgufFamily { name: "hunyuan-dense", family: |_| "HunYuanDenseV1ForCausalLM", ..PLAIN },
    GgufFamily { name: "ernie4_5", family: |_| "Ernie4_5ForCausalLM", ..PLAIN },
    GgufFamily {
        name: "ernie4_5-moe",
        family: |_| "Ernie4_5_MoeForCausalLM",
        extra: |keys, fields| {
            copy_sizes(
                keys,
                fields,
                &[
                    ("leading_dense_block_count", "moe_layer_start_index"),
                    ("interleave_moe_layer_step", "moe_layer_interval"),
                    ("expert_shared_count", "moe_num_shared_experts"),
                ],
            )
        },
        ..PLAIN
    },
    GgufFamily {
        name: "granite_swa",
        family: |keys| match keys.size("expert_count") {
            Ok(Some(1..)) => "GraniteMoeSWAForCausalLM",
            _ => "GraniteSWAForCausalLM",
        },
        names: &FUSED_EXPERTS,
        permuted: true,
        extra: granite_swa,
        ..PLAIN
    },
    GgufFamily { name: "mellum", family: |_| "MellumForCausalLM", extra: olmo3, ..PLAIN },
    GgufFamily {
        name: "minimax-m2",
        family: |_| "MiniMaxM2ForCausalLM",
        extra: |keys, fields| copy_sizes(keys, fields, &[("rope.dimension_count", "rotary_dim")]),
        ..PLAIN
    },
    GgufFamily {
        name: "afmoe",
        family: |_| "AfmoeForCausalLM",
        extra: |keys, fields| {
            copy_sizes(
                keys,
                fields,
                &[
                    ("leading_dense_block_count", "num_dense_layers"),
                    ("expert_shared_count", "num_shared_experts"),
                ],
            )?;
            let scale = keys.number("expert_weights_scale")?;
            fields.extend(scale.map(|number| ("route_scale".to_owned(), json!(number))));
            // llama.cpp scales embeddings in every such model.
            fields.insert("mup_enabled".into(), json!(true));
            windows(keys, fields, Some(4))
        },
        ..PLAIN
    },
    // Ling 2 and Sarvam.
    GgufFamily {
        name: "bailingmoe2",
        family: |_| "SarvamMoEForCausalLM",
        names: &Names { query_key_value: &["attn_qkv"], ..GGUF_NAMES },
        extra: |keys, fields| {
            let normed = keys.has_tensor("blk.0.attn_q_norm.weight");
            fields.insert("use_qk_norm".into(), json!(normed));
            partial(keys, fields)
        },
        ..PLAIN
    },
];

const FUSED_EXPERTS: Names = Names {
    experts: ExpertNames {
        mlp_in: &["ffn_gate_up_exps"],
        shared_in: &["ffn_up_shexp"],
        ..GGUF_NAMES.experts
    },
    ..GGUF_NAMES
};

/// Copies sizes to the fields of a family.
fn copy_sizes(keys: &Keys, fields: &mut Map<String, Value>, all: &[(&str, &str)]) -> Result<()> {
    for (key, field) in all {
        fields.extend(keys.size(key)?.map(|size| ((*field).to_owned(), json!(size))));
    }
    Ok(())
}

fn granite_swa(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    granite(keys, fields)?;
    windows(keys, fields, Some(4))?;
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    if let Some(rotated) = keys.bools("attention.rope_pattern", layers)? {
        let base = fields.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0);
        let bases: Vec<f64> =
            rotated.into_iter().map(|rotated| if rotated { base } else { 0.0 }).collect();
        fields.insert("layer_rope_theta".into(), json!(bases));
    }
    Ok(())
}
