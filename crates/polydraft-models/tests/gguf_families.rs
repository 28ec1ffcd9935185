//! Families of 2024 to 2026 in GGUF files, which llama.cpp's converter made from the fixtures
//! (to_gguf.py): they give the logits of the directories, which families.rs compares with
//! transformers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::*;
use polydraft_models::{Description, Precision, gguf_architectures, load};
use serde_json::Value;

const TOKENS: [u32; 20] = [5, 17, 3, 3, 40, 22, 9, 51, 60, 2, 33, 17, 8, 4, 11, 29, 58, 6, 19, 2];

/// Copy of a fixture's folder with the changes with which its file was made (see to_gguf.py).
fn directory(fixture: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(fixture.join(file), directory.path().join(file)).unwrap();
    }
    let changes: Value =
        serde_json::from_slice(&fs::read(fixture.join("gguf.json")).unwrap()).unwrap();
    change_config(directory.path(), |config| {
        for (field, value) in changes["fields"].as_object().unwrap() {
            config[field] = value.clone();
        }
        // The file stores these as f32.
        for number in ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"] {
            if let Some(epsilon) = config[number].as_f64() {
                config[number] = f64::from(epsilon as f32).into();
            }
        }
    });
    let left_out: Vec<&str> =
        changes["left_out"].as_array().into_iter().flatten().flat_map(Value::as_str).collect();
    let mut tensors = read_tensors(&fixture.join("model.safetensors"));
    tensors.retain(|name, _| !left_out.iter().any(|end| name.ends_with(end)));
    if let Some(last) = changes["last_layer"].as_str() {
        tensors.retain(|name, _| !name.contains("layers.") || name.starts_with(last));
        tensors =
            tensors.into_iter().map(|(n, t)| (n.replace(last, "model.layers.0."), t)).collect();
    }
    write_tensors(&tensors, &directory.path().join("model.safetensors"));
    directory
}

/// Fixtures with a GGUF file. One is also a draft head's, for its MTP layer.
fn with_files() -> impl Iterator<Item = (String, PathBuf)> {
    let further = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/heads/mtp-glm");
    let all = fixtures().into_iter().chain([further]);
    let with_file = all.filter(|folder| folder.join("model.gguf").exists());
    with_file.map(|folder| (folder.file_name().unwrap().to_string_lossy().into_owned(), folder))
}

fn logits(path: &Path, precision: Precision) -> Vec<Vec<f32>> {
    let mut model = open(path, precision);
    (1..=TOKENS.len()).map(|length| alone(&mut model, &TOKENS[..length])).collect()
}

fn max_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    a.iter().zip(b).fold(0f32, |worst, (a, b)| worst.max(distance(a, b)))
}

#[test]
fn gguf_files_give_the_logits_of_their_directories() {
    let (mut failures, mut found) = (Vec::new(), Vec::new());
    for (name, folder) in with_files() {
        let directory = directory(&folder);
        let expected = logits(directory.path(), Precision::F32);
        let file = folder.join("model.gguf");
        // Fixtures and files store bf16: nothing is rounded.
        for precision in [Precision::F32, Precision::Bf16, Precision::File] {
            let off = max_difference(&logits(&file, precision), &expected);
            println!("{name}, {precision}: {off:e}");
            // Rotary frequencies are computed from f32 keys, and factors are multiplied in another
            // order.
            failures.extend((off > 5e-6).then(|| format!("{name}, {precision}: {off:e}")));
        }
        let [of_file, of_directory] =
            [&file, directory.path()].map(|path| Description::read(path).unwrap());
        let idle = |read: &Description| read.parameters - read.active_parameters;
        assert_eq!(idle(&of_file), idle(&of_directory), "{name}");
        found.push(of_file.config.architecture);
    }
    assert!(failures.is_empty(), "{failures:#?}");
    // Every architecture has a file, except those that equal another one.
    for known in gguf_architectures().filter(|known| *known != "qwen3vl") {
        assert!(found.contains(&known), "{known} has no fixture");
    }
}

/// Changing any tensor changes the logits.
#[test]
fn every_tensor_of_a_gguf_file_changes_the_logits() {
    let mut unnoticed = Vec::new();
    for (name, folder) in with_files() {
        let path = folder.join("model.gguf");
        let expected = logits(&path, Precision::F32);
        with_each_tensor_changed(&path, |tensor, changed| {
            let off = max_difference(&logits(changed, Precision::F32), &expected);
            // Not visible: a bias that all keys share in layers without rotation, frequencies for
            // long sequences, and MTP layers.
            let invisible = tensor.ends_with("attn_k.bias") && name == "smollm3"
                || tensor == "rope_factors_long.weight"
                // A norm follows the last layer's scale.
                || ["gemma4 4", "gemma4-moe 1", "gemma4-nested 3"].iter().any(|last| {
                    let (fixture, layer) = last.split_once(' ').unwrap();
                    name == fixture && tensor == format!("blk.{layer}.layer_output_scale.weight")
                })
                // A layer that uses another layer's keys and values.
                || name == "gemma4-nested" && tensor.starts_with("blk.3.attn_k")
                || name == "gemma4-nested" && tensor.starts_with("blk.3.attn_v")
                || name == "mtp-glm" && tensor.starts_with("blk.1.");
            if off < 1e-3 && !invisible {
                unnoticed.push(format!("{name}: {tensor}: {off:e}"));
            }
        });
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// A tensor or key that is ignored would change what the model computes.
#[test]
fn rejects_unknown_tensors_and_missing_keys() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("model.gguf");
    let load_error = |fixture: &str, from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let folder = fixtures().into_iter().find(|folder| folder.ends_with(fixture)).unwrap();
        let mut other = fs::read(folder.join("model.gguf")).unwrap();
        let at = other.windows(from.len()).rposition(|window| window == from).unwrap();
        other[at..at + from.len()].copy_from_slice(to);
        fs::write(&path, other).unwrap();
        load(&path, Precision::F32.into()).unwrap_err().to_string()
    };
    for (fixture, from, to, expected) in [
        ("olmo2", "blk.0.attn_q_norm", "blk.0.attn_x_norm", "attn_q_norm.weight"),
        ("olmo2", "olmo2.block_count", "olmo2.block_counx", "olmo2.block_count: expected a number"),
        ("olmo2", "olmo2.embedding_length", "olmo2.embedding_lengxx", "hidden_size"),
        ("gemma4", "head_count_kv", "head_count_xx", "attention.head_count_kv: expected a number"),
        ("gemma4", "feed_forward_length", "feed_forward_lengxx", "feed_forward_length: expected a"),
        ("gemma4", "attention.sliding_window\u{4}", "attention.sliding_windox\u{4}", "a size"),
        ("gemma4", "shared_kv_layers", "shared_kv_layerx", "feed_forward_length: expected 32 in"),
        ("gemma4", "length_per_layer_input", "length_per_layer_inpux", "inp_gate"),
        ("gemma4", "blk.4.layer_output_scale", "blk.4.layer_output_scalx", "layer_output_scale"),
        ("gemma4-moe", "expert_used_count", "expert_used_counx", "top_k_experts: expected a"),
        ("gemma4-moe", "blk.1.ffn_gate_inp.scale", "blk.1.ffn_gate_inp.scalx", "inp.scale"),
    ] {
        let message = load_error(fixture, from.as_bytes(), to.as_bytes());
        assert!(message.contains(expected), "{fixture}: {from}: {message}");
    }
}
