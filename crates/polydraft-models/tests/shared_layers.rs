//! Models whose layers have heads of two sizes, and in which some layers use the keys and values of
//! others: their caches.

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
        let text_config = if name == "gemma4-nested" { &mut config["text_config"] } else { config };
        text_config["max_position_embeddings"] = 4096.into();
        text_config["sliding_window"] = 50.into();
    });
    load(directory.path(), options).unwrap().model
}

fn tokens(seed: u64, length: usize) -> Vec<Token> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    (0..length).map(|_| rng.random_range(2..62)).collect()
}

fn logits(model: &mut TransformerModel, sequence: Sequence) -> Vec<f32> {
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    model.logits(sequence, DraftTree::ROOT).to_vec()
}

/// Logits after a sequence that a new model reads token by token.
fn fresh_logits(name: &str, options: LoadOptions, tokens: &[Token]) -> Vec<f32> {
    let mut model = model(name, options);
    model.set_limits(SequenceLimits { closed: 0, ..SequenceLimits::default() });
    let sequence = model.open().unwrap();
    for token in tokens {
        model.extend(sequence, &[*token]).unwrap();
        logits(&mut model, sequence);
    }
    logits(&mut model, sequence)
}

#[test]
fn same_logits_as_token_by_token_also_after_truncation() {
    let cache = |cache| LoadOptions { cache, ..LoadOptions::default() };
    for name in MODELS {
        for options in [cache(CacheType::F32), cache(CacheType::F16), Precision::Q8_0.into()] {
            let mut model = model(name, options);
            let (one, other) = (tokens(1, 400), tokens(2, 400));
            let sequence = model.open().unwrap();
            model.extend(sequence, &one).unwrap();
            assert_eq!(logits(&mut model, sequence), fresh_logits(name, options, &one), "{name}");
            // Other tokens from the middle of a page on.
            model.truncate(sequence, 175);
            model.extend(sequence, &other[175..]).unwrap();
            let mixed = [&one[..175], &other[175..]].concat();
            assert_eq!(logits(&mut model, sequence), fresh_logits(name, options, &mixed), "{name}");
        }
    }
}

#[test]
fn sequences_share_their_prefix_without_side_effects() {
    for name in MODELS {
        let options = LoadOptions::default();
        let mut model = model(name, options);
        let all = tokens(3, 300);
        let first = model.open().unwrap();
        model.extend(first, &all).unwrap();
        let alone = logits(&mut model, first);
        let second = model.open().unwrap();
        let branch = [&all[..200], &tokens(4, 60)].concat();
        model.extend(second, &branch).unwrap();
        assert!(model.prepare(second, 0).unwrap() < 100, "{name}: nothing is shared");
        let pair: [(Sequence, &DraftTree); 2] =
            [(second, &DraftTree::new()), (first, &DraftTree::new())];
        model.score(&pair).unwrap();
        assert_eq!(model.logits(second, DraftTree::ROOT), fresh_logits(name, options, &branch));
        assert_eq!(model.logits(first, DraftTree::ROOT), alone, "{name}");
    }
}

/// Random trees after a prompt longer than the window, and a committed path.
#[test]
fn tree_logits_equal_those_of_its_paths() {
    for name in MODELS {
        let options = LoadOptions::default();
        let mut model = model(name, options);
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        let all = tokens(6, 90);
        let sequence = model.open().unwrap();
        model.extend(sequence, &all).unwrap();
        let mut tree = DraftTree::new();
        grow(&mut tree, &mut rng, 14);
        model.score(&[(sequence, &tree)]).unwrap();
        for node in 0..tree.len() {
            let path = [&all[..], &tokens_to(&tree, node)].concat();
            let expected = fresh_logits(name, options, &path);
            assert_eq!(model.logits(sequence, node), expected, "{name}, {node}");
        }
        let deepest = (0..tree.len()).max_by_key(|node| tree.path(*node).len()).unwrap();
        model.commit(sequence, &tree, &tree.path(deepest)).unwrap();
        let more = [&all[..], &tokens_to(&tree, deepest), &[7]].concat();
        model.extend(sequence, &[7]).unwrap();
        assert_eq!(logits(&mut model, sequence), fresh_logits(name, options, &more), "{name}");
    }
}

#[test]
fn cache_bytes_count_one_key_and_value_per_layer_with_a_cache() {
    // A key and a value for each layer with a cache of its own.
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
        model.extend(sequence, &tokens(7, 64)).unwrap();
        logits(&mut model, sequence);
        // Heads are padded to lines of a page: 8 numbers of a value take as much as 16.
        assert!(model.cache_bytes() as u64 >= 64 * 4 * numbers, "{name}");
    }
}

/// Parameters that are not read do not count, active ones include one row of the table of per-layer
/// inputs, and the table keeps its stored type when weights are quantised.
#[test]
fn description_counts_only_parameters_that_are_read() {
    let published = Description::read(&fixture("gemma4-nested")).unwrap();
    let tensors = read_tensors(&fixture("gemma4-nested").join("model.safetensors"));
    let unread = |name: &str| {
        let is_shared_layer = name.contains("layers.3.self_attn");
        name.starts_with("vision")
            || is_shared_layer
                && ["k_proj", "v_proj", "k_norm"].iter().any(|part| name.contains(part))
    };
    let numbers = |tensor: &Tensor| tensor.shape.iter().product::<usize>();
    let read: usize =
        tensors.iter().filter(|(name, _)| !unread(name)).map(|(_, t)| numbers(t)).sum();
    assert_eq!(published.parameters, read as u64);
    let table = 62 * 4 * 8;
    assert_eq!(published.active_parameters, (read - table + 4 * 8) as u64);
    // All other matrices are stored in f32 here: rows of 32 and 8 numbers are not multiples of 256,
    // and those of 8 not of 32.
    let bytes = |precision| published.weight_bytes(precision);
    let (full, quantised) = (bytes(Precision::F32), bytes(Precision::Q8_0));
    assert!(quantised < full / 2, "{quantised} of {full}");
    assert!(bytes(Precision::Bf16) < full * 6 / 10);
    let loaded = model("gemma4-nested", Precision::Bf16.into());
    assert!(loaded.bytes_per_pass() < bytes(Precision::Bf16) as usize - 2 * table);
}
