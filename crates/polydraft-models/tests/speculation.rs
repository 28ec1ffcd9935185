//! Speculation changes no token at temperature 0 and no probability at temperature 1, in every
//! family.

use std::fs;

use crate::common::*;
use polydraft::{Drafting, PolicyKind, Sampling, VerifierKind};
use polydraft_engine::Speculation;
use polydraft_engine::certify::{compare, count_sequences};
use polydraft_models::Precision;
use serde_json::json;

type Method = (VerifierKind, PolicyKind);

/// Every verifier, with the first of a few trees that it supports.
fn methods() -> Vec<Method> {
    let levels = [Drafting::Iid, Drafting::WithoutReplacement, Drafting::Hub, Drafting::Greedy]
        .map(|drafting| PolicyKind::levels(&[2, 2, 1], drafting));
    let trees: Vec<PolicyKind> =
        [2, 1].map(|paths| PolicyKind::paths(paths, 3)).into_iter().chain(levels).collect();
    let fits = |verifier: &VerifierKind| {
        let built = verifier.build().unwrap();
        trees.iter().find(|tree| built.supports(&tree.build().unwrap().form()).is_ok()).cloned()
    };
    let methods: Vec<_> = VerifierKind::all().into_iter().map(|v| (fits(&v), v)).collect();
    assert!(methods.len() > 5);
    methods
        .into_iter()
        .map(|(tree, v)| (v.clone(), tree.unwrap_or_else(|| panic!("{v} has no tree"))))
        .collect()
}

/// Speculation with a draft that samples at temperature 1, so that trees branch.
fn speculation((verifier, tree): &Method) -> Speculation {
    let (verifier, policy) = (verifier.build().unwrap(), tree.build().unwrap());
    Speculation::new(verifier, policy).unwrap()
}

#[test]
fn same_output_as_plain_decoding_at_temperature_zero_in_every_family() {
    let (folders, methods) = (fixtures(), methods());
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    // Every family drafts for the one before it; they share a tokenizer.
    for (target, draft) in folders.iter().zip(folders.iter().cycle().skip(1)) {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
            let mut pair = open_pair(target, draft, precision);
            let prompt = pair.language.tokenizer.encode("what a tree is").unwrap();
            let mut outputs = Vec::new();
            for method in [None].into_iter().chain(methods.iter().map(Some)) {
                // Up to the end of the context.
                let made = pair.decode(&prompt, greedy, method.map(speculation), None, 0);
                outputs.push((method, made.tokens));
            }
            assert_eq!(outputs[0].1.len() + prompt.len(), 64, "{target:?}");
            for (method, output) in &outputs[1..] {
                assert_eq!(*output, outputs[0].1, "{target:?}, {precision}, {method:?}");
            }
        }
    }
}

/// Probability that a correct program with random seeds fails a test with this threshold.
const FALSE_ALARM_PROBABILITY: f64 = 1e-4;

/// Copy of a fixture with scaled logits, so that some outputs are much likelier than others.
fn with_scaled_logits(name: &str) -> tempfile::TempDir {
    let folder = fixtures().into_iter().find(|f| f.file_name().is_some_and(|n| n == name)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(folder.join(file), directory.path().join(file)).unwrap();
    }
    let path = directory.path().join("model.safetensors");
    let mut tensors = read_tensors(&path);
    let norm = tensors.get_mut("model.norm.weight").unwrap();
    // Gemma 2 stores weights minus one.
    let offset = if name == "gemma2" { 1.0 } else { 0.0 };
    let wide: Vec<f32> = norm.values().iter().map(|x| (x + offset) * 8.0 - offset).collect();
    *norm = Tensor::new(&wide, &norm.shape, Dtype::F32);
    write_tensors(&tensors, &path);
    change_config(directory.path(), |config| {
        if name == "gemma2" {
            config["final_logit_softcapping"] = json!(4.0);
        }
    });
    directory
}

#[test]
fn two_tokens_have_the_targets_distribution_at_temperature_one_in_two_families() {
    for [target, draft] in [["mistral", "qwen3"], ["gemma2", "mistral"]] {
        let folders = [target, draft].map(with_scaled_logits);
        for method in methods() {
            let mut pair = open_pair(folders[0].path(), folders[1].path(), Precision::F32);
            let prompt = pair.language.tokenizer.encode("to be or not").unwrap();
            let sampling = Sampling::default();
            let mut requests: Vec<_> = (0..2000)
                .map(|run| {
                    Some(pair.request(
                        &prompt,
                        sampling,
                        Some(speculation(&method)),
                        None,
                        17_000 + run,
                    ))
                })
                .collect();
            let mut request =
                |run: usize| Ok::<_, polydraft_engine::Error>(requests[run].take().unwrap());
            let counts =
                count_sequences(&mut pair.engine, 2, 2000, &mut request, &mut || true).unwrap();
            let test = compare(pair.engine.target(), &sampling, &prompt, 2, &counts).unwrap();
            assert!(test.cells > 30, "{test:?}: too few to tell distributions apart");
            let p = test.p_value();
            assert!(p > FALSE_ALARM_PROBABILITY, "{:?}, {method:?}: p = {p:e}", folders[0].path());
        }
    }
}
