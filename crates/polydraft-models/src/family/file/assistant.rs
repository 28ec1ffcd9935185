//! Assistants of Gemma 4 in GGUF files: their keys become the fields that `config.json` would have,
//! and their tensors have the names that directories have for them.
//!
//! Source: llama.cpp's converter (`Gemma4AssistantModel`) and its architecture `gemma4-assistant`
//! (October 2026).

use polydraft_gguf::Gguf;
use serde_json::{Map, Value, json};

use super::super::common::Result;
use super::super::keys::Keys;
use super::gemma4;
use crate::config::{Config, Positions};
use crate::weights::OtherNames;

/// As `general.architecture` names them.
const ARCHITECTURE: &str = "gemma4-assistant";

/// As directories have them, and as files do.
pub(crate) const NAMES: OtherNames = &[
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

/// Whether a file is an assistant's.
pub(crate) fn is_assistant(gguf: &Gguf) -> bool {
    gguf.metadata().str("general.architecture").is_ok_and(|name| name == ARCHITECTURE)
}

/// The fields that `config.json` would have.
pub(crate) fn fields(gguf: &Gguf) -> Result<Value> {
    let keys = Keys::new(gguf, ARCHITECTURE);
    let mut text = keys.common(&["attention.head_count_kv", "feed_forward_length"])?;
    // All its layers are counted as such that predict further tokens.
    text.insert("num_hidden_layers".into(), json!(keys.needed("block_count")?));
    let named = |e: String| e.replace("key gemma4.", &format!("key {ARCHITECTURE}."));
    gemma4::more(&keys, &mut text).map_err(named)?;
    text.insert("model_type".into(), json!("gemma4_text"));
    let mut fields = Map::new();
    fields.insert("architectures".into(), json!(["Gemma4AssistantForCausalLM"]));
    fields.insert("backbone_hidden_size".into(), json!(keys.needed("embedding_length_out")?));
    fields.insert("text_config".into(), Value::Object(text));
    Ok(Value::Object(fields))
}

/// The layers that such fields describe, with what a tensor says of their rotation.
pub(crate) fn config(gguf: &Gguf, fields: &Value) -> Result<Config> {
    let mut config = Config::of_assistant(fields)?;
    let divisors = Keys::new(gguf, ARCHITECTURE).numbers("rope_freqs.weight")?;
    let head = config.heads_when(false).head;
    if let (Positions::Rotary(rope), Some(divisors)) = (&mut config.positions, divisors) {
        rope.divisors = divisors;
        rope.check(head)?;
    }
    Ok(config)
}
