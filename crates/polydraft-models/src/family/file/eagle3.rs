//! EAGLE-3 heads in GGUF files: their keys become the fields that `config.json` would have. Their
//! tensors have the names of those that predict blocks.
//!
//! Source: llama.cpp's converter (`LlamaModel` with a `draft_vocab_size`) and its architecture
//! `eagle3` (October 2026). As in files of Llama, the rows of queries and keys are in pairs.

use std::collections::BTreeMap;

use polydraft_gguf::Gguf;
use serde_json::{Value, json};

use super::super::common::Result;
use super::super::keys::Keys;

/// As `general.architecture` names them.
const ARCHITECTURE: &str = "eagle3";

/// Numbers that divide the frequencies of positions.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";

/// Whether a file is that of such a head.
pub(crate) fn is_eagle3(gguf: &Gguf) -> bool {
    gguf.metadata().str("general.architecture").is_ok_and(|name| name == ARCHITECTURE)
}

/// The fields that `config.json` would have.
pub(crate) fn fields(gguf: &Gguf) -> Result<Value> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    keys.refuse_unusual()?;
    // The target's.
    let rows = match (keys.size("vocab_size")?, gguf.metadata().array("tokenizer.ggml.tokens")) {
        (Some(size), _) => usize::try_from(size).unwrap_or(usize::MAX),
        (None, tokens) => tokens.map_err(|e| e.to_string())?.len(),
    };
    let layers = keys.list("target_layers")?.ok_or_else(|| {
        format!("key {ARCHITECTURE}.target_layers: expected layers of the target, got no such key")
    })?;
    let mut fields = keys.common_of(&[], rows)?;
    let said = gguf.find("d2t").map_or(rows, |tensor| tensor.columns());
    for (field, value) in [
        ("draft_vocab_size", json!(said)),
        // Numbered by the layers whose inputs they are.
        ("eagle_aux_hidden_state_layer_ids", json!(layers)),
        ("target_hidden_size", json!(keys.size("target_hidden_size")?)),
        ("norm_before_residual", json!(keys.flag("norm_before_residual")?.unwrap_or(false))),
        ("norm_before_fc", json!(keys.flag("norm_before_fc")?.unwrap_or(false))),
        ("attention_bias", json!(keys.has_tensor("blk.0.attn_q.bias"))),
        ("mlp_bias", json!(keys.has_tensor("blk.0.ffn_up.bias"))),
        ("bias", json!(keys.has_tensor("fc.bias"))),
    ] {
        fields.insert(field.to_owned(), value);
    }
    Ok(Value::Object(fields))
}

/// What divides the frequencies of positions, if the file says so.
pub(crate) fn divisors(gguf: &Gguf) -> Result<Option<Vec<f32>>> {
    Keys::new(gguf, ARCHITECTURE).numbers(DIVISORS)
}

/// Tensors whose rows are in another order, with the width of a head.
pub(crate) fn permuted(gguf: &Gguf) -> Result<BTreeMap<String, usize>> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    let head = usize::try_from(keys.head()?).map_err(|e| e.to_string())?;
    let parts = ["attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias"];
    Ok(parts.map(|part| (format!("blk.0.{part}"), head)).into())
}
