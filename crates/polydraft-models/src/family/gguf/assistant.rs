//! Assistants of Gemma 4 in GGUF files: translation of metadata keys and tensor names to those of
//! directories.
//!
//! Source: llama.cpp's converter (`Gemma4AssistantModel`) and its architecture `gemma4-assistant`
//! (October 2026).

use polydraft_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::gemma4;
use crate::config::{Config, Positions};
use crate::weights::TensorNames;

/// Value of `general.architecture`.
const ARCHITECTURE: &str = "gemma4-assistant";

/// Names of tensors in directories and in GGUF files.
pub(crate) const NAMES: TensorNames = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("pre_projection", "nextn.pre_projection"),
    ("post_projection", "nextn.post_projection"),
    ("model.layers.#.input_layernorm", "blk.#.attn_norm"),
    ("model.layers.#.self_attn.q_proj", "blk.#.attn_q"),
    ("model.layers.#.self_attn.o_proj", "blk.#.attn_output"),
    ("model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm"),
    ("model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm"),
    ("model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm"),
    ("model.layers.#.mlp.gate_proj", "blk.#.ffn_gate"),
    ("model.layers.#.mlp.up_proj", "blk.#.ffn_up"),
    ("model.layers.#.mlp.down_proj", "blk.#.ffn_down"),
    ("model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"),
    ("model.layers.#.layer_scalar", "blk.#.layer_output_scale.weight"),
];

/// Whether a GGUF file is an assistant.
pub(crate) fn is_assistant(gguf: &Gguf) -> bool {
    gguf.metadata().str("general.architecture").is_ok_and(|name| name == ARCHITECTURE)
}

/// Translates the metadata to the fields of `config.json`.
pub(crate) fn fields(gguf: &Gguf) -> Result<Value> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    let mut text = keys.common(&["attention.head_count_kv", "feed_forward_length"])?;
    // The file counts all layers as MTP layers.
    text.insert("num_hidden_layers".into(), json!(keys.required("block_count")?));
    let named = |e: String| e.replace("key gemma4.", &format!("key {ARCHITECTURE}."));
    gemma4::extra_fields(&keys, &mut text).map_err(named)?;
    text.insert("model_type".into(), json!("gemma4_text"));
    let mut fields = Map::new();
    fields.insert("architectures".into(), json!(["Gemma4AssistantForCausalLM"]));
    fields.insert("backbone_hidden_size".into(), json!(keys.required("embedding_length_out")?));
    fields.insert("text_config".into(), Value::Object(text));
    Ok(Value::Object(fields))
}

/// Reads the layers from such fields, and the RoPE divisors from a tensor.
pub(crate) fn config(gguf: &Gguf, fields: &Value) -> Result<Config> {
    let mut config = Config::from_assistant(fields)?;
    let divisors = Keys::new(gguf, ARCHITECTURE).numbers("rope_freqs.weight")?;
    let head = config.head_shape_for(false).head_dim;
    if let (Positions::Rotary(rope), Some(divisors)) = (&mut config.positions, divisors) {
        rope.divisors = divisors;
        rope.check(head)?;
    }
    Ok(config)
}
