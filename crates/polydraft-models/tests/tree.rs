//! Scoring a tree is scoring each of its paths; committing keeps what was computed, and nothing
//! else.

use crate::common::*;
use polydraft::{DraftTree, Token};
use polydraft_models::Precision;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

/// Checks every node of `tree` behind `text`, scored in `model`, against a second model that reads
/// it alone: on a processor they agree to the last bit.
fn check(model: &Single, fresh: &mut Single, tree: &DraftTree, text: &[Token]) {
    for node in 0..tree.len() {
        let whole = [text, &tokens_to(tree, node)].concat();
        let expected = alone(fresh, &whole);
        let difference = distance(model.logits(node), &expected);
        assert_eq!(model.logits(node), expected, "node {node} of {}: {difference}", tree.len());
    }
}

#[test]
fn a_tree_equals_its_paths() {
    for (seed, precision) in [(1, Precision::F32), (2, Precision::Q8_0)] {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let (mut model, mut fresh) = (random_model(seed, precision), random_model(seed, precision));
        // The last is longer than a chunk of prompt.
        for length in [1, 2, 7, 300] {
            let text = random_text(&mut rng, length);
            let mut tree = DraftTree::new();
            grow(&mut tree, &mut rng, 12);
            model.reset();
            model.extend(&text).unwrap();
            model.score(&tree).unwrap();
            check(&model, &mut fresh, &tree, &text);
        }
    }
}

#[test]
fn level_by_level_equals_at_once() {
    let mut rng = ChaCha12Rng::seed_from_u64(3);
    let (mut model, mut fresh) = (random_model(3, Precision::F32), random_model(3, Precision::F32));
    let text = random_text(&mut rng, 9);
    model.extend(&text).unwrap();
    let mut tree = DraftTree::new();
    for _ in 0..5 {
        model.score(&tree).unwrap();
        grow(&mut tree, &mut rng, 4);
    }
    model.score(&tree).unwrap();
    model.score(&tree).unwrap();
    check(&model, &mut fresh, &tree, &text);
}

#[test]
fn commits_keep_the_path_and_nothing_else() {
    for seed in 10..16 {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let (mut model, mut fresh) =
            (random_model(seed, Precision::F32), random_model(seed, Precision::F32));
        let mut text = random_text(&mut rng, 5);
        model.extend(&text).unwrap();
        for _ in 0..12 {
            let mut tree = DraftTree::new();
            grow(&mut tree, &mut rng, 8);
            model.score(&tree).unwrap();
            // Sometimes the path goes on below what was scored, as a draft's own does.
            let scored = tree.len();
            grow(&mut tree, &mut rng, 3);
            let end = rng.random_range(0..tree.len());
            let path = tree.path(end);
            model.commit(&tree, &path).unwrap();
            text.extend(tokens_to(&tree, end));
            if rng.random() {
                let more = random_text(&mut rng, 1);
                model.extend(&more).unwrap();
                text.extend(more);
            }
            assert_eq!(model.len(), text.len());
            let mut next = DraftTree::new();
            grow(&mut next, &mut rng, 3);
            model.score(&next).unwrap();
            check(&model, &mut fresh, &next, &text);
            assert!(scored <= tree.len());
            model.commit(&next, &[]).unwrap();
        }
    }
}

#[test]
fn a_chain_in_pieces_equals_the_whole() {
    let mut rng = ChaCha12Rng::seed_from_u64(20);
    let (mut model, mut fresh) =
        (random_model(20, Precision::F32), random_model(20, Precision::F32));
    let text = random_text(&mut rng, 600);
    let root = DraftTree::new();
    for piece in text.chunks(37) {
        model.extend(piece).unwrap();
        model.score(&root).unwrap();
    }
    assert_eq!(model.logits(0), alone(&mut fresh, &text));
}

#[test]
fn misuse_is_an_error() {
    let mut model = random_model(30, Precision::F32);
    let root = DraftTree::new();
    assert!(model.score(&root).unwrap_err().to_string().contains("empty"));
    let message = model.extend(&[VOCABULARY as Token]).unwrap_err().to_string();
    assert!(message.contains("below 96"), "{message}");
    model.extend(&vec![1; 640]).unwrap();
    model.score(&root).unwrap();
    let mut tree = DraftTree::new();
    tree.add(0, 1);
    let message = model.score(&tree).unwrap_err().to_string();
    assert!(message.contains("641") && message.contains("640"), "{message}");
}
