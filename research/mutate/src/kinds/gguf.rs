//! GGUF files: parsed only, or loaded as complete models and run.

use std::path::Path;

use anyhow::Result;
use polydraft_gguf::{Gguf, ModelDescription, TokenizerDescription};

use super::{models, text_files, write};
use crate::mutation::{self, Dice};

#[path = "../../../../crates/polydraft-gguf/tests/support/mod.rs"]
mod support;

/// Reads header, tensors, description and tokenizer.
pub fn read(dice: &mut Dice) -> Result<()> {
    const SEEDS: [&[u8]; 3] = [
        include_bytes!("../../../../crates/polydraft-gguf/tests/fixtures/byte_level.gguf"),
        include_bytes!("../../../../crates/polydraft-gguf/tests/fixtures/sentence_piece.gguf"),
        include_bytes!("../../../../crates/polydraft-gguf/tests/fixtures/dequantize.gguf"),
    ];
    let mut bytes = SEEDS[dice.below(SEEDS.len())].to_vec();
    mutation::bytes(dice, &mut bytes, 3_000);
    let length = bytes.len();
    let gguf = Gguf::from_bytes("mutant", bytes)?;
    for tensor in gguf.tensors() {
        assert!(tensor.offset() + tensor.bytes() as u64 <= length as u64);
        if let Ok(values) = tensor.dequantize() {
            assert_eq!(values.len(), tensor.rows() * tensor.columns());
        }
    }
    if let Ok(model) = ModelDescription::read(&gguf) {
        let _ = model.check_tensors(&gguf);
    }
    let tokenizer = TokenizerDescription::read(gguf.metadata())?.tokenizer()?;
    text_files::used(&polydraft_text::Tokenizer::from_parts(tokenizer, "mutant"), dice)
}

/// Loads and runs a model from a GGUF file.
pub fn model(dice: &mut Dice, folder: &Path) -> Result<()> {
    let mut bytes = complete(dice).finish();
    // Mostly in the header, which describes the model, rather than in the weights.
    mutation::bytes(dice, &mut bytes, 4_000);
    let path = folder.join("model.gguf");
    write(&path, &bytes)?;
    models::used(&path, dice)
}

const WIDTH: u64 = 32;
const TOKENS: [&str; 12] =
    ["<s>", "</s>", "h", "i", "o", "\u{120}", "hi", "ho", "e", "\u{120}h", "\u{120}ho", "x"];

/// Writes a model of one or two layers with a tokenizer; matrix types are random.
fn complete(dice: &mut Dice) -> support::Writer {
    /// ggml type number, numbers per block, bytes per block.
    const TYPES: [(u32, usize, usize); 9] = [
        (0, 1, 4),
        (1, 1, 2),
        (30, 1, 2),
        (2, 32, 18),
        (3, 32, 20),
        (6, 32, 22),
        (7, 32, 24),
        (8, 32, 34),
        (20, 32, 18),
    ];
    let name = ["llama", "qwen2", "qwen3", "gemma2", "gemma3"][dice.below(5)];
    let layers = 1 + dice.below(2) as u32;
    let key = |field: &str| format!("{name}.{field}");
    let mut types = vec![1; TOKENS.len()];
    types[..2].fill(3);
    let mut writer = support::Writer::default()
        .str("general.architecture", name)
        .u32(&key("block_count"), layers)
        .u32(&key("context_length"), 64)
        .u32(&key("embedding_length"), WIDTH as u32)
        .u32(&key("feed_forward_length"), WIDTH as u32)
        .u32(&key("attention.head_count"), 2)
        .u32(&key("attention.head_count_kv"), 1)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 10_000.0)
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &TOKENS)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &["h i", "h o", "\u{120} h", "\u{120}h o"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1);
    if name.starts_with("gemma") {
        writer = writer.u32(&key("attention.sliding_window"), 8);
    }
    if dice.one_in(4) {
        let scaling = ["linear", "yarn", "none", "longrope"][dice.below(4)];
        writer = writer
            .str(&key("rope.scaling.type"), scaling)
            .f32(&key("rope.scaling.factor"), 4.0)
            .u32(&key("rope.scaling.original_context_length"), 16);
    }
    let (number, block, bytes) = TYPES[dice.below(TYPES.len())];
    let filler = [0x2c, 0x3a, 0xad, 0][dice.below(4)];
    let mut add = |name: String, dimensions: &[u64]| {
        let count = dimensions.iter().product::<u64>() as usize;
        let file = std::mem::take(&mut writer);
        writer = match dimensions.len() {
            1 => file.f32_tensor(&name, dimensions, &vec![1.0; count]),
            _ => file.tensor(&name, number, dimensions, &vec![filler; count / block * bytes]),
        };
    };
    add("token_embd.weight".to_owned(), &[WIDTH, TOKENS.len() as u64]);
    add("output_norm.weight".to_owned(), &[WIDTH]);
    let gemma = name.starts_with("gemma");
    for layer in 0..layers {
        let mut tensor =
            |part: &str, dimensions: &[u64]| add(format!("blk.{layer}.{part}"), dimensions);
        for norm in ["attn_norm.weight", "ffn_norm.weight"] {
            tensor(norm, &[WIDTH]);
        }
        for (matrix, rows) in [("q", WIDTH), ("k", WIDTH / 2), ("v", WIDTH / 2), ("output", WIDTH)]
        {
            tensor(&format!("attn_{matrix}.weight"), &[WIDTH, rows]);
            if name == "qwen2" && matrix != "output" {
                tensor(&format!("attn_{matrix}.bias"), &[rows]);
            }
        }
        for matrix in ["gate", "up", "down"] {
            tensor(&format!("ffn_{matrix}.weight"), &[WIDTH, WIDTH]);
        }
        if matches!(name, "qwen3" | "gemma3") {
            tensor("attn_q_norm.weight", &[WIDTH / 2]);
            tensor("attn_k_norm.weight", &[WIDTH / 2]);
        }
        if gemma {
            tensor("post_attention_norm.weight", &[WIDTH]);
            tensor("post_ffw_norm.weight", &[WIDTH]);
        }
    }
    writer
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// If unmutated inputs were rejected, mutations would never get past the loader's first checks.
    #[test]
    fn unmutated_input_is_a_valid_model() {
        let folder = tempfile::tempdir().unwrap();
        let mut fine = 0;
        for seed in 0..40 {
            let mut dice = Dice(rand_chacha::ChaCha8Rng::seed_from_u64(seed));
            let path = folder.path().join("model.gguf");
            write(&path, &complete(&mut dice).finish()).unwrap();
            match models::used(&path, &mut dice) {
                Ok(()) => fine += 1,
                // Some choices are invalid by design: a RoPE scaling, a weight type, or numbers
                // that give no distribution.
                Err(error) => println!("{error:#}"),
            }
        }
        assert!(fine >= 20, "{fine} of 40");
    }
}
