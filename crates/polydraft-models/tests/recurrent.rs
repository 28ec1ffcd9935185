//! Models with recurrent layers: what is recomputed after a truncation, and what is reused from
//! other sequences' states.

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

fn tokens(seed: u64, length: usize) -> Vec<Token> {
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    (0..length).map(|_| rng.random_range(2..62)).collect()
}

fn logits(model: &mut TransformerModel, sequence: Sequence) -> Vec<f32> {
    use polydraft_engine::Model;
    model.score(&[(sequence, &DraftTree::new())]).unwrap();
    model.logits(sequence, DraftTree::ROOT).to_vec()
}

/// Logits after a sequence that a new model reads at once.
fn fresh_logits(name: &str, tokens: &[Token]) -> Vec<f32> {
    let mut model = model(name, Precision::F32);
    let sequence = model.open().unwrap();
    model.extend(sequence, tokens).unwrap();
    logits(&mut model, sequence)
}

/// Number of tokens before the last that have to be computed.
fn uncomputed(model: &mut TransformerModel, sequence: Sequence) -> usize {
    model.prepare(sequence, 0).unwrap()
}

#[test]
fn truncation_resumes_at_a_cached_state() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let all = tokens(1, 1500);
        let sequence = model.open().unwrap();
        model.extend(sequence, &all[..1300]).unwrap();
        assert_eq!(model.prepare(sequence, usize::MAX).unwrap(), 0);
        // Generation token by token advances the committed state.
        for token in &all[1300..] {
            logits(&mut model, sequence);
            model.extend(sequence, &[*token]).unwrap();
        }
        logits(&mut model, sequence);
        for (length, limit) in [(1499, 256), (1400, 256), (1310, 11), (1300, 1), (900, 256), (5, 5)]
        {
            model.truncate(sequence, length);
            let uncomputed = uncomputed(&mut model, sequence);
            assert!(
                uncomputed < limit,
                "{name}: of {length} tokens {uncomputed} are computed again"
            );
            assert_eq!(logits(&mut model, sequence), fresh_logits(name, &all[..length]), "{name}");
            assert_eq!(model.prepare(sequence, 0).unwrap(), 0);
        }
    }
}

/// After a truncation and other tokens, the removed tokens have no effect on any state.
#[test]
fn truncated_tokens_leave_no_trace_in_states() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let (one, other) = (tokens(2, 1200), tokens(3, 1200));
        let sequence = model.open().unwrap();
        model.extend(sequence, &one).unwrap();
        logits(&mut model, sequence);
        model.truncate(sequence, 700);
        let mixed = [&one[..700], &other[700..]].concat();
        model.extend(sequence, &other[700..]).unwrap();
        assert_eq!(logits(&mut model, sequence), fresh_logits(name, &mixed), "{name}");
        model.truncate(sequence, 1000);
        assert_eq!(logits(&mut model, sequence), fresh_logits(name, &mixed[..1000]), "{name}");
    }
}

#[test]
fn next_turn_of_a_conversation_reuses_states() {
    for name in MODELS {
        let mut model = model(name, Precision::F32);
        let all = tokens(4, 1000);
        let first = model.open().unwrap();
        model.extend(first, &all[..600]).unwrap();
        model.prepare(first, usize::MAX).unwrap();
        for token in &all[600..640] {
            logits(&mut model, first);
            model.extend(first, &[*token]).unwrap();
        }
        model.close(first);
        // A continuation of the sequence, then the same prompt with another continuation.
        let second = model.open().unwrap();
        model.extend(second, &all[..700]).unwrap();
        assert!(uncomputed(&mut model, second) < 62, "{name}");
        assert_eq!(logits(&mut model, second), fresh_logits(name, &all[..700]), "{name}");
        let third = model.open().unwrap();
        let prompt = [&all[..600], &tokens(5, 30)].concat();
        model.extend(third, &prompt).unwrap();
        assert!(uncomputed(&mut model, third) <= 600 - 512 + 30, "{name}");
        assert_eq!(logits(&mut model, third), fresh_logits(name, &prompt), "{name}");
        // The sequence that was shared is unchanged.
        assert_eq!(logits(&mut model, second), fresh_logits(name, &all[..700]), "{name}");
    }
}

/// Random trees, scored level by level, after prompts longer than a prefill chunk.
#[test]
fn tree_logits_after_long_prompts_equal_those_of_its_paths() {
    use polydraft_engine::Model;
    for name in MODELS {
        for precision in [Precision::F32, Precision::Q8_0] {
            let (mut model, mut alone) = (model(name, precision), model(name, precision));
            alone.set_limits(SequenceLimits { closed: 0, ..SequenceLimits::default() });
            let mut rng = ChaCha12Rng::seed_from_u64(6);
            let all = tokens(7, 530);
            let sequence = model.open().unwrap();
            model.extend(sequence, &all).unwrap();
            let mut tree = DraftTree::new();
            for level in 0..4 {
                // The second level is scored together with the third.
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
                let path_sequence = alone.open().unwrap();
                alone.extend(path_sequence, &[&all[..], &path].concat()).unwrap();
                let expected = logits(&mut alone, path_sequence);
                assert_eq!(model.logits(sequence, node), expected, "{name}, {precision}, {node}");
                alone.close(path_sequence);
            }
        }
    }
}

/// The memory of states is counted and does not grow with the number of generated tokens.
#[test]
fn cache_bytes_count_states_and_stay_constant_while_generating() {
    let mut model = model("qwen3-5", Precision::F32);
    let state = model.config().state_bytes() as usize;
    assert_eq!(state, 2 * 4 * (2 * (2 * 32 + 64) + 4 * 16 * 16));
    let sequence = model.open().unwrap();
    assert_eq!(model.cache_bytes(), state);
    let all = tokens(8, 1050);
    model.extend(sequence, &all[..1026]).unwrap();
    model.prepare(sequence, usize::MAX).unwrap();
    // The current state, and one at the end of each prefill chunk.
    let least = 1025 * model.token_bytes() as usize;
    assert!((least + 2 * state..2 * least + 5 * state).contains(&model.cache_bytes()));
    // All tokens fit one page.
    logits(&mut model, sequence);
    let before = model.cache_bytes();
    for token in &all[1026..] {
        model.extend(sequence, &[*token]).unwrap();
        logits(&mut model, sequence);
        assert_eq!(model.cache_bytes(), before);
    }
}
