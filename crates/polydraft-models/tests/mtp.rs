//! Multi-token prediction (MTP) layers as drafters: their drafts against a direct computation with
//! transformers' decoder layers, which heads/mtp.py made, and those of several modules against
//! transformers' `MtpModel`, which heads/mtp_modules.py ran.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::steps::ExpectedSteps;
use crate::common::*;
use polydraft::{DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Drafter, Engine, Limits, Model, Request, Sequences, Speculation};
use polydraft_gguf::Gguf;
use polydraft_models::{
    Description, HeadDescription, HeadKind, HeadOptions, LoadOptions, Loaded, Precision, head_kind,
    load, load_head, load_mtp,
};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

/// Directories, and files that llama.cpp's converter made from them.
const MODELS: [&str; 12] = [
    "mtp-glm",
    "mtp-deepseek",
    "mtp-glm-lite",
    "mtp-glm/model.gguf",
    "mtp-qwen",
    "mtp-qwen/model.gguf",
    "mtp-mimo",
    "mtp-nemotron",
    "mtp-nemotron/model.gguf",
    "mtp-glm-three",
    "mtp-glm-three/model.gguf",
    "mtp-mimo-three",
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

/// Largest difference between drafted and expected log-probabilities.
fn worst(path: &Path, expected: &ExpectedSteps) -> f64 {
    let mut target = load(path, LoadOptions::default()).unwrap().model;
    let head = load_mtp(path, &mut target, &options(Precision::F32)).unwrap();
    expected.distance(&mut (target, head))
}

#[test]
fn drafts_equal_a_direct_computation() {
    for name in MODELS {
        let worst = worst(&path(name), &expected(name));
        assert!(worst < 1e-5, "{name}: {worst:e}");
    }
}

/// MTP layers that lie beside their model in a file of their own.
#[test]
fn files_without_the_model_draft_as_its_own_layers() {
    for name in ["mtp-qwen", "mtp-glm", "mtp-glm-three", "mtp-nemotron"] {
        let (model, file) =
            (path(&format!("{name}/model.gguf")), path(&format!("{name}/mtp.gguf")));
        assert_eq!(head_kind(&file), Some(HeadKind::Autoregressive));
        assert_eq!(head_kind(&model), None);
        let mut target = load(&model, LoadOptions::default()).unwrap().model;
        let vocabulary = target.info().vocabulary.size();
        let read = HeadDescription::read(&file, target.config(), vocabulary).unwrap();
        assert!(read.parameters > 0 && read.tokens == vocabulary, "{read:?}");
        let head = load_head(&file, &mut target, &options(Precision::F32)).unwrap();
        let worst = expected(name).distance(&mut (target, head));
        assert!(worst < 1e-5, "{name}: {worst:e}");
        // It is no model, and drafts for no other.
        let error = load(&file, LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("which draft for the model"), "{error}");
        let other = if name.starts_with("mtp-glm") { "mtp-qwen" } else { "mtp-glm" };
        let mut target = load(&path(other), LoadOptions::default()).unwrap().model;
        let error = load_head(&file, &mut target, &options(Precision::F32)).unwrap_err();
        assert!(error.to_string().contains("expected the MTP layers of"), "{error}");
    }
}

/// Copy of a model's directory with a change.
fn changed(name: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(path(name).join(file), directory.path().join(file)).unwrap();
    }
    change(directory.path());
    directory
}

#[test]
fn every_tensor_of_the_layer_changes_the_drafts() {
    let mut unnoticed = Vec::new();
    for (name, begin) in [
        ("mtp-glm", "model.layers.1."),
        ("mtp-deepseek", "model.layers.1."),
        ("mtp-glm-lite", "model.layers.1."),
        ("mtp-qwen", "mtp."),
        ("mtp-mimo", "model.mtp_layers.0."),
        ("mtp-nemotron", "mtp.layers."),
        ("mtp-glm-three", "model.layers.1."),
        ("mtp-glm-three", "model.layers.2."),
        ("mtp-glm-three", "model.layers.3."),
        ("mtp-mimo-three", "model.mtp_layers."),
    ] {
        let (expected, copies) =
            (expected(name), ["embed_tokens.weight", "shared_head.head.weight"]);
        let tensors = read_tensors(&path(name).join("model.safetensors"));
        let is_layers = |tensor: &&String| tensor.starts_with(begin);
        assert!(tensors.keys().filter(is_layers).count() > 10, "{name}");
        for tensor in tensors.keys().filter(is_layers) {
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

/// As above for Nemotron 3 in a GGUF file, where the layers are one.
#[test]
fn every_tensor_of_the_layer_in_a_gguf_file_changes_the_drafts() {
    let name = "mtp-nemotron";
    let (file, expected) = (path(name).join("model.gguf"), expected(name));
    let (bytes, gguf) = (fs::read(&file).unwrap(), Gguf::open(&file).unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let changed = temporary.path().join("model.gguf");
    let tensors: Vec<_> =
        gguf.tensors().filter(|tensor| tensor.name().starts_with("blk.3.")).collect();
    assert_eq!(tensors.len(), 18);
    for tensor in tensors {
        let at = tensor.offset() as usize..tensor.offset() as usize + tensor.bytes();
        let (mut other, words) =
            (bytes.clone(), tensor.bytes() / (tensor.columns() * tensor.rows()));
        other[at].rotate_left(words * (tensor.columns() / 2 + 1));
        fs::write(&changed, other).unwrap();
        let worst = worst(&changed, &expected);
        assert!(worst > 1e-3, "{}: {worst:e}", tensor.name());
    }
}

/// Layer types are read as letters or names, and the other fields of the layers change the drafts.
#[test]
fn single_block_layers_follow_the_configuration() {
    let name = "mtp-nemotron";
    let (expected, pattern) = (expected(name), "mtp_hybrid_override_pattern");
    let with = |field: &str, value: Value| {
        changed(name, |directory| change_config(directory, |config| config[field] = value))
    };
    for (field, value) in [
        ("mtp_layers_block_type", json!(["attention", "moe"])),
        ("mtp_layers_block_type", json!(["full_attention", "moe"])),
        // The default.
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
    // Unsuitable layers do not prevent loading the model itself.
    for (value, problem) in [
        (json!("E*"), "mixer.gate.weight"),
        (json!("*-"), "mixer.up_proj.weight"),
        (json!("*E*"), "final_layernorm.weight"),
        (json!("*"), "final_layernorm.weight"),
        (json!("*M"), "got a recurrent layer"),
    ] {
        let directory = with(pattern, value.clone());
        let mut target = load(directory.path(), LoadOptions::default()).unwrap().model;
        let error = load_mtp(directory.path(), &mut target, &options(Precision::F32)).unwrap_err();
        assert!(error.to_string().contains(problem), "{value}: {error}");
        let drafts = Description::read(directory.path()).unwrap().has_mtp();
        assert_eq!(drafts, value != json!("*M"), "{value}");
    }
    for (value, problem) in [
        (json!("*X"), "mtp_hybrid_override_pattern: expected mamba, attention, mlp or moe"),
        (json!(""), "mtp_hybrid_override_pattern: expected 1 to 4096 layers, got 0"),
    ] {
        let error = load(with(pattern, value).path(), LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
    // Layers beyond the configured number stay on disk; so do all if none are configured.
    let directory = with("num_nextn_predict_layers", json!(0));
    load(directory.path(), LoadOptions::default()).unwrap();
    assert!(!Description::read(directory.path()).unwrap().has_mtp());
}

/// With one chain and with several paths, at temperature 0.
#[test]
fn same_output_as_plain_decoding_at_temperature_zero() {
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

/// Drafts after a sequence that grew in steps, was cut, and was prefilled in parts, equal those
/// after the same tokens at once.
#[test]
fn modules_follow_a_sequence_in_any_steps() {
    for name in ["mtp-glm-three", "mtp-mimo-three"] {
        let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
        let mut head = load_mtp(&path(name), &mut target, &options(Precision::F32)).unwrap();
        assert_eq!(head.levels(), 3);
        let mut drafts = |steps: &[(usize, &[Token])], chunk: usize| {
            let (of_target, of_head) = (target.open().unwrap(), head.open().unwrap());
            for (keep, tokens) in steps {
                target.truncate(of_target, *keep);
                head.truncate(of_head, *keep);
                target.extend(of_target, tokens).unwrap();
                head.extend(of_head, tokens).unwrap();
                target.prepare(of_target, usize::MAX).unwrap();
                let known = target.len(of_target) - 1;
                head.sync_target(of_head, &target, of_target, known).unwrap();
                while head.prepare(of_head, chunk).unwrap() > 0 {}
                // Trees whose nodes come level by level, and one that goes deep first.
                let mut tree = DraftTree::new();
                head.score(&[(of_head, &tree)]).unwrap();
                let child = tree.add(DraftTree::ROOT, 9);
                tree.add(child, 4);
                tree.add(DraftTree::ROOT, 6);
                head.score(&[(of_head, &tree)]).unwrap();
            }
            let q = |node| {
                head.distribution(of_head, node, &Sampling::default(), None).unwrap().to_vec()
            };
            let found: Vec<Vec<f64>> = (0..4).map(q).collect();
            target.close(of_target);
            head.close(of_head);
            found
        };
        let tokens: Vec<Token> = (0..12).map(|n| 5 + 7 * n % 50).collect();
        let expected = drafts(&[(0, &tokens)], usize::MAX);
        for (steps, chunk) in [
            (vec![(0, &tokens[..2]), (2, &tokens[2..3]), (3, &tokens[3..7]), (7, &tokens[7..])], 9),
            (vec![(0, &tokens[..7]), (7, &tokens[7..])], 2),
            (vec![(0, &tokens[..]), (5, &tokens[5..])], 1),
            (vec![(0, &tokens[..11]), (1, &tokens[1..])], 3),
        ] {
            let found = drafts(&steps, chunk);
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-6, "{name} {steps:?}: {worst:e}");
        }
    }
}

#[test]
fn tokens_option_limits_the_drafted_vocabulary() {
    let name = "mtp-glm";
    let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
    let four_tokens = HeadOptions { tokens: Some(vec![3, 4, 9, 50]), ..options(Precision::F32) };
    let head = load_mtp(&path(name), &mut target, &four_tokens).unwrap();
    assert_eq!(head.tokens(), [3, 4, 9, 50]);
    let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
    let unknown_token = HeadOptions { tokens: Some(vec![900]), ..options(Precision::F32) };
    let error = load_mtp(&path(name), &mut target, &unknown_token).unwrap_err().to_string();
    assert!(error.contains("at least one token"), "{error}");
}

#[test]
fn error_without_mtp_layers_names_other_drafters() {
    let plain = path("../fixtures/glm4-moe");
    let mut target = load(&plain, LoadOptions::default()).unwrap().model;
    let error = load_mtp(&plain, &mut target, &options(Precision::F32)).unwrap_err().to_string();
    assert!(error.contains("n-grams, a smaller model"), "{error}");
}

/// MTP layers do not count as layers or parameters of the model.
#[test]
fn description_excludes_mtp_layers() {
    for name in MODELS {
        let read = Description::read(&path(name)).unwrap();
        let (layers, modules) = match name.split('/').next().unwrap() {
            "mtp-qwen" => (2, 1),
            "mtp-nemotron" => (3, 1),
            "mtp-glm-three" | "mtp-mimo-three" => (1, 3),
            _ => (1, 1),
        };
        assert_eq!((read.config.layers, read.config.mtp_modules), (layers, modules), "{name}");
    }
    for name in ["mtp-glm", "mtp-nemotron"] {
        let [directory, file] =
            ["", "model.gguf"].map(|file| Description::read(&path(name).join(file)).unwrap());
        assert_eq!(directory.parameters, file.parameters, "{name}");
    }
}
