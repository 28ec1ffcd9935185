//! Models of which some layers keep a state: what is computed again where a sequence goes back, and
//! what another one's state serves.

use std::path::Path;

use crate::common::*;
use polydraft::{DraftTree, Token};
use polydraft_engine::{Sequence, Sequences};
use polydraft_models::{Precision, SequenceLimits, TransformerModel, load};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

const MODELS: [&str; 9] = [
    "qwen3-5",
    "qwen3-next",
    "lfm2",
    "lfm2-moe",
    "granite-hybrid",
    "granite-hybrid-moe",
    "nemotron-h",
    "nemotron-h-moe",
    "nemotron-h-latent",
];

/// A fixture with a longer context.
fn model(name: &str, precision: Precision) -> TransformerModel {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), directory.path().join(file)).unwrap();
    }
    change_config(directory.path(), |config| config["max_position_embeddings"] = 4096.into());
    load(directory.path(), precision.into()).unwrap().model
}

fn text(seed: u64, length: usize) -> Vec<Token> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    (0..length).map(|_| rng.random_range(2..62)).collect()
}

fn logits(model: &mut TransformerModel, sequence: Sequence) -> Vec<f32> {
    use polydraft_engine::Model;
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    model.logits(sequence, DraftTree::ROOT).to_vec()
}

/// What a model says after a text that it reads at once.
fn afresh(name: &str, text: &[Token]) -> Vec<f32> {
    let mut model = model(name, Precision::F32);
    let sequence = model.open().unwrap();
    model.extend(sequence, text).unwrap();
    logits(&mut model, sequence)
}

/// How many tokens before the last are still to be computed.
fn left(model: &mut TransformerModel, sequence: Sequence) -> usize {
    model.prepare(sequence, 0).unwrap()
}

#[test]
fn going_back_begins_at_a_state_that_was_kept() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let all = text(1, 1500);
        let sequence = model.open().unwrap();
        model.extend(sequence, &all[..1300]).unwrap();
        assert_eq!(model.prepare(sequence, usize::MAX).unwrap(), 0);
        // As text that is written: what is settled goes on.
        for token in &all[1300..] {
            logits(&mut model, sequence);
            model.extend(sequence, &[*token]).unwrap();
        }
        logits(&mut model, sequence);
        for (length, most) in [(1499, 256), (1400, 256), (1310, 11), (1300, 1), (900, 256), (5, 5)]
        {
            model.truncate(sequence, length);
            let left = left(&mut model, sequence);
            assert!(left < most, "{name}: of {length} tokens {left} are computed again");
            assert_eq!(logits(&mut model, sequence), afresh(name, &all[..length]), "{name}");
            assert_eq!(model.prepare(sequence, 0).unwrap(), 0);
        }
    }
}

/// Other tokens behind the place to which a sequence went back: nothing of the old ones is left in
/// any state.
#[test]
fn a_sequence_that_goes_another_way_forgets_the_first() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let (one, other) = (text(2, 1200), text(3, 1200));
        let sequence = model.open().unwrap();
        model.extend(sequence, &one).unwrap();
        logits(&mut model, sequence);
        model.truncate(sequence, 700);
        let mixed = [&one[..700], &other[700..]].concat();
        model.extend(sequence, &other[700..]).unwrap();
        assert_eq!(logits(&mut model, sequence), afresh(name, &mixed), "{name}");
        model.truncate(sequence, 1000);
        assert_eq!(logits(&mut model, sequence), afresh(name, &mixed[..1000]), "{name}");
    }
}

#[test]
fn the_next_turn_of_a_conversation_is_not_computed_again() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let all = text(4, 1000);
        let first = model.open().unwrap();
        model.extend(first, &all[..600]).unwrap();
        model.prepare(first, usize::MAX).unwrap();
        for token in &all[600..640] {
            logits(&mut model, first);
            model.extend(first, &[*token]).unwrap();
        }
        model.close(first);
        // All of it, then the same prompt with another answer, then its beginning alone.
        let second = model.open().unwrap();
        model.extend(second, &all[..700]).unwrap();
        assert!(left(&mut model, second) < 62, "{name}");
        assert_eq!(logits(&mut model, second), afresh(name, &all[..700]), "{name}");
        let third = model.open().unwrap();
        let prompt = [&all[..600], &text(5, 30)].concat();
        model.extend(third, &prompt).unwrap();
        assert!(left(&mut model, third) <= 600 - 512 + 30, "{name}");
        assert_eq!(logits(&mut model, third), afresh(name, &prompt), "{name}");
        // Whoever was shared with goes on as if alone.
        assert_eq!(logits(&mut model, second), afresh(name, &all[..700]), "{name}");
    }
}

/// A tree of random shape, level by level and at once, behind texts that are longer than a piece of
/// a prompt.
#[test]
fn trees_behind_long_texts_are_their_paths() {
    use polydraft_engine::Model;
    for name in MODELS {
        for precision in [Precision::F32, Precision::Q8_0] {
            let (mut model, mut alone) = (model(name, precision), model(name, precision));
            alone.limit(SequenceLimits { closed: 0, ..SequenceLimits::default() });
            let mut rng = ChaCha12Rng::seed_from_u64(6);
            let all = text(7, 530);
            let sequence = model.open().unwrap();
            model.extend(sequence, &all).unwrap();
            let mut tree = DraftTree::new();
            for level in 0..4 {
                // The second level asks for nothing before the third.
                if level != 1 {
                    model.score(&[(sequence, &tree)]).unwrap();
                }
                for _ in 0..4 {
                    let parent = rng.random_range(0..tree.len());
                    tree.add(parent, rng.random_range(2..7));
                }
            }
            model.score(&[(sequence, &tree)]).unwrap();
            for node in 0..tree.len() {
                let path: Vec<Token> =
                    tree.path(node).into_iter().map(|node| tree.token(node)).collect();
                let own = alone.open().unwrap();
                alone.extend(own, &[&all[..], &path].concat()).unwrap();
                let expected = logits(&mut alone, own);
                assert_eq!(model.logits(sequence, node), expected, "{name}, {precision}, {node}");
                alone.close(own);
            }
        }
    }
}

/// What states and their tokens take is counted, and does not grow with what was decided.
#[test]
fn states_are_counted() {
    let mut model = model("qwen3-5", Precision::F32);
    let state = model.config().state_bytes() as usize;
    assert_eq!(state, 2 * 4 * (2 * (2 * 32 + 64) + 4 * 16 * 16));
    let sequence = model.open().unwrap();
    assert_eq!(model.cache_bytes(), state);
    let all = text(8, 1050);
    model.extend(sequence, &all[..1026]).unwrap();
    model.prepare(sequence, usize::MAX).unwrap();
    // Its own, and some that are kept: one at the end of each piece.
    let least = 1025 * model.token_bytes() as usize;
    assert!((least + 2 * state..2 * least + 5 * state).contains(&model.cache_bytes()));
    // All within a page.
    logits(&mut model, sequence);
    let before = model.cache_bytes();
    for token in &all[1026..] {
        model.extend(sequence, &[*token]).unwrap();
        logits(&mut model, sequence);
        assert_eq!(model.cache_bytes(), before);
    }
}
