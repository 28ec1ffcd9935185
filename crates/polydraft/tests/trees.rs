//! Every verifier, on trees of every shape it supports, by exact enumeration.

use std::collections::HashMap;
use std::sync::Arc;

use polydraft::conformance::tree::{Exact, Pair, block_efficiency, exact, random_pair};
use polydraft::verify::{Laws, NestedPriority, Outcome, Verifier, nested_priority};
use polydraft::{
    Chance, Distribution, DraftTree, Drafting, Result, Shape, Token, Topology, VerifierKind, enumerate,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const TOLERANCE: f64 = 1e-10;

fn run(kind: &VerifierKind, shape: &Shape, pair: &Pair) -> Exact {
    let mut verifier = kind.build(shape).unwrap();
    let exact = exact(verifier.as_mut(), shape, &pair.target, &pair.draft, &mut |_| ()).unwrap();
    assert!(exact.law_deviation <= TOLERANCE, "{kind}, {shape}: {exact:?}\n{pair:?}");
    exact
}

fn paths(paths: usize, depth: usize) -> Shape {
    Shape::Paths { paths, depth }
}

fn named(name: &str) -> VerifierKind {
    name.parse().unwrap()
}

/// (vocabulary, depth, paths, number of random pairs).
const SIZES: [(usize, usize, usize, usize); 12] = [
    (2, 1, 1, 40),
    (3, 2, 1, 40),
    (2, 3, 1, 20),
    (2, 1, 3, 40),
    (4, 1, 3, 30),
    (2, 2, 2, 60),
    (3, 2, 2, 30),
    (4, 2, 2, 6),
    (2, 2, 3, 30),
    (2, 3, 2, 20),
    (2, 3, 3, 3),
    (2, 4, 2, 3),
];

fn pairs(size: (usize, usize, usize, usize), seed: u64) -> impl Iterator<Item = Pair> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..size.3).map(move |i| {
        random_pair(size.0, size.1, [0.0, 0.4, 0.8][i % 3], i % 2 == 1, &mut rng).unwrap()
    })
}

#[test]
fn every_verifier_emits_the_targets_law_on_paths() {
    for size in SIZES {
        let (_, depth, count, _) = size;
        let shape = paths(count, depth);
        for pair in pairs(size, 11) {
            for kind in VerifierKind::all() {
                if kind.build(&shape).is_ok() {
                    run(&kind, &shape, &pair);
                }
            }
        }
    }
}
