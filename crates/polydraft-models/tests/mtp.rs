//! Layers that predict further tokens (MTP) as drafters: what they draft against a direct
//! computation with transformers' decoder layers, which heads/mtp.py made.

mod common;

use std::path::{Path, PathBuf};

use common::read_tensors;
use polydraft::{DraftTree, PolicyKind, Sampling, Token, VerifierKind};
use polydraft_engine::{Drafter, Engine, Limits, Request, Sequences, Speculation};
use polydraft_models::{Description, HeadOptions, LoadOptions, Loaded, Precision, load, load_mtp};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;

/// Directories, and a file that llama.cpp's converter made of one.
const MODELS: [&str; 6] = [
    "mtp-glm",
    "mtp-deepseek",
    "mtp-glm/model.gguf",
    "mtp-qwen",
    "mtp-qwen/model.gguf",
    "mtp-mimo",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/heads").join(name)
}

fn expected(name: &str) -> (Vec<Token>, Vec<Vec<Vec<f64>>>) {
    let folder = path(name.split('/').next().unwrap());
    let found = read_tensors(&folder.join("expected.safetensors"));
    let [_, places, width] = found["logits"].shape[..] else { panic!("no steps") };
    let text = found["tokens"].integers().into_iter().map(|t| t as Token).collect();
    let logits: Vec<f64> = found["logits"].values().into_iter().map(f64::from).collect();
    let steps = logits.chunks_exact(places * width);
    let all = steps.map(|step| step.chunks_exact(width).map(log_probabilities).collect());
    (text, all.collect())
}

fn log_probabilities(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
    let sum: f64 = logits.iter().map(|x| (x - top).exp()).sum();
    logits.iter().map(|x| x - top - sum.ln()).collect()
}

fn options(precision: Precision) -> HeadOptions {
    HeadOptions { precision, ..HeadOptions::default() }
}

#[test]
fn drafts_are_those_of_a_direct_computation() {
    for name in MODELS {
        let (text, steps) = expected(name);
        let mut target = load(&path(name), LoadOptions::default()).unwrap().model;
        let mut head = load_mtp(&path(name), &mut target, &options(Precision::F32)).unwrap();
        let mut worst = 0f64;
        for place in 0..text.len() - 1 {
            let (own, its) = (target.open().unwrap(), head.open().unwrap());
            let known = &text[..place + 2];
            target.extend(own, known).unwrap();
            head.extend(its, known).unwrap();
            target.prepare(own, usize::MAX).unwrap();
            head.sync_target(its, &target, own, known.len() - 1).unwrap();
            head.prepare(its, usize::MAX).unwrap();
            // Two paths, so that states of other nodes could be taken for one's own.
            let mut tree = DraftTree::new();
            let mut node = DraftTree::ROOT;
            for (step, all) in steps.iter().enumerate() {
                if step > 0 {
                    let Some(token) = text.get(place + 1 + step) else { break };
                    tree.add(node, (token + 1) % 60);
                    node = tree.add(node, *token);
                }
                head.score(&[(its, &tree)]).unwrap();
                let q = head.distribution(its, node, &Sampling::default(), None).unwrap();
                for (token, expected) in all[place].iter().enumerate() {
                    worst = worst.max((q.probability(token as Token).ln() - expected).abs());
                }
            }
            target.close(own);
            head.close(its);
        }
        assert!(worst < 1e-5, "{name}: {worst:e}");
    }
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
    assert!(error.contains("--draft self"), "{error}");
}

/// The layer is no part of what the model takes.
#[test]
fn the_layer_is_left_out_of_the_model() {
    for name in MODELS {
        let read = Description::read(&path(name)).unwrap();
        let layers = if name.starts_with("mtp-qwen") { 2 } else { 1 };
        assert_eq!((read.config.layers, read.config.extra_layers), (layers, 1), "{name}");
    }
    let [directory, file] =
        ["mtp-glm", "mtp-glm/model.gguf"].map(|name| Description::read(&path(name)).unwrap());
    assert_eq!(directory.parameters, file.parameters);
}
