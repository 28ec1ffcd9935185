//! Compares every model family with Hugging Face transformers, whose logits are stored in fixtures/
//! by make.py.

use std::fs;
use std::path::Path;

use crate::cases::*;
use crate::common::*;
use polydraft_models::{LoadOptions, Precision, architectures, load};
use serde_json::Value;

const TOLERANCE_BF16: f32 = 2e-2;

#[test]
fn logits_equal_transformers_for_every_family() {
    let mut failures = Vec::new();
    let cases = Case::all();
    for case in &cases {
        let worst = case.worst(&mut case.open(Precision::F32));
        println!("{}: {worst:e}", case.name);
        failures.extend((worst >= TOLERANCE).then(|| format!("{}: {worst:e}", case.name)));
        // The comparison is not trivial: the logits differ enough.
        let last = case.logits.last().unwrap();
        let range = last.iter().fold(f32::MIN, |m, x| m.max(*x))
            - last.iter().fold(f32::MAX, |m, x| m.min(*x));
        assert!(range > 0.4, "{}: {range}", case.name);
    }
    assert!(failures.is_empty(), "{failures:#?}");
    // Every family has a case.
    let read = |case: &Case| architecture(case.directory.path());
    let tested: Vec<String> = cases.iter().map(read).collect();
    for known in architectures().chain(NESTED) {
        assert!(tested.iter().any(|t| t == known), "{known} has no fixture");
    }
    assert!(cases.len() >= 15, "{}", cases.len());
}

/// One of the nested architectures for each published form.
const NESTED: [&str; 4] = [
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
];

/// Architecture in a directory's config.json.
fn architecture(directory: &Path) -> String {
    let config: Value =
        serde_json::from_slice(&fs::read(directory.join("config.json")).unwrap()).unwrap();
    config["architectures"][0].as_str().unwrap().to_owned()
}

#[test]
fn bf16_is_exact_and_close_to_transformers_bf16() {
    for case in Case::all() {
        // The fixtures are stored in bf16: nothing is rounded.
        let mut model = case.open(Precision::Bf16);
        let worst = case.worst(&mut model);
        assert!(worst < TOLERANCE, "{}: {worst:e}", case.name);
        let first = case.tokens.len() - case.logits_bf16.len();
        for (length, expected) in (first + 1..).zip(&case.logits_bf16) {
            let worst = distance(&alone(&mut model, &case.tokens[..length]), expected);
            assert!(worst < TOLERANCE_BF16, "{}: {worst:e}", case.name);
        }
        let worst = case.worst(&mut case.open(Precision::F16));
        assert!(worst < TOLERANCE_BF16, "{}: {worst:e}", case.name);
    }
}

#[test]
fn quantised_logits_are_close_for_every_family() {
    let mut failures = Vec::new();
    for case in Case::all() {
        let worst = case.worst(&mut case.open(Precision::Q8_0));
        failures
            .extend((worst <= 0.0 || worst >= 0.1).then(|| format!("{}: {worst:e}", case.name)));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Self-drafts with the model's own weights, and quantised ones.
#[test]
fn self_drafts_compute_the_models_logits_for_every_family() {
    let mut failures = Vec::new();
    for case in Case::all() {
        for (copy, tolerance) in [(Precision::Bf16, TOLERANCE), (Precision::Q8_0, 0.1)] {
            let options = LoadOptions { self_draft: Some(copy), ..LoadOptions::default() };
            let loaded = load(case.directory.path(), options).unwrap();
            let worst = case.worst(&mut SingleSequence::new(loaded.self_draft.unwrap()));
            failures
                .extend((worst >= tolerance).then(|| format!("{}: {copy}: {worst:e}", case.name)));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn reads_tensor_names_without_prefix() {
    let case = Case::named("opt");
    let path = case.directory.path().join("model.safetensors");
    let tensors = read_tensors(&path);
    let renamed: Tensors = tensors
        .into_iter()
        .map(|(name, t)| (name.trim_start_matches("model.").to_owned(), t))
        .collect();
    write_tensors(&renamed, &path);
    assert!(case.worst(&mut case.open(Precision::F32)) < TOLERANCE);
}

#[test]
fn padding_rows_are_not_part_of_the_vocabulary() {
    let case = Case::named("qwen2");
    let model = case.open(Precision::F32);
    assert_eq!((model.model.config().vocabulary, model.vocabulary().size()), (80, 62));
    // A draft model with a different number of padding rows fits.
    let other = Case::named("qwen3").open(Precision::F32);
    model.vocabulary().check_draft(other.vocabulary()).unwrap();
}
