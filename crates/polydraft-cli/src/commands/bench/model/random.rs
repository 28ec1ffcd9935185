//! Random model in bf16 with the architecture of a small Llama.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::interrupts::Temporary;

const VOCABULARY: usize = 8192;
const HIDDEN: usize = 2048;
const INTERMEDIATE: usize = 5632;
const HEADS: usize = 16;
const KEY_VALUE_HEADS: usize = 4;
const HEAD: usize = HIDDEN / HEADS;

/// Returns names and shapes of the tensors for about `parameters` parameters, and the number of
/// layers.
fn tensors(parameters: usize) -> (Vec<(String, Vec<usize>)>, usize) {
    let keys = KEY_VALUE_HEADS * HEAD;
    let per_layer = 2 * HIDDEN * (HIDDEN + keys) + 3 * HIDDEN * INTERMEDIATE;
    let layers = (parameters.saturating_sub(2 * VOCABULARY * HIDDEN) / per_layer).max(1);
    let mut all: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("lm_head.weight".into(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..layers {
        for (part, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![keys, HIDDEN]),
            ("self_attn.v_proj", vec![keys, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ] {
            all.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    (all, layers)
}

/// Model in a temporary folder, removed on drop and on interrupts.
pub struct RandomModel {
    folder: tempfile::TempDir,
    _temporary: Temporary,
}

impl RandomModel {
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Writes the model.
pub fn write(parameters: usize) -> Result<RandomModel> {
    let make = || tempfile::Builder::new().prefix("polydraft-random-").tempdir();
    let (folder, temporary) = Temporary::create(make, tempfile::TempDir::path)?;
    let (tensors, layers) = tensors(parameters);
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 8192,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string())?;
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string())?;

    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in &tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::with_capacity(
        1 << 20,
        std::fs::File::create(folder.path().join("model.safetensors"))?,
    );
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for (_, shape) in &tensors {
        let numbers: usize = shape.iter().product();
        // Norms of one, and matrices whose size keeps sums in range: fixed exponent, random sign
        // and fraction.
        let base: u16 = if shape.len() == 1 { 0x3f80 } else { 0x3c00 };
        let mask: u16 = if shape.len() == 1 { 0 } else { 0x807f };
        for _ in 0..numbers.div_ceil(4) {
            let bits = random.next_u64().to_le_bytes();
            for pair in bits.as_chunks::<2>().0 {
                file.write_all(&(base | (u16::from_le_bytes(*pair) & mask)).to_le_bytes())?;
            }
        }
    }
    file.flush()?;
    Ok(RandomModel { folder, _temporary: temporary })
}

/// Returns a tokenizer with one character per token.
fn tokenizer() -> Value {
    let characters = ('\u{4e00}'..).take(VOCABULARY);
    let vocabulary: HashMap<String, usize> =
        characters.zip(0..).map(|(c, id)| (c.to_string(), id)).collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}
