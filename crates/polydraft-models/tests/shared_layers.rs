//! Models whose layers have heads of two shapes, and of which some attend to others' keys and
//! values: what is moved, shared and forgotten of their caches.

use std::path::{Path, PathBuf};

use crate::common::*;
use polydraft::{DraftTree, Token};
use polydraft_engine::{Model, Sequence, Sequences};
use polydraft_kernels::CacheType;
use polydraft_models::{
    Description, LoadOptions, Precision, SequenceLimits, TransformerModel, load,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

const MODELS: [&str; 4] = ["gemma4", "gemma4-moe", "gemma4-nested", "gemma4-unified"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A fixture with a longer context.
fn model(name: &str, options: LoadOptions) -> TransformerModel {
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(fixture(name).join(file), directory.path().join(file)).unwrap();
    }
    change_config(directory.path(), |config| {
        let text = if name == "gemma4-nested" { &mut config["text_config"] } else { config };
        text["max_position_embeddings"] = 4096.into();
        text["sliding_window"] = 50.into();
    });
    load(directory.path(), options).unwrap().model
}

fn text(seed: u64, length: usize) -> Vec<Token> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    (0..length).map(|_| rng.random_range(2..62)).collect()
}

fn logits(model: &mut TransformerModel, sequence: Sequence) -> Vec<f32> {
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    model.logits(sequence, DraftTree::ROOT).to_vec()
}

/// What a model says after a text that it reads token by token, with nothing before it.
fn afresh(name: &str, options: LoadOptions, text: &[Token]) -> Vec<f32> {
    let mut model = model(name, options);
    model.limit(SequenceLimits { closed: 0, ..SequenceLimits::default() });
    let sequence = model.open().unwrap();
    for token in text {
        model.extend(sequence, &[*token]).unwrap();
        logits(&mut model, sequence);
    }
    logits(&mut model, sequence)
}

#[test]
fn prompts_token_by_token_and_what_was_cut_off_agree_to_the_last_bit() {
    let cache = |cache| LoadOptions { cache, ..LoadOptions::default() };
    for name in MODELS {
        for options in [cache(CacheType::F32), cache(CacheType::F16), Precision::Q8_0.into()] {
            let mut model = model(name, options);
            let (one, other) = (text(1, 400), text(2, 400));
            let sequence = model.open().unwrap();
            model.extend(sequence, &one).unwrap();
            assert_eq!(logits(&mut model, sequence), afresh(name, options, &one), "{name}");
            // Another way from the middle of a page on.
            model.truncate(sequence, 175);
            model.extend(sequence, &other[175..]).unwrap();
            let mixed = [&one[..175], &other[175..]].concat();
            assert_eq!(logits(&mut model, sequence), afresh(name, options, &mixed), "{name}");
        }
    }
}

#[test]
fn sequences_that_begin_alike_share_and_do_not_disturb_each_other() {
    for name in MODELS {
        let options = LoadOptions::default();
        let mut model = model(name, options);
        let all = text(3, 300);
        let first = model.open().unwrap();
        model.extend(first, &all).unwrap();
        let alone = logits(&mut model, first);
        let second = model.open().unwrap();
        let branch = [&all[..200], &text(4, 60)].concat();
        model.extend(second, &branch).unwrap();
        assert!(model.prepare(second, 0).unwrap() < 100, "{name}: nothing is shared");
        let pair: [(Sequence, &DraftTree); 2] =
            [(second, &DraftTree::new()), (first, &DraftTree::new())];
        model.score(&pair).unwrap();
        assert_eq!(model.logits(second, DraftTree::ROOT), afresh(name, options, &branch));
        assert_eq!(model.logits(first, DraftTree::ROOT), alone, "{name}");
    }
}

/// Trees of random shape behind a text longer than the window, and what is kept of them.
#[test]
fn trees_are_their_paths() {
    for name in MODELS {
        let options = LoadOptions::default();
        let mut model = model(name, options);
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        let all = text(6, 90);
        let sequence = model.open().unwrap();
        model.extend(sequence, &all).unwrap();
        let mut tree = DraftTree::new();
        grow(&mut tree, &mut rng, 14);
        model.score(&[(sequence, &tree)]).unwrap();
        for node in 0..tree.len() {
            let path = [&all[..], &tokens_to(&tree, node)].concat();
            let expected = afresh(name, options, &path);
            assert_eq!(model.logits(sequence, node), expected, "{name}, {node}");
        }
        let deepest = (0..tree.len()).max_by_key(|node| tree.path(*node).len()).unwrap();
        model.commit(sequence, &tree, &tree.path(deepest)).unwrap();
        let more = [&all[..], &tokens_to(&tree, deepest), &[7]].concat();
        model.extend(sequence, &[7]).unwrap();
        assert_eq!(logits(&mut model, sequence), afresh(name, options, &more), "{name}");
    }
}

#[test]
fn what_they_take_is_counted() {
    // A key and a value of each layer that has its own.
    for (name, numbers) in [
        ("gemma4", 2 * (16 + 2 * 8 + 16)),
        ("gemma4-moe", 2 * (2 * 8 + 2 * 16)),
        ("gemma4-nested", 2 * (2 * 8 + 4 * 16 + 2 * 8)),
        ("gemma4-unified", 2 * (2 * 8 + 16)),
    ] {
        let description = Description::read(&fixture(name)).unwrap();
        assert_eq!(description.cache_bytes(1, CacheType::F32), 4 * numbers, "{name}");
        let mut model = model(name, LoadOptions::default());
        assert_eq!(model.token_bytes(), 4 * numbers);
        let sequence = model.open().unwrap();
        model.extend(sequence, &text(7, 64)).unwrap();
        logits(&mut model, sequence);
        // Heads fill whole lines of a page: 8 numbers of a value take as much as 16.
        assert!(model.cache_bytes() as u64 >= 64 * 4 * numbers, "{name}");
    }
}

/// Parameters are those that are read, and of the table of per-layer inputs a token computes
/// with a row; it stays as it is stored where weights are quantised.
#[test]
fn parameters_and_bytes_are_those_of_what_is_read() {
    let published = Description::read(&fixture("gemma4-nested")).unwrap();
    let tensors = read_tensors(&fixture("gemma4-nested").join("model.safetensors"));
    let unread = |name: &str| {
        let of_layer = name.contains("layers.3.self_attn");
        name.starts_with("vision")
            || of_layer && ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part))
    };
    let numbers = |tensor: &Tensor| tensor.shape.iter().product::<usize>();
    let read: usize =
        tensors.iter().filter(|(name, _)| !unread(name)).map(|(_, t)| numbers(t)).sum();
    assert_eq!(published.parameters, read as u64);
    let table = 62 * 4 * 8;
    assert_eq!(published.active_parameters, (read - table + 4 * 8) as u64);
    // All others of its matrices are stored in 32 bits here: rows of 32 and 8 numbers are no whole
    // blocks of 256, and those of 8 none of 32.
    let bytes = |precision| published.weight_bytes(precision);
    let (whole, quantised) = (bytes(Precision::F32), bytes(Precision::Q8_0));
    assert!(quantised < whole / 2, "{quantised} of {whole}");
    assert!(bytes(Precision::Bf16) < whole * 6 / 10);
    let loaded = model("gemma4-nested", Precision::Bf16.into());
    assert!(loaded.bytes_per_pass() < bytes(Precision::Bf16) as usize - 2 * table);
}
