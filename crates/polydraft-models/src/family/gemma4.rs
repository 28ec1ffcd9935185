//! Gemma 4, text part. Layers with full attention have wider heads than those with a sliding
//! window, fewer key heads (optionally equal to the values) and partial rotation. Upper layers
//! share the KV caches of lower ones. There are per-layer embeddings, and experts in parallel with
//! a dense block. Norm weights are not offsets from one, unlike in Gemma 3.
//!
//! Source: Gemma Team 2026; fields and their defaults as in Hugging Face transformers.

use std::collections::BTreeMap;

use polydraft_text::Fields;
use serde_json::{Value, json};

use super::common::{Family, Result, plain_experts, set_window};
use super::gemma2;
use crate::config::{
    Config, Experts, HeadShape, Lengths, NormKind, PerLayer, Positions, QkNorm, Rope,
};
use crate::names::{ExpertNames, Layout, Names};

pub(super) const FAMILY: Family = Family { architecture: "Gemma4ForCausalLM", read };
/// The variant without experts and per-layer embeddings.
pub(super) const UNIFIED: Family =
    Family { architecture: "Gemma4UnifiedForCausalLM", read: read_unified };

const NAMES: Names = Names {
    experts: ExpertNames {
        router: "router.proj",
        mlp_in: &["experts.gate_up_proj"],
        mlp_out: "experts.down_proj",
        layout: Layout::RowsBareName,
        ..gemma2::NAMES.experts
    },
    ..gemma2::NAMES
};

const WIDEST: usize = 1 << 12;

fn read(family: &Family, fields: &Fields) -> Result<Config> {
    let mut config = read_text(family, fields, 512)?;
    let width = fields.get::<usize>("hidden_size_per_layer_input")?.unwrap_or(256);
    if width > 0 {
        let width = fields.size_or("hidden_size_per_layer_input", width, 1 << 16)?;
        let vocabulary = fields.size_or("vocab_size_per_layer_input", 262_144, 1 << 24)?;
        config.per_layer = Some(PerLayer { width, vocabulary });
    }
    if fields.flag("enable_moe_block", false)? {
        let count = fields.size("num_experts", WIDEST)?;
        let used = fields.size("top_k_experts", WIDEST)?;
        let intermediate = fields.size("moe_intermediate_size", 1 << 20)?;
        let experts = plain_experts(&config, [count, used, intermediate]);
        config.experts =
            Some(Experts { normalised: true, parallel: true, scaled: true, ..experts });
    }
    Ok(config)
}

fn read_unified(family: &Family, fields: &Fields) -> Result<Config> {
    read_text(family, fields, 1024)
}

/// Reads the fields of both variants; `window` is the default window.
fn read_text(family: &Family, fields: &Fields, window: usize) -> Result<Config> {
    if let Some("all") = fields.get::<String>("use_bidirectional_attention")?.as_deref() {
        return Err("use_bidirectional_attention: expected null or vision, got \"all\"".to_owned());
    }
    let mut config = gemma2::gemma_like(family, fields)?;
    config.norm = NormKind::Rms;
    config.names = &NAMES;
    config.logit_softcap = fields.number("final_logit_softcapping")?;
    config.layer_scales = true;
    config.double_wide_mlp = fields.flag("use_double_wide_mlp", false)?;
    config.attention.scale = 1.0;
    config.attention.qk_norm = QkNorm::PerHead;
    config.attention.value_norms = true;
    config.attention.shared_kv_layers = fields.get::<usize>("num_kv_shared_layers")?.unwrap_or(0);
    let window = fields.size_or("sliding_window", window, 1 << 30)?;
    set_window(&mut config, fields, Some(window), |layer| !(layer + 1).is_multiple_of(6))?;
    // The last layer has full attention, whatever is listed.
    if let Some(last) = config.attention.windowed.last_mut() {
        *last = false;
    }
    config.attention.full = Some(full_heads(&config, fields)?);
    let [all, windowed] = rotations(&config, fields)?;
    config.positions = Positions::Rotary(all);
    config.attention.window_rope = Some(windowed);
    Ok(config)
}

/// Reads the heads of layers with full attention. Published files have separate fields for them;
/// files that transformers writes list them layer by layer.
fn full_heads(config: &Config, fields: &Fields) -> Result<HeadShape> {
    const BY_LAYER: &str = "per_layer_config";
    let values_are_keys = fields.flag("attention_k_eq_v", false)?;
    let key_value_heads = config.key_value_heads;
    let Some(by_layer) = fields.get::<BTreeMap<String, BTreeMap<String, Value>>>(BY_LAYER)? else {
        let full = match values_are_keys {
            true => fields.size_or("num_global_key_value_heads", key_value_heads, WIDEST)?,
            false => key_value_heads,
        };
        let head = fields.size_or("global_head_dim", 512, WIDEST)?;
        return Ok(HeadShape { key_value_heads: full, head_dim: head, values_are_keys });
    };
    let is_full = |layer: &usize| config.attention.windowed.get(*layer) == Some(&false);
    let mut found = None;
    for layer in (0..config.layers).filter(is_full) {
        let nothing = BTreeMap::new();
        let own = by_layer.get(&layer.to_string()).unwrap_or(&nothing);
        let invalid = |e: String| format!("{BY_LAYER}: {layer}: {e}");
        let own = Value::Object(own.clone().into_iter().collect());
        let own = Fields::new(&own)?;
        let shape = HeadShape {
            key_value_heads: own
                .size_or("num_key_value_heads", key_value_heads, WIDEST)
                .map_err(invalid)?,
            head_dim: own.size_or("head_dim", config.head_dim, WIDEST).map_err(invalid)?,
            values_are_keys,
        };
        if *found.get_or_insert(shape) != shape {
            let problem = "expected the same heads as in the full-attention layers before it";
            return Err(invalid(problem.to_owned()));
        }
    }
    for (layer, own) in &by_layer {
        let invalid = |e: String| format!("{BY_LAYER}: {layer}: {e}");
        let known = ["head_dim", "num_key_value_heads"];
        if let Some(field) = own.keys().find(|field| !known.contains(&&field[..])) {
            return Err(invalid(format!("expected {}, got {field:?}", known.join(" or "))));
        }
        if !layer.parse().is_ok_and(|layer| is_full(&layer)) {
            return Err(invalid("expected a layer with full attention, got another".to_owned()));
        }
    }
    let plain = HeadShape { key_value_heads, head_dim: config.head_dim, values_are_keys };
    Ok(found.unwrap_or(plain))
}

/// Rotary embeddings of the layers with full attention, and of those with a window.
fn rotations(config: &Config, fields: &Fields) -> Result<[Rope; 2]> {
    const FIELD: &str = "rope_parameters";
    let by_kind = fields.object(FIELD)?;
    let rotation = |kind: &str, default: Value, head: usize| {
        let given = by_kind.as_ref().map(|all| all.object(kind)).transpose();
        let given = given.map_err(|e| format!("{FIELD}: {e}"))?.flatten();
        let rope = given.unwrap_or(Fields::new(&default)?);
        let theta = rope.number("rope_theta")?;
        let theta = theta.or(default["rope_theta"].as_f64()).unwrap_or(10_000.0);
        match rope.get::<String>("rope_type")?.as_deref() {
            Some("proportional") => Rope::proportional(&rope, theta, head),
            _ => Rope::new(theta, Some((FIELD, rope)), Lengths::new(config.context)),
        }
    };
    let full = json!({
        "rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25,
    });
    let head = config.head_shape_for(false).head_dim;
    Ok([
        rotation("full_attention", full, head)?,
        rotation("sliding_attention", json!({ "rope_theta": 1e4 }), config.head_dim)?,
    ])
}
