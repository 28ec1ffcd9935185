//! EAGLE-3 heads in GGUF files: translation of metadata keys to the fields of `config.json`.
//! Tensors have the names of block heads.
//!
//! Source: llama.cpp's converter (`LlamaModel` with a `draft_vocab_size`) and its architecture
//! `eagle3` (October 2026). As in files of Llama, the rows of queries and keys are permuted for
//! rotation of neighbours.

use std::collections::BTreeMap;

use polydraft_gguf::Gguf;
use serde_json::{Value, json};

use super::super::common::Result;
use super::super::keys::Keys;

/// Value of `general.architecture`.
const ARCHITECTURE: &str = "eagle3";

/// Tensor with the divisors of RoPE frequencies.
pub(crate) const DIVISORS: &str = "rope_freqs.weight";

/// Whether a GGUF file is an EAGLE-3 head.
pub(crate) fn is_eagle3(gguf: &Gguf) -> bool {
    gguf.metadata().str("general.architecture").is_ok_and(|name| name == ARCHITECTURE)
}

/// Translates the metadata to the fields of `config.json`.
pub(crate) fn fields(gguf: &Gguf) -> Result<Value> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    keys.reject_unsupported_in_head()?;
    // The size of the target's vocabulary.
    let rows = match (keys.size("vocab_size")?, gguf.metadata().array("tokenizer.ggml.tokens")) {
        (Some(size), _) => usize::try_from(size).unwrap_or(usize::MAX),
        (None, tokens) => tokens.map_err(|e| e.to_string())?.len(),
    };
    let layers = keys.list("target_layers")?.ok_or_else(|| {
        format!("key {ARCHITECTURE}.target_layers: expected layers of the target, got no such key")
    })?;
    let mut fields = keys.common_with_vocabulary(&[], rows)?;
    let draft_vocabulary = gguf.find("d2t").map_or(rows, |tensor| tensor.columns());
    for (field, value) in [
        ("draft_vocab_size", json!(draft_vocabulary)),
        // Number n is the input of layer n.
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

/// Divisors of RoPE frequencies, if the file has them.
pub(crate) fn divisors(gguf: &Gguf) -> Result<Option<Vec<f32>>> {
    Keys::new(gguf, ARCHITECTURE).numbers(DIVISORS)
}

/// Tensors whose rows are permuted, with the width of a head.
pub(crate) fn permuted(gguf: &Gguf) -> Result<BTreeMap<String, usize>> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    let head = usize::try_from(keys.head()?).map_err(|e| e.to_string())?;
    let parts = ["attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias"];
    Ok(parts.map(|part| (format!("blk.0.{part}"), head)).into())
}
