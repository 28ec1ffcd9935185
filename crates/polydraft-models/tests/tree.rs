//! Scoring a tree equals scoring each of its paths, and committing keeps what was computed and
//! nothing else.

use crate::common::*;
use polydraft::{DraftTree, Token};
use polydraft_models::Precision;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

/// Checks the logits of every node of `tree` after `tokens`, scored in `model`, against a second
/// model that reads each path alone: on a CPU they are equal bit for bit.
fn check(model: &SingleSequence, fresh: &mut SingleSequence, tree: &DraftTree, tokens: &[Token]) {
    for node in 0..tree.len() {
        let path = [tokens, &tokens_to(tree, node)].concat();
        let expected = alone(fresh, &path);
        let difference = distance(model.logits(node), &expected);
        assert_eq!(model.logits(node), expected, "node {node} of {}: {difference}", tree.len());
    }
}

#[test]
fn tree_logits_equal_those_of_its_paths() {
    for (seed, precision) in [(1, Precision::F32), (2, Precision::Q8_0)] {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let (mut model, mut fresh) = (random_model(seed, precision), random_model(seed, precision));
        // The last is longer than a prefill chunk.
        for length in [1, 2, 7, 300] {
            let tokens = random_tokens(&mut rng, length);
            let mut tree = DraftTree::new();
            grow(&mut tree, &mut rng, 12);
            model.reset();
            model.extend(&tokens).unwrap();
            model.score(&tree).unwrap();
            check(&model, &mut fresh, &tree, &tokens);
        }
    }
}

#[test]
fn tree_scored_level_by_level_equals_tree_scored_at_once() {
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    let (mut model, mut fresh) = (random_model(3, Precision::F32), random_model(3, Precision::F32));
    let tokens = random_tokens(&mut rng, 9);
    model.extend(&tokens).unwrap();
    let mut tree = DraftTree::new();
    for _ in 0..5 {
        model.score(&tree).unwrap();
        grow(&mut tree, &mut rng, 4);
    }
    model.score(&tree).unwrap();
    model.score(&tree).unwrap();
    check(&model, &mut fresh, &tree, &tokens);
}

#[test]
fn commit_keeps_the_path_and_nothing_else() {
    for seed in 10..16 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let (mut model, mut fresh) =
            (random_model(seed, Precision::F32), random_model(seed, Precision::F32));
        let mut tokens = random_tokens(&mut rng, 5);
        model.extend(&tokens).unwrap();
        for _ in 0..12 {
            let mut tree = DraftTree::new();
            grow(&mut tree, &mut rng, 8);
            model.score(&tree).unwrap();
            // Sometimes the committed path is longer than what was scored, like a draft model's
            // own.
            let scored = tree.len();
            grow(&mut tree, &mut rng, 3);
            let end = rng.random_range(0..tree.len());
            let path = tree.path(end);
            model.commit(&tree, &path).unwrap();
            tokens.extend(tokens_to(&tree, end));
            if rng.random() {
                let more = random_tokens(&mut rng, 1);
                model.extend(&more).unwrap();
                tokens.extend(more);
            }
            assert_eq!(model.len(), tokens.len());
            let mut next = DraftTree::new();
            grow(&mut next, &mut rng, 3);
            model.score(&next).unwrap();
            check(&model, &mut fresh, &next, &tokens);
            assert!(scored <= tree.len());
            model.commit(&next, &[]).unwrap();
        }
    }
}

#[test]
fn prompt_in_chunks_equals_prompt_at_once() {
    let mut rng = ChaCha12Rng::seed_from_u64(20);
    let (mut model, mut fresh) =
        (random_model(20, Precision::F32), random_model(20, Precision::F32));
    let tokens = random_tokens(&mut rng, 600);
    let root = DraftTree::new();
    for chunk in tokens.chunks(37) {
        model.extend(chunk).unwrap();
        model.score(&root).unwrap();
    }
    assert_eq!(model.logits(0), alone(&mut fresh, &tokens));
}

#[test]
fn rejects_empty_sequence() {
    let mut model = random_model(30, Precision::F32);
    let message = model.score(&DraftTree::new()).unwrap_err().to_string();
    assert!(message.contains("empty"), "{message}");
}

#[test]
fn rejects_token_outside_vocabulary() {
    let mut model = random_model(30, Precision::F32);
    let message = model.extend(&[VOCABULARY as Token]).unwrap_err().to_string();
    assert!(message.contains("below 96"), "{message}");
}

#[test]
fn rejects_tree_beyond_the_context() {
    let mut model = random_model(30, Precision::F32);
    let root = DraftTree::new();
    model.extend(&vec![1; 640]).unwrap();
    model.score(&root).unwrap();
    let mut tree = DraftTree::new();
    tree.add(0, 1);
    let message = model.score(&tree).unwrap_err().to_string();
    assert!(message.contains("641") && message.contains("640"), "{message}");
}
