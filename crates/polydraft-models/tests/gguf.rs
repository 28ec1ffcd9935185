//! Models in GGUF files: the fixtures' weights in the layout of llama.cpp's converter give the
//! logits that they give from safetensors, which families.rs compares with transformers.

use std::fs;
use std::path::Path;

use crate::common::{Dtype, Tensor, alone, change_config, distance, open, write_tensors};
use crate::gguf_pair::{Pair, TOKENS, pair, reference, renamed};
use polydraft_gguf::TensorType;
use polydraft_models::{Description, LoadOptions, Precision, load};
use serde_json::{Value, json};

fn logits(path: &Path, precision: Precision) -> Vec<Vec<f32>> {
    let mut model = open(path, precision);
    (1..=TOKENS.len()).map(|length| alone(&mut model, &TOKENS[..length])).collect()
}

const FAMILIES: [&str; 7] =
    ["llama", "llama-biases", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"];

#[test]
fn same_logits_as_from_safetensors_for_every_family() {
    for fixture in FAMILIES {
        let mut pair = pair(fixture);
        // The file stores these as f32.
        let epsilon = pair.config["rms_norm_eps"].as_f64().unwrap() as f32;
        change_config(pair.directory.path(), |config| {
            config["rms_norm_eps"] = json!(f64::from(epsilon))
        });
        pair.config["rms_norm_eps"] = json!(f64::from(epsilon));
        let expected = logits(pair.directory.path(), Precision::F32);
        for precision in [Precision::F32, Precision::File] {
            assert_eq!(logits(&pair.plain(), precision), expected, "{fixture}, {precision}");
        }
        // Stored as bf16, the type of the fixtures' weights.
        let half = pair.write(pair.keys(), &|_| TensorType::BF16);
        for precision in [Precision::F32, Precision::Bf16, Precision::File] {
            assert_eq!(logits(&half, precision), expected, "{fixture} in bf16, {precision}");
        }
        // Stacked matrices of two types.
        let mixed = pair.write(pair.keys(), &|name| match name.contains("attn_k")
            || name.contains("ffn_up")
        {
            true => TensorType::BF16,
            false => TensorType::F32,
        });
        assert_eq!(logits(&mixed, Precision::File), expected, "{fixture}, mixed");
    }
}

#[test]
fn wrong_row_order_changes_the_logits() {
    // The same file, labelled as an architecture whose rows are not permuted.
    let pair = pair("llama");
    let expected = logits(pair.directory.path(), Precision::F32);
    let path = pair.plain();
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"llama" {
            bytes[at..at + 5].copy_from_slice(b"qwen2");
        }
    }
    fs::write(&path, bytes).unwrap();
    let worst = logits(&path, Precision::F32)
        .iter()
        .zip(&expected)
        .fold(0f32, |w, (a, b)| w.max(distance(a, b)));
    assert!(worst > 1e-2, "{worst:e}");
}

#[test]
fn scaled_rotary_frequencies_equal_those_of_the_config() {
    let scaled = |scaling: Value| Pair::new("llama", |config| config["rope_scaling"] = scaling);
    let linear = scaled(json!({"type": "linear", "factor": 3.0}));
    let keys = linear
        .keys()
        .str("llama.rope.scaling.type", "linear")
        .f32("llama.rope.scaling.factor", 3.0);
    let yarn = scaled(json!({
        "type": "yarn", "factor": 4.0, "beta_fast": 4.0, "original_max_position_embeddings": 400
    }));
    let yarn_keys =
        (yarn.keys().str("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4.0))
            .f32("llama.rope.scaling.yarn_beta_fast", 4.0)
            .u32("llama.rope.scaling.original_context_length", 400);
    for (pair, keys) in [(linear, keys), (yarn, yarn_keys)] {
        let expected = logits(pair.directory.path(), Precision::F32);
        let path = pair.write(keys, &|_| TensorType::F32);
        let found = logits(&path, Precision::F32);
        let worst = found.iter().zip(&expected).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
        assert!(worst < 1e-5, "{worst:e}");
    }
    // Llama 3's scaling is a tensor of divisors.
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 32.0);
    let pair = scaled(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original
    }));
    let head = pair.head();
    let divisors: Vec<f32> = (0..head / 2)
        .map(|i| {
            let plain = pair.theta().powf(-2.0 * i as f64 / head as f64);
            let unscaled: f64 =
                ((original * plain / std::f64::consts::TAU - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / (unscaled + (1.0 - unscaled) / factor)) as f32
        })
        .collect();
    let keys = pair.keys().f32_tensor("rope_freqs.weight", &[divisors.len() as u64], &divisors);
    let expected = logits(pair.directory.path(), Precision::F32);
    let found = logits(&pair.write(keys, &|_| TensorType::F32), Precision::F32);
    let worst = found.iter().zip(&expected).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
    assert!(worst < 1e-4, "{worst:e}");
}

#[test]
fn quantised_blocks_are_used_unchanged() {
    for (kind, precision) in [
        (TensorType::Q8_0, Precision::Q8_0),
        (TensorType::Q4_0, Precision::Q4_0),
        (TensorType::Q4_1, Precision::Q4_1),
        (TensorType::Q5_1, Precision::Q5_1),
    ] {
        for fixture in ["llama", "llama-biases", "qwen3"] {
            let pair = pair(fixture);
            // An untied embedding is stored in f32 beside quantised matrices.
            let tied = pair.config["tie_word_embeddings"].as_bool().unwrap();
            let kinds = |name: &str| {
                if !tied && name.contains("token_embd") { TensorType::F32 } else { kind }
            };
            let path = pair.write(pair.keys(), &kinds);
            // The same blocks, made from the directory's weights on loading.
            let expected = logits(pair.directory.path(), precision);
            assert_eq!(logits(&path, Precision::File), expected, "{fixture}, {kind:?}");
            assert_eq!(logits(&path, precision), expected, "{fixture}, {kind:?}");
            let model = open(&path, Precision::File).model;
            let stored = Description::read(&path).unwrap().weight_bytes(Precision::File);
            // Tiles are padded, which matters with few rows.
            assert!(
                model.weight_bytes() < 3 * stored as usize,
                "{} {stored}",
                model.weight_bytes()
            );
            // In f32 they equal a directory of the dequantised values.
            let mut tensors = pair.tensors.clone();
            for (name, tensor) in tensors.iter_mut().filter(|(_, tensor)| tensor.shape.len() == 2) {
                let dequantised = match kinds(&renamed(name, false)) {
                    TensorType::F32 => tensor.values(),
                    kind => {
                        reference::dequantized(kind, &reference::quantised(kind, &tensor.values()))
                    }
                };
                *tensor = Tensor::new(&dequantised, &tensor.shape, Dtype::F32);
            }
            write_tensors(&tensors, &pair.directory.path().join("model.safetensors"));
            let expected = logits(pair.directory.path(), Precision::F32);
            assert_eq!(logits(&path, Precision::F32), expected, "{fixture}, {kind:?} in f32");
        }
    }
    // Close to f32 up to inputs rounded to 8 bits; also for a type to which nothing is quantised
    // here.
    let pair = pair("llama");
    for kind in [TensorType::Q5_0, TensorType::Q5_1] {
        let path = pair.write(pair.keys(), &|_| kind);
        let [file, wide] = [Precision::File, Precision::F32].map(|p| logits(&path, p));
        let worst = file.iter().zip(&wide).fold(0f32, |w, (a, b)| w.max(distance(a, b)));
        assert!(worst > 0.0 && worst < 0.02, "{kind:?}: {worst:e}");
        let [file, wide] =
            [Precision::File, Precision::F32].map(|p| open(&path, p).model.weight_bytes());
        assert!(file * 5 < wide, "{file} {wide}");
    }
}

#[test]
fn tokenizer_and_chat_template_come_from_the_file() {
    let pair = pair("qwen2");
    let path = pair.plain();
    let description = Description::read(&path).unwrap();
    let language = &description.language;
    // The converter's padding tokens are not part of the vocabulary.
    assert_eq!((description.config.vocabulary, language.vocabulary.size()), (80, 62));
    assert_eq!((language.name.as_str(), &language.end_tokens[..]), ("model", &[1][..]));
    assert_eq!(description.stored, "F32");
    let template = language.chat.as_ref().unwrap();
    assert_eq!(template.render(&[polydraft_text::Message::user("ab c")]).unwrap(), "<s>ab c");
    let tokens = language.tokenizer.encode_plain("ab c").unwrap();
    assert_eq!(language.tokenizer.decode(&tokens).unwrap(), "ab c");
    let loaded = load(&path, LoadOptions::default()).unwrap();
    assert_eq!(loaded.language.vocabulary.size(), 62);
    // The error for too little memory names what would fit.
    let options =
        LoadOptions { precision: Precision::F32, memory: Some(60_000), ..LoadOptions::default() };
    let message = load(&path, options).unwrap_err().to_string();
    assert!(message.contains("as f32 this model needs"), "{message}");
}
