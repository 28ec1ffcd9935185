//! Speculation on every family: no token changes at temperature 0 and no probability at temperature 1.

mod common;

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use common::*;
use polydraft::{Drafting, Sampling, Shape, VerifierKind};
use polydraft_candle::{LoadOptions, Loaded, Precision, load};
use polydraft_engine::certify::{GTest, count_texts};
use polydraft_engine::{Decoder, Generation, Limits, Settings, Speculation};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde_json::json;

fn open_pair(target: &Path, draft: &Path, precision: Precision) -> [Loaded; 2] {
    [target, draft].map(|folder| load(folder, LoadOptions { precision, ..LoadOptions::default() }).unwrap())
}

/// Every verifier, with the first of a few shapes that it takes.
fn ways() -> Vec<(VerifierKind, Shape)> {
    let levels = [Drafting::Iid, Drafting::WithoutReplacement, Drafting::Hub, Drafting::Greedy]
        .map(|drafting| Shape::Levels { counts: vec![2, 2, 1], drafting });
    let shapes: Vec<Shape> =
        [2, 1].map(|paths| Shape::Paths { paths, depth: 3 }).into_iter().chain(levels).collect();
    let fits = |v: &VerifierKind| shapes.iter().find(|shape| v.build(shape).is_ok()).cloned();
    let ways: Vec<_> = VerifierKind::all().into_iter().map(|v| (v.clone(), fits(&v))).collect();
    assert!(ways.len() > 5);
    ways.into_iter()
        .map(|(v, shape)| (v.clone(), shape.unwrap_or_else(|| panic!("{v} has no shape"))))
        .collect()
}

fn settings(temperature: f64, way: Option<&(VerifierKind, Shape)>) -> Settings {
    let sampling = Sampling { temperature, ..Sampling::default() };
    // A warm draft: trees branch.
    let speculation =
        way.cloned().map(|(verifier, shape)| Speculation { verifier, shape, sampling: Sampling::default() });
    Settings { sampling, speculation }
}

#[test]
fn temperature_zero_gives_the_tokens_of_plain_decoding_in_every_family() {
    let (folders, ways) = (fixtures(), ways());
    // Every family drafts for the next: they share a tokenizer.
    for (target, draft) in folders.iter().zip(folders.iter().cycle().skip(1)) {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
            let [mut target_model, mut draft_model] = open_pair(target, draft, precision);
            let prompt = target_model.language.text.encode("what a tree is").unwrap();
            let mut texts = Vec::new();
            for way in [None].into_iter().chain(ways.iter().map(Some)) {
                let mut decoder =
                    Decoder::new(&mut target_model.model, Some(&mut draft_model.model), settings(0.0, way))
                        .unwrap();
                let mut rng = ChaCha12Rng::seed_from_u64(0);
                let mut stream = target_model.language.text.stream(&prompt);
                // To the context's end.
                let limits = Limits::default();
                let show = &mut |_| true;
                let made = Generation::run(&mut decoder, &prompt, &limits, &mut stream, &mut rng, show);
                texts.push((way, made.unwrap().tokens));
            }
            assert_eq!(texts[0].1.len() + prompt.len(), 64, "{target:?}");
            for (way, text) in &texts[1..] {
                assert_eq!(*text, texts[0].1, "{target:?}, {precision}, {way:?}");
            }
        }
    }
}

/// Of correct programs with random seeds, one in so many would fail a test against this.
const FALSE_ALARM: f64 = 1e-4;

/// A fixture with its logits stretched, so that some texts are much likelier than others.
fn stretched(name: &str) -> tempfile::TempDir {
    let folder = fixtures().into_iter().find(|f| f.file_name().is_some_and(|n| n == name)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(folder.join(file), directory.path().join(file)).unwrap();
    }
    let path = directory.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let norm = tensors.get_mut("model.norm.weight").unwrap();
    // Gemma 2 counts weights from one.
    let offset = if name == "gemma2" { 1.0 } else { 0.0 };
    let wide = norm.to_dtype(DType::F32).unwrap();
    *norm = (((wide + offset).unwrap() * 8.0).unwrap() - offset).unwrap();
    candle_core::safetensors::save(&tensors, &path).unwrap();
    change_config(directory.path(), |config| {
        if name == "gemma2" {
            config["final_logit_softcapping"] = json!(4.0);
        }
    });
    directory
}

#[test]
fn temperature_one_gives_the_targets_law_of_two_tokens_in_two_families() {
    for [target, draft] in [["mistral", "qwen3"], ["gemma2", "mistral"]] {
        let folders = [target, draft].map(stretched);
        for way in ways() {
            let [mut target, mut draft] = open_pair(folders[0].path(), folders[1].path(), Precision::F32);
            let prompt = target.language.text.encode("to be or not").unwrap();
            let settings = settings(1.0, Some(&way));
            let sampling = settings.sampling;
            let mut decoder = Decoder::new(&mut target.model, Some(&mut draft.model), settings).unwrap();
            let mut rng = ChaCha12Rng::seed_from_u64(17);
            let counts = count_texts(&mut decoder, &prompt, 2, 2000, &mut rng, &mut || ()).unwrap();
            let test = GTest::new(&mut target.model, &sampling, &prompt, 2, &counts).unwrap();
            assert!(test.cells > 30, "{test:?}: too few to tell laws apart");
            let p = test.p_value();
            assert!(p > FALSE_ALARM, "{:?}, {way:?}: p = {p:e}", folders[0].path());
        }
    }
}
