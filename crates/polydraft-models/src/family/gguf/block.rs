//! Block heads (DFlash, DFlash-2, DSpark) in GGUF files: translation of metadata keys and tensor
//! names to those of directories.
//!
//! Source: llama.cpp's converter (`DFlashModel`, `DSparkModel`) and its architecture `dflash`
//! (October 2026).

use polydraft_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::MAX_LAYERS;
use crate::weights::TensorNames;

/// Value of `general.architecture`.
const ARCHITECTURE: &str = "dflash";

/// Names of tensors in directories and in GGUF files, including those of EAGLE-3 heads.
pub(crate) const NAMES: TensorNames = &[
    ("embed_tokens", "token_embd"),
    ("lm_head", "output"),
    ("norm", "output_norm"),
    ("fc", "fc"),
    ("hidden_norm", "enc.output_norm"),
    ("input_norm", "enc.output_norm"),
    ("layers.#.hidden_norm", "blk.#.attn_norm_2"),
    ("layers.#.input_layernorm", "blk.#.attn_norm"),
    ("layers.#.self_attn.q_proj", "blk.#.attn_q"),
    ("layers.#.self_attn.k_proj", "blk.#.attn_k"),
    ("layers.#.self_attn.v_proj", "blk.#.attn_v"),
    ("layers.#.self_attn.o_proj", "blk.#.attn_output"),
    ("layers.#.self_attn.q_norm", "blk.#.attn_q_norm"),
    ("layers.#.self_attn.k_norm", "blk.#.attn_k_norm"),
    ("layers.#.post_attention_layernorm", "blk.#.ffn_norm"),
    ("layers.#.mlp.gate_proj", "blk.#.ffn_gate"),
    ("layers.#.mlp.up_proj", "blk.#.ffn_up"),
    ("layers.#.mlp.down_proj", "blk.#.ffn_down"),
    ("layers.#.attention_conv.base_kernel", "blk.#.attn_conv_base"),
    ("layers.#.attention_conv.kernel_projection", "blk.#.attn_conv_proj"),
    ("layers.#.mlp_conv.base_kernel", "blk.#.ffn_conv_base"),
    ("layers.#.mlp_conv.kernel_projection", "blk.#.ffn_conv_proj"),
    ("markov_head.markov_w1", "markov_w1"),
    ("markov_head.markov_w2", "markov_w2"),
    ("confidence_head.proj", "conf_proj"),
    ("candidate_selector.predecessor_codebook", "selector_predecessor.weight"),
    ("candidate_selector.successor_codebook", "selector_successor.weight"),
    ("candidate_selector.hidden_projection", "selector_hidden"),
];

/// Whether a GGUF file is a block head.
pub(crate) fn is_block(gguf: &Gguf) -> bool {
    gguf.metadata().str("general.architecture").is_ok_and(|name| name == ARCHITECTURE)
}

/// Translates the metadata to the fields of `config.json`.
pub(crate) fn fields(gguf: &Gguf) -> Result<Value> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    keys.reject_unsupported_in_head()?;
    reject_unsupported(&keys)?;
    let rows = match gguf.metadata().array("tokenizer.ggml.tokens") {
        Ok(tokens) => tokens.len(),
        Err(_) => gguf.tensor("token_embd.weight").map_err(|e| e.to_string())?.rows(),
    };
    let mut fields = keys.common_with_vocabulary(&[], rows)?;
    let layers = keys.required("block_count")?.min(MAX_LAYERS as u64) as usize;
    let mask = gguf.metadata().u64("tokenizer.ggml.mask_token_id").map_err(|e| e.to_string())?;
    let columns = |name: &str| gguf.find(name).map(|tensor| tensor.columns());

    let mut block = Map::new();
    block.insert("mask_token_id".into(), json!(mask));
    block.insert("markov_rank".into(), json!(columns("markov_w1.weight")));
    for key in
        ["block_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"]
    {
        block.insert(key.into(), json!(keys.size(key)?));
    }
    for (key, field) in [
        ("embedding_scale", "input_embedding_scale"),
        ("logit_scale", "output_multiplier"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ] {
        block.insert(field.into(), json!(keys.number(key)?));
    }
    block.insert("sample_from_anchor".into(), json!(keys.flag("sample_from_anchor")?));

    let windowed = keys.bools("attention.sliding_window_pattern", layers)?;
    let types = windowed.into_iter().flatten().map(|windowed| match windowed {
        true => "sliding_attention",
        false => "full_attention",
    });
    for (field, value) in [
        ("layer_types", json!(types.collect::<Vec<_>>())),
        ("is_causal", json!(keys.flag("attention.causal")?)),
        // Number n is the input of layer n.
        ("aux_hidden_state_layer_ids", json!(keys.list("target_layers")?)),
        ("draft_vocab_size", json!(columns("d2t"))),
        ("attention_bias", json!(gguf.find("blk.0.attn_q.bias").is_some())),
        ("dflash_config", Value::Object(block)),
    ] {
        fields.insert(field.to_owned(), value);
    }
    Ok(Value::Object(fields))
}

/// Rejects features that block heads here do not support.
fn reject_unsupported(keys: &Keys) -> Result<()> {
    match keys.text("hidden_activation")? {
        None | Some("silu") => Ok(()),
        Some(got) => {
            Err(format!("key {ARCHITECTURE}.hidden_activation: expected silu, got {got:?}"))
        }
    }
}
