//! Loading from disk: every layout gives the same model, and malformed files give clear errors.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::common::*;
use polydraft_models::{Description, LoadOptions, Precision, load};
use serde_json::{Value, json};

fn load_error(directory: &Path) -> String {
    load(directory, LoadOptions::default()).expect_err("this directory is malformed").to_string()
}

/// Asserts that loading a valid directory changed by `change` fails with an error that contains all
/// of `expected`.
fn assert_load_error(change: impl FnOnce(&Path), expected: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    change(directory.path());
    let message = load_error(directory.path());
    for part in expected {
        assert!(message.contains(part), "expected {part:?} in: {message}");
    }
}

fn change_field(directory: &Path, field: &str, value: Value) {
    change_config(directory, |config| config[field] = value);
}

fn change_tensors(directory: &Path, change: impl FnOnce(&mut Tensors)) {
    let mut all = tensors(1, Dtype::F32);
    change(&mut all);
    write_tensors(&all, &directory.join("model.safetensors"));
}

#[test]
fn shards_give_the_same_model() {
    let (single_file, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let all = tensors(4, Dtype::F32);
    write_model(single_file.path(), &all);
    write_model(sharded.path(), &all);
    fs::remove_file(sharded.path().join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    let mut shards = [HashMap::new(), HashMap::new()];
    for (i, (name, tensor)) in all.iter().enumerate() {
        map.insert(name.clone(), json!(format!("part-{}.safetensors", i % 2)));
        shards[i % 2].insert(name.clone(), tensor.clone());
    }
    for (i, shard) in shards.iter().enumerate() {
        let path = sharded.path().join(format!("part-{i}.safetensors"));
        write_tensors(shard, &path);
    }
    write_json(sharded.path(), "model.safetensors.index.json", &json!({ "weight_map": map }));
    let logits = |path: &Path| alone(&mut open(path, Precision::F32), &[1, 2, 3]);
    assert_eq!(logits(single_file.path()), logits(sharded.path()));

    fs::remove_file(sharded.path().join("part-1.safetensors")).unwrap();
    assert!(load_error(sharded.path()).contains("part-1.safetensors"));
    let outside = json!({ "weight_map": { "a": "../secret.safetensors" } });
    write_json(sharded.path(), "model.safetensors.index.json", &outside);
    assert!(load_error(sharded.path()).contains("file names in this directory"));
}

#[test]
fn f16_and_bf16_are_widened_exactly() {
    for dtype in [Dtype::BF16, Dtype::F16] {
        let (narrow, wide) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let rounded = tensors(5, dtype);
        write_model(narrow.path(), &rounded);
        let widened: Tensors =
            rounded.iter().map(|(name, t)| (name.clone(), t.to_dtype(Dtype::F32))).collect();
        write_model(wide.path(), &widened);
        let logits = |path: &Path| alone(&mut open(path, Precision::F32), &[1, 2, 3]);
        assert_eq!(logits(narrow.path()), logits(wide.path()));
    }
}

#[test]
fn quantised_logits_are_close() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(6, Dtype::F32));
    let logits = |precision| alone(&mut open(directory.path(), precision), &[1, 2, 3, 4]);
    let (full, quantised) = (logits(Precision::F32), logits(Precision::Q8_0));
    let difference = distance(&full, &quantised);
    assert!(difference > 0.0 && difference < 0.2, "{difference}");
}

#[test]
fn tied_embedding_equals_equal_output_matrix() {
    let directory = tempfile::tempdir().unwrap();
    let mut all = tensors(7, Dtype::F32);
    all.insert("lm_head.weight".into(), all["model.embed_tokens.weight"].clone());
    write_model(directory.path(), &all);
    let untied = alone(&mut open(directory.path(), Precision::F32), &[1, 2]);
    change_field(directory.path(), "tie_word_embeddings", json!(true));
    all.remove("lm_head.weight");
    write_tensors(&all, &directory.path().join("model.safetensors"));
    assert_eq!(untied, alone(&mut open(directory.path(), Precision::F32), &[1, 2]));
    open(directory.path(), Precision::Q8_0);
}

#[test]
fn errors_name_missing_files_and_tensors() {
    assert!(load_error(Path::new("/no/such/place")).contains("nothing there"));
    let empty = tempfile::tempdir().unwrap();
    assert!(load_error(empty.path()).contains("config.json"));
    let remove = |name: &'static str| move |d: &Path| fs::remove_file(d.join(name)).unwrap();
    assert_load_error(remove("config.json"), &["config.json"]);
    assert_load_error(remove("tokenizer.json"), &["tokenizer.json"]);
    assert_load_error(
        remove("model.safetensors"),
        &["model.safetensors", "model.safetensors.index.json"],
    );
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.remove("model.layers.1.mlp.up_proj.weight"))),
        &["model.layers.1.mlp.up_proj.weight", "[64, 32]", "no tensor of that name"],
    );
}

#[test]
fn rejects_weights_cut_at_any_length() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::BF16));
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    // Every length up to the first tensor, then some two thousand lengths up to the end.
    let step = ((bytes.len() - header) / 2000).max(1);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let cuts: Vec<usize> = (header + 1..bytes.len())
        .step_by(step)
        .chain([bytes.len() - 1])
        .chain(0..=header)
        .collect();
    let mut lengths = cuts;
    lengths.sort_by(|a, b| b.cmp(a));
    for length in lengths {
        file.set_len(length as u64).unwrap();
        let message = load_error(directory.path());
        assert!(message.contains("model.safetensors"), "{length}: {message}");
    }
    fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
    assert!(load_error(directory.path()).contains(&format!("got {} bytes", bytes.len() + 4)));
}

#[test]
fn corrupt_headers_never_panic() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for size in [u64::MAX, u64::MAX / 2, 1 << 40, bytes.len() as u64] {
        let mut corrupt = bytes.clone();
        corrupt[..8].copy_from_slice(&size.to_le_bytes());
        fs::write(&path, corrupt).unwrap();
        assert!(load_error(directory.path()).contains("model.safetensors"));
    }
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in (8..header).step_by(7) {
        let mut corrupt = bytes.clone();
        corrupt[at] ^= 0x15;
        fs::write(&path, corrupt).unwrap();
        // Some changes only rename a tensor or replace a space; none may panic.
        let _ = load(directory.path(), LoadOptions::default());
    }
    let mut header = br#"{"t":{"dtype":"F32","shape":[9007199254740993,4611686018427387904],
            "data_offsets":[0,4]}}"#
        .to_vec();
    let mut absurd = (header.len() as u64).to_le_bytes().to_vec();
    absurd.append(&mut header);
    absurd.extend([0; 4]);
    fs::write(&path, absurd).unwrap();
    assert!(load_error(directory.path()).contains("model.safetensors"));
}

/// Descriptions read headers only, but report shapes that contradict the configuration.
#[test]
fn description_rejects_shapes_that_contradict_the_config() {
    for (fixture, field, value, expected) in [
        (
            "llama",
            "hidden_size",
            64,
            "embed_tokens.weight: expected shape [62, 64], got shape [62, 32]",
        ),
        (
            "llama",
            "vocab_size",
            80,
            "embed_tokens.weight: expected shape [80, 32], got shape [62, 32]",
        ),
        (
            "llama",
            "num_attention_heads",
            8,
            "layers.0.self_attn.q_proj.weight: expected shape [64, 32], got shape [32, 32]",
        ),
        (
            "llama",
            "num_key_value_heads",
            2,
            "layers.0.self_attn.k_proj.weight: expected shape [16, 32], got shape [32, 32]",
        ),
        (
            "llama",
            "head_dim",
            4,
            "layers.0.self_attn.q_proj.weight: expected shape [16, 32], got shape [32, 32]",
        ),
        (
            "llama",
            "intermediate_size",
            48,
            "layers.0.mlp.gate_proj.weight: expected shape [48, 32], got shape [32, 32]",
        ),
        ("opt", "ffn_dim", 40, "layers.0.fc1.weight: expected shape [40, 32], got shape [48, 32]"),
        (
            "gemma2",
            "intermediate_size",
            47,
            "layers.0.mlp.gate_proj.weight: expected shape [47, 32]",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(from.join(file), directory.path().join(file)).unwrap();
        }
        Description::read(directory.path()).unwrap();
        change_field(directory.path(), field, json!(value));
        let message = Description::read(directory.path()).map(drop).unwrap_err().to_string();
        assert!(
            message.contains("model.safetensors") && message.contains(expected),
            "{field}: {message}"
        );
    }
    // A missing tensor.
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    let name = "model.layers.1.mlp.up_proj.weight";
    change_tensors(directory.path(), |all| drop(all.remove(name)));
    let message = Description::read(directory.path()).map(drop).unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("no tensor of that name"), "{message}");
}

#[test]
fn errors_name_tensors_that_contradict_the_config() {
    let wrong_shape = Tensor::zeros(&[3, 4], Dtype::F32);
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.insert("model.norm.weight".into(), wrong_shape))),
        &["model.norm.weight", "expected shape [32]", "got shape [3, 4]"],
    );
    let integers = Tensor::zeros(&[32], Dtype::U32);
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.insert("model.norm.weight".into(), integers))),
        &["model.norm.weight", "F32, F16 or BF16", "U32"],
    );
    let not_a_number = Tensor::new(&[f32::NAN; 32], &[32], Dtype::F32);
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.insert("model.norm.weight".into(), not_a_number))),
        &["model.norm.weight", "finite", "NaN at entry 0"],
    );
    let more = Tensor::zeros(&[3], Dtype::F32);
    let beyond = more.clone();
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.insert("model.layers.2.mlp.bias".into(), more))),
        &["model.layers.2.mlp.bias", "no such tensor"],
    );
    // A tensor beyond the last layer means that the configuration has too few layers.
    assert_load_error(
        |d| change_tensors(d, |all| drop(all.insert("model.layers.3.mlp.bias".into(), beyond))),
        &["config.json", "num_hidden_layers", "expected 4", "got 3"],
    );
}

#[test]
fn errors_name_invalid_config_fields() {
    assert_load_error(
        |d| fs::write(d.join("config.json"), "{").unwrap(),
        &["config.json", "line 1"],
    );
    assert_load_error(
        |d| fs::write(d.join("config.json"), [0xff, 0xfe]).unwrap(),
        &["config.json"],
    );
    assert_load_error(
        |d| change_field(d, "architectures", json!(["MambaForCausalLM"])),
        &["MambaForCausalLM", "LlamaForCausalLM"],
    );
    assert_load_error(
        |d| change_field(d, "architectures", json!(null)),
        &["architectures", "got none"],
    );
    for field in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "intermediate_size",
    ] {
        assert_load_error(
            |d| change_field(d, field, json!(1u64 << 60)),
            &[field, "1152921504606846976"],
        );
        assert_load_error(|d| change_field(d, field, json!(0)), &[field, "got 0"]);
        assert_load_error(|d| change_field(d, field, json!(-1)), &["config.json"]);
    }
    // Large but plausible sizes are rejected before anything is allocated.
    assert_load_error(
        |d| change_field(d, "vocab_size", json!(1 << 24)),
        &["tokenizer.json", "16777216"],
    );
    assert_load_error(
        |d| change_field(d, "intermediate_size", json!(1 << 20)),
        &["gate_proj", "[1048576, 32]"],
    );
    assert_load_error(
        |d| change_field(d, "num_attention_heads", json!(0)),
        &["num_attention_heads"],
    );
    assert_load_error(
        |d| change_field(d, "num_key_value_heads", json!(3)),
        &["num_key_value_heads", "divisor"],
    );
    assert_load_error(|d| change_field(d, "head_dim", json!(15)), &["head_dim", "even"]);
    assert_load_error(|d| change_field(d, "rope_theta", json!(-1.0)), &["rope_theta"]);
    let scaling = |value: Value, expected: &[&str]| {
        assert_load_error(|d| change_field(d, "rope_scaling", value), expected)
    };
    scaling(
        json!({"type": "spiral"}),
        &["rope_scaling", "spiral", "default, linear, dynamic, llama3, yarn, longrope"],
    );
    scaling(json!({"type": "longrope"}), &["rope_scaling: short_factor", "positive numbers"]);
    scaling(json!({"type": "longrope", "short_factor": [1.0]}), &["short_factor", "got 1"]);
    assert_load_error(
        |d| change_field(d, "partial_rotary_factor", json!(0.5)),
        &["partial_rotary_factor: expected 1, got 0.5"],
    );
    scaling(json!({"type": "linear"}), &["rope_scaling: factor", "got none"]);
    scaling(json!({"type": "linear", "factor": 0}), &["rope_scaling: factor", "got 0"]);
    scaling(
        json!({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1}),
        &["less than"],
    );
    scaling(json!("twice"), &["rope_scaling", "object"]);
    assert_load_error(
        |d| change_field(d, "hidden_act", json!("swish2")),
        &["hidden_act", "swish2", "silu, gelu"],
    );
    assert_load_error(
        |d| change_field(d, "attention_bias", json!(true)),
        &["q_proj.bias", "no tensor of that name"],
    );
    assert_load_error(
        |d| change_field(d, "attention_bias", json!("yes")),
        &["attention_bias", "yes"],
    );
}

#[test]
fn errors_name_tokenizers_that_do_not_fit_the_embedding() {
    assert_load_error(|d| fs::write(d.join("tokenizer.json"), "{}").unwrap(), &["tokenizer.json"]);
    assert_load_error(
        |d| write_json(d, "tokenizer.json", &tokenizer(VOCABULARY + 4)),
        &["100 tokens", "96 rows", "token 96"],
    );
    assert_load_error(
        |d| {
            change_field(d, "vocab_size", json!(5000));
        },
        &["5000 rows", "only 96"],
    );
}

#[test]
fn end_tokens_come_from_either_file() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    let ends = || load(directory.path(), LoadOptions::default()).unwrap().language.end_tokens;
    assert_eq!(ends(), [3, 5]);
    write_json(directory.path(), "generation_config.json", &json!({ "eos_token_id": 7 }));
    assert_eq!(ends(), [7]);
    write_json(directory.path(), "generation_config.json", &json!({ "temperature": 0.5 }));
    assert_eq!(ends(), [3, 5]);
    write_json(directory.path(), "generation_config.json", &json!("none"));
    assert!(load_error(directory.path()).contains("generation_config.json"));
}

#[test]
fn memory_error_names_precisions_that_fit() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    let result = |precision, memory| {
        let options = LoadOptions { precision, memory: Some(memory), ..LoadOptions::default() };
        load(directory.path(), options).map(|_| ()).map_err(|e| e.to_string())
    };
    // The weights take 155 kB in f32, keys and values of the context 491 kB.
    assert_eq!(result(Precision::F32, 1 << 20), Ok(()));
    let found = result(Precision::F32, 600_000).unwrap_err();
    assert!(found.contains("as f32") && found.contains("600.0 kB are free"), "{found}");
    assert!(found.contains("would fit: f16 (") && found.contains("q8_0 ("), "{found}");
    assert_eq!(result(Precision::Q8_0, 600_000), Ok(()));
    assert!(result(Precision::Q8_0, 1000).unwrap_err().contains("no weight type would fit"));
}

#[test]
fn error_names_pytorch_files_that_are_not_zip_archives() {
    assert_load_error(
        |d| fs::rename(d.join("model.safetensors"), d.join("pytorch_model.bin")).unwrap(),
        &["pytorch_model.bin", "expected a zip as PyTorch writes it"],
    );
}

#[test]
fn published_sampling_is_read() {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path(), &tensors(1, Dtype::F32));
    let sampling = |value: Value| {
        write_json(directory.path(), "generation_config.json", &value);
        load(directory.path(), LoadOptions::default()).unwrap().language.sampling
    };
    let settings = json!({"do_sample": true, "temperature": 0.6, "top_k": 0, "top_p": 0.9,
        "repetition_penalty": 1.2});
    let found = sampling(settings);
    assert_eq!((found.temperature, found.top_k, found.top_p), (Some(0.6), None, Some(0.9)));
    assert_eq!(found.unsupported, ["repetition_penalty 1.2"]);
    // Without do_sample the other fields are ignored.
    assert_eq!(sampling(json!({"temperature": 0.6})).temperature, None);
}
