//! Every family against Hugging Face transformers: the logits of fixtures/, which make.py made.

use std::fs;
use std::path::Path;

use crate::cases::*;
use crate::common::*;
use polydraft_models::{LoadOptions, Precision, architectures, load};
use serde_json::Value;

const TOLERANCE_BF16: f32 = 2e-2;

#[test]
fn every_family_gives_the_logits_of_transformers() {
    let mut wrong = Vec::new();
    let cases = Case::all();
    for case in &cases {
        let worst = case.worst(&mut case.open(Precision::F32));
        println!("{}: {worst:e}", case.name);
        wrong.extend((worst >= TOLERANCE).then(|| format!("{}: {worst:e}", case.name)));
        // Not trivially: the logits are far from equal.
        let last = case.logits.last().unwrap();
        let spread = last.iter().fold(f32::MIN, |m, x| m.max(*x))
            - last.iter().fold(f32::MAX, |m, x| m.min(*x));
        assert!(spread > 0.4, "{}: {spread}", case.name);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Each family has a case.
    let read = |case: &Case| Config::of(case.directory.path());
    let tested: Vec<String> = cases.iter().map(read).collect();
    for known in architectures().chain(NESTED) {
        assert!(tested.iter().any(|t| t == known), "{known} has no fixture");
    }
    assert!(cases.len() >= 15, "{}", cases.len());
}

/// Of those around a text part, one for each form in which they are published.
const NESTED: [&str; 3] = [
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
];

/// The architecture in a directory's config.json.
struct Config;

impl Config {
    fn of(directory: &Path) -> String {
        let config: Value =
            serde_json::from_slice(&fs::read(directory.join("config.json")).unwrap()).unwrap();
        config["architectures"][0].as_str().unwrap().to_owned()
    }
}

#[test]
fn sixteen_bits_on_a_processor_are_exact_and_near_transformers_own() {
    for case in Case::all() {
        // The fixtures are stored in bf16: nothing is lost.
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
fn quantised_families_are_near() {
    let mut wrong = Vec::new();
    for case in Case::all() {
        let worst = case.worst(&mut case.open(Precision::Q8_0));
        wrong.extend((worst <= 0.0 || worst >= 0.1).then(|| format!("{}: {worst:e}", case.name)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same weights once more, by way of what makes a self-draft of a model.
#[test]
fn self_drafts_of_every_family_compute_what_it_does() {
    let mut wrong = Vec::new();
    for case in Case::all() {
        for (copy, most) in [(Precision::Bf16, TOLERANCE), (Precision::Q8_0, 0.1)] {
            let options = LoadOptions { self_draft: Some(copy), ..LoadOptions::default() };
            let loaded = load(case.directory.path(), options).unwrap();
            let worst = case.worst(&mut Single::new(loaded.self_draft.unwrap()));
            wrong.extend((worst >= most).then(|| format!("{}: {copy}: {worst:e}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_that_leave_out_a_prefix_are_read() {
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
fn padding_rows_are_cut_off() {
    let case = Case::named("qwen2");
    let model = case.open(Precision::F32);
    assert_eq!((model.model.config().vocabulary, model.vocabulary().size()), (80, 62));
    // A draft with another number of them fits.
    let other = Case::named("qwen3").open(Precision::F32);
    model.vocabulary().check_draft(other.vocabulary()).unwrap();
}
