//! Gemma 4 in GGUF files.

use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::{MAX_LAYERS, windows};
use crate::config::GGUF_NAMES;
use crate::names::{ExpertNames, Names};

/// Names with a merged tensor for gate and up projections of all experts.
pub(super) const NAMES: Names = Names {
    experts: ExpertNames { mlp_in: &["ffn_gate_up_exps"], ..GGUF_NAMES.experts },
    ..GGUF_NAMES
};

pub(super) fn extra_fields(keys: &Keys, fields: &mut Map<String, Value>) -> Result<()> {
    const HEADS: &str = "attention.head_count_kv";
    const WIDTHS: &str = "feed_forward_length";
    windows(keys, fields, Some(6))?;
    let layers = fields.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    let layers = layers.min(MAX_LAYERS as u64) as usize;
    let Some(kinds) = fields.get("layer_types").and_then(Value::as_array) else {
        return Err("key gemma4.attention.sliding_window: expected a size, got none".to_owned());
    };
    let windowed: Vec<bool> = kinds.iter().map(|kind| kind == "sliding_attention").collect();
    let is_windowed = |layer: usize| windowed.get(layer) == Some(&true);
    let is_full = |layer: &usize| !is_windowed(*layer);
    let shared = keys.size("attention.shared_kv_layers")?.unwrap_or(0);
    let cached = layers.saturating_sub(shared as usize);

    let heads = keys.sizes(HEADS, layers)?;
    let of_kind = |windowed: bool| -> Result<Option<u64>> {
        let mut all = (0..layers).filter(|layer| is_windowed(*layer) == windowed);
        let Some(first) = all.next() else { return Ok(None) };
        match all.find(|layer| heads[*layer] != heads[first]) {
            None => Ok(Some(heads[first])),
            Some(other) => Err(format!(
                "key gemma4.{HEADS}: expected {} in layer {other}, as in layer {first}, got {}",
                heads[first], heads[other]
            )),
        }
    };
    let [of_windowed, of_full] = [of_kind(true)?, of_kind(false)?];
    let full = keys.head()?;
    let narrow = keys.size("attention.key_length_swa")?.unwrap_or(full);
    let by_layer = (0..layers).filter(is_full).map(|layer| {
        let shape = json!({ "head_dim": full, "num_key_value_heads": of_full });
        (layer.to_string(), shape)
    });
    let by_layer: Map<String, Value> = by_layer.collect();

    let widths = keys.sizes(WIDTHS, layers)?;
    let first = widths.first().copied().unwrap_or(0);
    let upper = widths.get(cached).copied().unwrap_or(first);
    let is_wide = upper != first;
    let expected = |layer: usize| if is_wide && layer >= cached { 2 * first } else { first };
    if let Some(layer) = (0..layers).find(|layer| widths[*layer] != expected(*layer)) {
        let (expected, got) = (expected(layer), widths[layer]);
        return Err(format!(
            "key gemma4.{WIDTHS}: expected {expected} in layer {layer}, got {got}"
        ));
    }

    let base = fields.get("rope_theta").cloned().unwrap_or_default();
    let swa = keys.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let values_are_keys = (0..cached)
        .find(is_full)
        .is_some_and(|layer| !keys.has_tensor(&format!("blk.{layer}.attn_v.weight")));
    let width = keys.size("embedding_length_per_layer_input")?.unwrap_or(0);
    let (count, used) = (keys.size("expert_count")?, keys.size("expert_used_count")?);
    for (field, value) in [
        ("head_dim", json!(narrow)),
        ("num_key_value_heads", json!(of_windowed.or(of_full))),
        ("per_layer_config", Value::Object(by_layer)),
        ("attention_k_eq_v", json!(values_are_keys)),
        ("num_kv_shared_layers", json!(shared)),
        ("intermediate_size", json!(first)),
        ("use_double_wide_mlp", json!(is_wide)),
        ("hidden_size_per_layer_input", json!(width)),
        ("vocab_size_per_layer_input", fields.get("vocab_size").cloned().unwrap_or_default()),
        ("enable_moe_block", json!(count.is_some_and(|count| count > 0))),
        ("num_experts", json!(count)),
        ("top_k_experts", json!(used)),
        ("final_logit_softcapping", json!(keys.number("final_logit_softcapping")?)),
        (
            "rope_parameters",
            json!({
                "full_attention": { "rope_theta": base },
                "sliding_attention": { "rope_theta": swa },
            }),
        ),
    ] {
        fields.insert(field.to_owned(), value);
    }
    Ok(())
}
