//! Speculation on every family: no token changes at temperature 0 and no probability at temperature 1.

mod common;

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use common::*;
use polydraft::{Sampling, VerifierKind};
use polydraft_candle::{LoadOptions, Loaded, Precision, load};
use polydraft_engine::{Decoder, Generation, Limits, Settings, Speculation};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use serde_json::json;

fn open_pair(target: &Path, draft: &Path, precision: Precision) -> [Loaded; 2] {
    [target, draft].map(|folder| load(folder, LoadOptions { precision, ..LoadOptions::default() }).unwrap())
}

fn settings(temperature: f64, verifier: Option<VerifierKind>) -> Settings {
    let sampling = Sampling { temperature, ..Sampling::default() };
    let speculation = verifier.map(|verifier| Speculation { verifier, depth: 3, sampling });
    Settings { sampling, speculation }
}

#[test]
fn temperature_zero_gives_the_tokens_of_plain_decoding_in_every_family() {
    let folders = fixtures();
    // Every family drafts for the next: they share a tokenizer.
    for (target, draft) in folders.iter().zip(folders.iter().cycle().skip(1)) {
        for precision in [Precision::F32, Precision::Bf16, Precision::Q8_0] {
            let [mut target_model, mut draft_model] = open_pair(target, draft, precision);
            let prompt = target_model.text.encode("what a tree is").unwrap();
            let mut texts = Vec::new();
            for verifier in [None].into_iter().chain(VerifierKind::ALL.into_iter().map(Some)) {
                let mut decoder = Decoder::new(
                    &mut target_model.model,
                    Some(&mut draft_model.model),
                    settings(0.0, verifier),
                )
                .unwrap();
                let mut rng = ChaCha12Rng::seed_from_u64(0);
                let mut stream = target_model.text.stream(&prompt);
                // To the context's end.
                let limits = Limits::default();
                let show = &mut |_| true;
                let made = Generation::run(&mut decoder, &prompt, &limits, &mut stream, &mut rng, show);
                texts.push((verifier, made.unwrap().tokens));
            }
            assert_eq!(texts[0].1.len() + prompt.len(), 64, "{target:?}");
            for (verifier, text) in &texts[1..] {
                assert_eq!(*text, texts[0].1, "{target:?}, {precision}, {verifier:?}");
            }
        }
    }
}

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
        for verifier in VerifierKind::ALL {
            let [mut target, mut draft] = open_pair(folders[0].path(), folders[1].path(), Precision::F32);
            let prompt = target.text.encode("to be or not").unwrap();
            let settings = settings(1.0, Some(verifier));
            let verifier_made = verifier.build();
            let p = law::p_value(&mut target.model, &mut draft.model, &prompt, settings, verifier_made, 4000);
            assert!(p > law::FALSE_ALARM, "{:?}, {verifier}: p = {p:e}", folders[0].path());
        }
    }
}
