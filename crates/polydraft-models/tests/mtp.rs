//! Layers that predict further tokens (MTP) as drafters: what they draft against a direct
//! computation with transformers' decoder layers, which heads/mtp.py made.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::steps::ExpectedSteps;
use crate::common::*;
use polydraft::{PolicyKind, Sampling, VerifierKind};
use polydraft_engine::{Engine, Limits, Request, Speculation};
use polydraft_gguf::Gguf;
use polydraft_models::{Description, HeadOptions, LoadOptions, Loaded, Precision, load, load_mtp};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

/// Directories, and a file that llama.cpp's converter made of one.
const MODELS: [&str; 8] = [
    "mtp-glm",
    "mtp-deepseek",
    "mtp-glm/model.gguf",
    "mtp-qwen",
    "mtp-qwen/model.gguf",
    "mtp-mimo",
    "mtp-nemotron",
    "mtp-nemotron/model.gguf",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/heads").join(name)
}

fn expected(name: &str) -> ExpectedSteps {
    let folder = path(name.split('/').next().unwrap());
    ExpectedSteps::read(&folder.join("expected.safetensors"))
}

fn options(precision: Precision) -> HeadOptions {
    HeadOptions { precision, ..HeadOptions::default() }
}

/// The largest distance of a draft's log-probability from the expected one.
fn worst(path: &Path, expected: &ExpectedSteps) -> f64 {
    let mut target = load(path, LoadOptions::default()).unwrap().model;
    let head = load_mtp(path, &mut target, &options(Precision::F32)).unwrap();
    expected.distance(&mut (target, head))
}

#[test]
fn drafts_are_those_of_a_direct_computation() {
    for name in MODELS {
        let worst = worst(&path(name), &expected(name));
        assert!(worst < 1e-5, "{name}: {worst:e}");
    }
}

/// A model's directory with something changed.
fn changed(name: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(path(name).join(file), directory.path().join(file)).unwrap();
    }
    change(directory.path());
    directory
}

#[test]
fn every_tensor_of_the_layer_counts() {
    let mut unnoticed = Vec::new();
    for (name, begin) in [
        ("mtp-glm", "model.layers.1."),
        ("mtp-deepseek", "model.layers.1."),
        ("mtp-qwen", "mtp."),
        ("mtp-mimo", "model.mtp_layers.0."),
        ("mtp-nemotron", "mtp.layers."),
    ] {
        let (expected, copies) =
            (expected(name), ["embed_tokens.weight", "shared_head.head.weight"]);
        let tensors = read_tensors(&path(name).join("model.safetensors"));
        let own = |tensor: &&String| tensor.starts_with(begin);
        assert!(tensors.keys().filter(own).count() > 10, "{name}");
        for tensor in tensors.keys().filter(own) {
            let directory = changed(name, |directory| {
                let mut tensors = tensors.clone();
                let old = &tensors[tensor];
                let other = |(i, x): (usize, f32)| 1.5 * x + 0.5 * (i % 3) as f32;
                let numbers: Vec<f32> = old.values().into_iter().enumerate().map(other).collect();
                let new = Tensor::new(&numbers, &old.shape, Dtype::F32);
                tensors.insert(tensor.clone(), new);
                write_tensors(&tensors, &directory.join("model.safetensors"));
            });
            let worst = worst(directory.path(), &expected);
            let counts = !copies.iter().any(|copy| tensor.ends_with(copy));
            if (worst > 1e-3) != counts {
                unnoticed.push(format!("{name}: {tensor}: {worst:e}"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

/// The same of Nemotron 3's in a file, where they are one layer.
#[test]
fn every_tensor_of_the_layer_in_a_file_counts() {
    let name = "mtp-nemotron";
    let (file, expected) = (path(name).join("model.gguf"), expected(name));
    let (bytes, gguf) = (fs::read(&file).unwrap(), Gguf::open(&file).unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let changed = temporary.path().join("model.gguf");
    let own: Vec<_> = gguf.tensors().filter(|tensor| tensor.name().starts_with("blk.3.")).collect();
    assert_eq!(own.len(), 18);
    for tensor in own {
        let at = tensor.offset() as usize..tensor.offset() as usize + tensor.bytes();
        let (mut other, words) =
            (bytes.clone(), tensor.bytes() / (tensor.columns() * tensor.rows()));
        other[at].rotate_left(words * (tensor.columns() / 2 + 1));
        fs::write(&changed, other).unwrap();
        let worst = worst(&changed, &expected);
        assert!(worst > 1e-3, "{}: {worst:e}", tensor.name());
    }
}

/// Which layers there are is said by letters or by names; what else the configuration says of them
/// counts.
#[test]
fn layers_of_one_block_are_those_that_are_said() {
    let name = "mtp-nemotron";
    let (expected, pattern) = (expected(name), "mtp_hybrid_override_pattern");
    let with = |field: &str, value: Value| {
        changed(name, |directory| change_config(directory, |config| config[field] = value))
    };
    for (field, value) in [
        ("mtp_layers_block_type", json!(["attention", "moe"])),
        ("mtp_layers_block_type", json!(["full_attention", "moe"])),
        // What models have where nothing is said.
        (pattern, json!(null)),
    ] {
        let directory = with(field, value);
        let worst = worst(directory.path(), &expected);
        assert!(worst < 1e-5, "{field}: {worst:e}");
    }
    for (field, value) in [
        ("num_experts_per_tok", json!(1)),
        ("routed_scaling_factor", json!(1.0)),
        ("norm_topk_prob", json!(false)),
        ("layer_norm_epsilon", json!(1e-3)),
        ("mlp_hidden_act", json!("relu")),
    ] {
        let directory = with(field, value);
        let worst = worst(directory.path(), &expected);
        assert!(worst > 1e-3, "{field}: {worst:e}");
    }
    // Of what does not fit the model itself is left.
    for (value, problem) in [
        (json!("E*"), "mixer.gate.weight"),
        (json!("*-"), "mixer.up_proj.weight"),
        (json!("*E*"), "final_layernorm.weight"),
        (json!("*"), "final_layernorm.weight"),
        (json!("*M"), "one that keeps a state: its own weights"),
    ] {
        let directory = with(pattern, value.clone());
        let mut target = load(directory.path(), LoadOptions::default()).unwrap().model;
        let error = load_mtp(directory.path(), &mut target, &options(Precision::F32)).unwrap_err();
        assert!(error.to_string().contains(problem), "{value}: {error}");
        let drafts = Description::read(directory.path()).unwrap().brings_mtp();
        assert_eq!(drafts, value != json!("*M"), "{value}");
    }
    for (value, problem) in [
        (json!("*X"), "mtp_hybrid_override_pattern: expected mamba, attention, mlp or moe"),
        (json!(""), "mtp_hybrid_override_pattern: expected 1 to 4096 layers, got 0"),
    ] {
        let error = load(with(pattern, value).path(), LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
    // Layers beyond those that are said are left on disk, and so are all where none are said.
    let directory = with("num_nextn_predict_layers", json!(0));
    load(directory.path(), LoadOptions::default()).unwrap();
    assert!(!Description::read(directory.path()).unwrap().brings_mtp());
}

/// With one chain and with several paths, at temperature 0: the tokens of plain decoding.
#[test]
fn output_is_that_of_plain_decoding() {
    for name in MODELS {
        let decode = |speculation: Option<Speculation>| {
            let Loaded { mut model, language, .. } =
                load(&path(name), LoadOptions::default()).unwrap();
            let head = load_mtp(&path(name), &mut model, &options(Precision::Q8_0)).unwrap();
            let mut engine = Engine::new(Box::new(model), Some(Box::new(head)));
            let prompt = [5, 17, 3, 40];
            let request = Request::new(&prompt[..])
                .sampling(Sampling { temperature: 0.0, ..Sampling::default() })
                .speculation(speculation)
                .limits(Limits { max_tokens: Some(40), ..Limits::default() })
                .detokenizer(language.tokenizer.stream(&prompt))
                .rng(ChaCha12Rng::seed_from_u64(1));
            engine.generate(request, &mut |_| true).unwrap().tokens
        };
        let plain = decode(None);
        assert_eq!(plain.len(), 40, "{name}");
        for paths in [1, 2, 4] {
            let verifier = "nested-priority".parse::<VerifierKind>().unwrap();
            let tree = PolicyKind::paths(paths, 3).build().unwrap();
            let speculation = Speculation::new(verifier.build().unwrap(), tree).unwrap();
            assert_eq!(decode(Some(speculation)), plain, "{name}, {paths} paths");
        }
    }
}

#[test]
fn a_part_of_the_vocabulary_is_drafted_from() {
    let name = "mtp-glm";
    let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
    let few = HeadOptions { tokens: Some(vec![3, 4, 9, 50]), ..options(Precision::F32) };
    let head = load_mtp(&path(name), &mut target, &few).unwrap();
    assert_eq!(head.tokens(), [3, 4, 9, 50]);
    let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
    let none = HeadOptions { tokens: Some(vec![900]), ..options(Precision::F32) };
    let error = load_mtp(&path(name), &mut target, &none).unwrap_err().to_string();
    assert!(error.contains("at least one token"), "{error}");
}

#[test]
fn models_without_such_layers_say_what_else_drafts() {
    let plain = path("../fixtures/glm4-moe");
    let mut target = load(&plain, LoadOptions::default()).unwrap().model;
    let error = load_mtp(&plain, &mut target, &options(Precision::F32)).unwrap_err().to_string();
    assert!(error.contains("n-grams, a smaller model"), "{error}");
}

/// The layer is no part of what the model takes.
#[test]
fn the_layer_is_left_out_of_the_model() {
    for name in MODELS {
        let read = Description::read(&path(name)).unwrap();
        let layers = match name.split('/').next().unwrap() {
            "mtp-qwen" => 2,
            "mtp-nemotron" => 3,
            _ => 1,
        };
        assert_eq!((read.config.layers, read.config.extra_layers), (layers, 1), "{name}");
    }
    for name in ["mtp-glm", "mtp-nemotron"] {
        let [directory, file] =
            ["", "model.gguf"].map(|file| Description::read(&path(name).join(file)).unwrap());
        assert_eq!(directory.parameters, file.parameters, "{name}");
    }
}
