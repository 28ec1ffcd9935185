//! Scoring a tree equals scoring each of its paths, and committing keeps what was computed and
//! nothing else: for models with a KV cache, with a sliding window and with a recurrent state, and
//! path by path where ids run out.
#![cfg(feature = "native")]

mod support;

use std::collections::{BTreeSet, HashMap};

use polydraft::{DraftTree, Token};
use polydraft_engine::{HiddenState, HiddenStates, Model, Sequence, Sequences};
use polydraft_llama::{LlamaModel, LlamaOptions, load_model};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use support::*;

/// Tolerance for rounding. The logits of these models are around 2. Two passes over different
/// numbers of rows differed by up to 1.2e-4 (f32 keys and values, no flash attention; with it up to
/// 7e-3); logits after wrong tokens differ by more than a hundred times as much.
const ROUNDING: f32 = 5e-4;

fn model(kind: Kind, seed: u64) -> LlamaModel {
    load_model(file(&writer(kind, seed, 1.0)).path(), &options()).unwrap().0
}

/// Every kind of model, with and without ids for leaves.
fn kinds_and_ids() -> impl Iterator<Item = (Kind, bool)> {
    Kind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
}

/// Checks the logits of every node of `tree` after `tokens` against a second model that reads each
/// path alone.
fn check(
    model: &LlamaModel,
    sequence: Sequence,
    fresh: &mut LlamaModel,
    tree: &DraftTree,
    tokens: &[Token],
    case: &str,
) {
    for node in 0..tree.len() {
        let path = [tokens, &tokens_to(tree, node)].concat();
        let expected = alone(fresh, &path);
        let difference = distance(model.logits(sequence, node), &expected);
        assert!(difference < ROUNDING, "{case}: node {node} of {}: {difference}", tree.len());
    }
}

#[test]
fn any_changed_token_changes_the_logits() {
    let mut rng = ChaCha12Rng::seed_from_u64(1);
    for kind in Kind::ALL {
        let mut model = model(kind, 1);
        let tokens = random_tokens(&mut rng, 40);
        let before = alone(&mut model, &tokens);
        // The first token too, except with a window or a fading state.
        for position in [39, 38, if kind == Kind::Plain { 0 } else { 36 }] {
            let mut other = tokens.clone();
            other[position] = if other[position] == 5 { 6 } else { 5 };
            let difference = distance(&before, &alone(&mut model, &other));
            assert!(difference > 100.0 * ROUNDING, "{kind:?}, {position}: {difference}");
        }
    }
}

#[test]
fn tree_logits_equal_those_of_its_paths() {
    for (kind, few_ids) in kinds_and_ids() {
        let mut rng = ChaCha12Rng::seed_from_u64(2);
        // The last is longer than a pass.
        for length in [1, 2, 7, 40, 600] {
            let (mut model, mut fresh) = (model(kind, 2), model(kind, 2));
            let tokens = random_tokens(&mut rng, length);
            let mut tree = DraftTree::new();
            grow(&mut tree, &mut rng, 12);
            let sequence = model.open().unwrap();
            if few_ids {
                model.limit_ids(0);
            }
            model.extend(sequence, &tokens).unwrap();
            model.score(&[(sequence, &tree)]).unwrap();
            check(
                &model,
                sequence,
                &mut fresh,
                &tree,
                &tokens,
                &format!("{kind:?}, {few_ids}, {length}"),
            );
        }
    }
}

#[test]
fn tree_scored_level_by_level_equals_tree_scored_at_once() {
    for (kind, few_ids) in kinds_and_ids() {
        let mut rng = ChaCha12Rng::seed_from_u64(3);
        let (mut model, mut fresh) = (model(kind, 3), model(kind, 3));
        let tokens = random_tokens(&mut rng, 30);
        let sequence = model.open().unwrap();
        if few_ids {
            // They run out in the middle of a tree.
            model.limit_ids(3);
        }
        model.extend(sequence, &tokens).unwrap();
        let mut tree = DraftTree::new();
        for _ in 0..5 {
            model.score(&[(sequence, &tree)]).unwrap();
            grow(&mut tree, &mut rng, 4);
        }
        model.score(&[(sequence, &tree)]).unwrap();
        model.score(&[(sequence, &tree)]).unwrap();
        check(&model, sequence, &mut fresh, &tree, &tokens, &format!("{kind:?}, {few_ids}"));
    }
}

#[test]
fn commit_keeps_the_path_and_nothing_else() {
    for (kind, few_ids) in kinds_and_ids() {
        for seed in 10..13 {
            let mut rng = ChaCha12Rng::seed_from_u64(seed);
            let (mut model, mut fresh) = (model(kind, seed), model(kind, seed));
            let mut tokens = random_tokens(&mut rng, 5);
            let sequence = model.open().unwrap();
            if few_ids {
                model.limit_ids(2);
            }
            model.extend(sequence, &tokens).unwrap();
            for round in 0..12 {
                let mut tree = DraftTree::new();
                grow(&mut tree, &mut rng, 8);
                model.score(&[(sequence, &tree)]).unwrap();
                // Sometimes the committed path is longer than what was scored, like a draft model's
                // own.
                grow(&mut tree, &mut rng, 3);
                let end = rng.random_range(0..tree.len());
                model.commit(sequence, &tree, &tree.path(end)).unwrap();
                tokens.extend(tokens_to(&tree, end));
                if rng.random() {
                    let more = random_tokens(&mut rng, 1);
                    model.extend(sequence, &more).unwrap();
                    tokens.extend(more);
                }
                if round % 5 == 4 {
                    let length = tokens.len() - rng.random_range(1..4);
                    model.truncate(sequence, length);
                    tokens.truncate(length);
                }
                assert_eq!(model.len(sequence), tokens.len());
                let mut next = DraftTree::new();
                grow(&mut next, &mut rng, 3);
                model.score(&[(sequence, &next)]).unwrap();
                check(
                    &model,
                    sequence,
                    &mut fresh,
                    &next,
                    &tokens,
                    &format!("{kind:?}, {few_ids}, {seed}, {round}"),
                );
                model.commit(sequence, &next, &[]).unwrap();
            }
        }
    }
}

#[test]
fn cached_tokens_are_not_recomputed() {
    let mut rng = ChaCha12Rng::seed_from_u64(20);
    for kind in [Kind::Plain, Kind::Window] {
        let mut model = model(kind, 20);
        let tokens = random_tokens(&mut rng, 50);
        let sequence = model.open().unwrap();
        model.extend(sequence, &tokens).unwrap();
        assert_eq!(model.computed(sequence), 0);
        assert_eq!(model.prepare(sequence, 20).unwrap(), 29);
        assert_eq!(model.computed(sequence), 20);
        assert_eq!(model.prepare(sequence, 100).unwrap(), 0);
        let mut tree = DraftTree::new();
        let path = [tree.add(0, 7), tree.add(1, 8), tree.add(1, 9)];
        model.score(&[(sequence, &tree)]).unwrap();
        // The branch with an id of its own.
        model.commit(sequence, &tree, &[path[0], path[2]]).unwrap();
        assert_eq!((model.len(sequence), model.computed(sequence)), (52, 52));
        // A sequence with the same prefix while the first is open, and one after it is closed.
        let committed = [&tokens[..], &[7, 9]].concat();
        let second = model.open().unwrap();
        model.extend(second, &[&committed[..30], &[3, 4]].concat()).unwrap();
        assert_eq!(model.computed(second), 30);
        model.close(sequence);
        let third = model.open().unwrap();
        model.extend(third, &[&committed[..], &[5]].concat()).unwrap();
        assert_eq!(model.computed(third), 52);
        let logits = after(&mut model, third);
        let mut fresh = self::model(kind, 20);
        let difference = distance(&logits, &alone(&mut fresh, &[&committed[..], &[5]].concat()));
        assert!(difference < ROUNDING, "{kind:?}: {difference}");
        let logits = after(&mut model, second);
        assert!(
            distance(&logits, &alone(&mut fresh, &[&committed[..30], &[3, 4]].concat())) < ROUNDING
        );
    }
}

/// A small cache limits the rows per pass.
#[test]
fn small_cache_computes_prompt_in_small_passes() {
    let file = file(&writer(Kind::Plain, 60, 1.0));
    let options = LlamaOptions { context: Some(200), cells: Some(200), ..options() };
    let (mut model, _) = load_model(file.path(), &options).unwrap();
    let tokens = random_tokens(&mut ChaCha12Rng::seed_from_u64(60), 200);
    let sequence = model.open().unwrap();
    model.extend(sequence, &tokens).unwrap();
    let logits = after(&mut model, sequence);
    assert!(distance(&logits, &alone(&mut self::model(Kind::Plain, 60), &tokens)) < ROUNDING);
}

/// Sequences open and close, several share a pass, and their trees grow and are committed: each has
/// the logits that it has alone.
#[test]
fn other_sequences_change_logits_only_by_rounding() {
    for kind in Kind::ALL {
        let mut rng = ChaCha12Rng::seed_from_u64(30);
        let (mut model, mut fresh) = (model(kind, 30), model(kind, 30));
        let most = model.info().max_sequences.min(4);
        let prefix = random_tokens(&mut rng, 25);
        let mut open: Vec<(Sequence, Vec<Token>)> = Vec::new();
        for _ in 0..25 {
            while open.len() < most && (open.is_empty() || rng.random()) {
                let known = rng.random_range(0..prefix.len());
                let tokens = [&prefix[..known], &random_tokens(&mut rng, 10)].concat();
                let sequence = model.open().unwrap();
                model.extend(sequence, &tokens).unwrap();
                open.push((sequence, tokens));
            }
            let trees: Vec<DraftTree> = open
                .iter()
                .map(|_| {
                    let mut tree = DraftTree::new();
                    let count = rng.random_range(0..6);
                    grow(&mut tree, &mut rng, count);
                    tree
                })
                .collect();
            let batch: Vec<_> =
                open.iter().zip(&trees).map(|((sequence, _), tree)| (*sequence, tree)).collect();
            model.score(&batch).unwrap();
            for ((sequence, tokens), tree) in open.iter_mut().zip(&trees) {
                let node = rng.random_range(0..tree.len());
                let path = [&tokens[..], &tokens_to(tree, node)].concat();
                let difference = distance(model.logits(*sequence, node), &alone(&mut fresh, &path));
                assert!(difference < ROUNDING, "{kind:?}: {difference}");
                model.commit(*sequence, tree, &tree.path(node)).unwrap();
                *tokens = path;
                let more = random_tokens(&mut rng, 1);
                model.extend(*sequence, &more).unwrap();
                tokens.extend(more);
            }
            if rng.random_range(0..3) == 0 {
                let (sequence, _) = open.swap_remove(rng.random_range(0..open.len()));
                model.close(sequence);
            }
        }
    }
}

#[test]
fn full_cache_is_an_error_and_leaves_other_sequences_intact() {
    let file = file(&writer(Kind::Plain, 40, 1.0));
    let options = LlamaOptions { context: Some(512), cells: Some(512), ..options() };
    let (mut model, _) = load_model(file.path(), &options).unwrap();
    let mut rng = ChaCha12Rng::seed_from_u64(40);
    let (tokens, other) = (random_tokens(&mut rng, 300), random_tokens(&mut rng, 300));
    let first = model.open().unwrap();
    model.extend(first, &tokens).unwrap();
    let expected = after(&mut model, first);
    let second = model.open().unwrap();
    model.extend(second, &other).unwrap();
    let message = model.score(&[(second, &DraftTree::new())]).unwrap_err().to_string();
    assert!(message.contains("cache of 512 tokens") && message.contains("no room"), "{message}");
    // The first continues; when it is closed, its cache is evicted for the second.
    model.extend(first, &[9]).unwrap();
    model.truncate(first, 300);
    assert!(distance(&after(&mut model, first), &expected) < ROUNDING);
    model.close(first);
    let mut fresh = self::model(Kind::Plain, 40);
    let logits = after(&mut model, second);
    assert!(distance(&logits, &alone(&mut fresh, &other)) < ROUNDING);
}

/// The captured hidden states of a sequence do not depend on how it was computed: as a prompt,
/// drafted and committed, scored path by path, truncated, or reused from a closed sequence.
#[test]
fn captured_hidden_states_are_those_of_a_fresh_sequence() {
    let captured = [HiddenState::After(1), HiddenState::After(0)];
    let hidden =
        model(Kind::Plain, 60).info().hidden.expect("a model that can capture hidden states");
    for few_ids in [false, true] {
        let mut rng = ChaCha12Rng::seed_from_u64(60);
        let (mut model, mut fresh) = (model(Kind::Plain, 60), model(Kind::Plain, 60));
        model.capture_hidden_states(&captured).unwrap();
        fresh.capture_hidden_states(&captured).unwrap();
        let mut embedded: HashMap<Token, Vec<f32>> = HashMap::new();
        for _ in 0..3 {
            let sequence = model.open().unwrap();
            if few_ids {
                model.limit_ids(2);
            }
            // Some of the sequences share their prefix.
            let mut tokens =
                random_tokens(&mut ChaCha12Rng::seed_from_u64(rng.random_range(0..2)), 12);
            model.extend(sequence, &tokens).unwrap();
            for round in 0..8 {
                let mut tree = DraftTree::new();
                grow(&mut tree, &mut rng, 7);
                model.score(&[(sequence, &tree)]).unwrap();
                let end = rng.random_range(0..tree.len());
                model.commit(sequence, &tree, &tree.path(end)).unwrap();
                tokens.extend(tokens_to(&tree, end));
                let last = tokens.len() - 1;
                let got = model.hidden_states(sequence, 0..last).unwrap();
                fresh.forget_closed();
                let alone = fresh.open().unwrap();
                fresh.extend(alone, &tokens).unwrap();
                fresh.prepare(alone, usize::MAX).unwrap();
                let expected = fresh.hidden_states(alone, 0..last).unwrap();
                fresh.close(alone);
                let difference = distance(&got, &expected);
                assert!(difference < ROUNDING, "{few_ids}, round {round}: {difference}");
                for (token, states) in tokens.iter().zip(got.chunks_exact(2 * hidden)) {
                    let input = &states[hidden..];
                    assert_eq!(
                        embedded.entry(*token).or_insert_with(|| input.to_vec()),
                        input,
                        "token {token}"
                    );
                }
                if round % 3 == 2 {
                    let length = tokens.len() - rng.random_range(1..4);
                    model.truncate(sequence, length);
                    tokens.truncate(length);
                    let more = random_tokens(&mut rng, 2);
                    model.extend(sequence, &more).unwrap();
                    tokens.extend(more);
                }
            }
            assert!(model.hidden_states(sequence, 0..tokens.len() + 1).is_err());
            model.close(sequence);
        }
        let rows: BTreeSet<_> = embedded.values().map(|row| row[0].to_bits()).collect();
        assert!(rows.len() > 20 && rows.len() == embedded.len(), "tokens have rows of their own");
    }
}

#[test]
fn rejects_unsupported_hidden_states() {
    let inputs = [HiddenState::After(1), HiddenState::After(0)];
    let mut plain = model(Kind::Plain, 60);
    for unsupported in [HiddenState::After(2), HiddenState::Output] {
        assert!(plain.capture_hidden_states(&[unsupported]).is_err());
    }
    plain.open().unwrap();
    assert!(plain.capture_hidden_states(&inputs).is_err(), "a sequence is open");
    let message = model(Kind::Window, 60).capture_hidden_states(&inputs).unwrap_err().to_string();
    assert!(message.contains("llama, qwen3"), "{message}");
}

#[test]
fn rejects_empty_sequence() {
    let mut model = model(Kind::Plain, 50);
    let sequence = model.open().unwrap();
    let message = model.score(&[(sequence, &DraftTree::new())]).unwrap_err().to_string();
    assert!(message.contains("empty"), "{message}");
}

#[test]
fn rejects_token_outside_vocabulary() {
    let mut model = model(Kind::Plain, 50);
    let sequence = model.open().unwrap();
    let message = model.extend(sequence, &[vocabulary() as Token]).unwrap_err().to_string();
    assert!(message.contains(&format!("below {}", vocabulary())), "{message}");
}

#[test]
fn rejects_sequence_and_tree_longer_than_context() {
    let mut model = model(Kind::Plain, 50);
    let root = DraftTree::new();
    let sequence = model.open().unwrap();
    model.extend(sequence, &vec![5; CONTEXT as usize + 1]).unwrap();
    let message = model.prepare(sequence, 5).unwrap_err().to_string();
    assert!(message.contains("641") && message.contains("640"), "{message}");
    model.truncate(sequence, CONTEXT as usize);
    model.score(&[(sequence, &root)]).unwrap();
    let mut tree = DraftTree::new();
    tree.add(0, 1);
    assert!(model.score(&[(sequence, &tree)]).is_err());
}

#[test]
fn rejects_more_sequences_than_the_maximum() {
    let mut model = model(Kind::Plain, 50);
    let most = model.info().max_sequences;
    for _ in 0..most {
        model.open().unwrap();
    }
    let message = model.open().unwrap_err().to_string();
    assert!(message.contains(&format!("at most {most} sequences")), "{message}");
}

#[test]
fn rejects_context_and_cache_out_of_range() {
    let file = file(&writer(Kind::Plain, 50, 1.0));
    for (invalid, expected) in [
        (LlamaOptions { context: Some(0), ..options() }, "1 to 640"),
        (LlamaOptions { context: Some(641), ..options() }, "1 to 640"),
        (LlamaOptions { cells: Some(600), ..options() }, "640 tokens"),
    ] {
        let message = load_model(file.path(), &invalid).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
