//! Pairs of models for exact enumeration of verifiers, shared by the tests.

#![allow(dead_code)] // not every test uses everything

use std::collections::HashMap;

use polydraft::conformance::tree::{Exact, Pair, exact, random_pair};
use polydraft::{Distribution, PolicyKind, Token, VerifierKind};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub const TOLERANCE: f64 = 1e-10;

/// Returns the exact result of a verifier, after checking that its distribution is the target's.
pub fn run(kind: &VerifierKind, policy: &PolicyKind, pair: &Pair) -> Exact {
    let (mut verifier, grown) = (kind.build().unwrap(), policy.build().unwrap());
    let exact =
        exact(verifier.as_mut(), grown.as_ref(), &pair.target, &pair.draft, &mut |_| ()).unwrap();
    assert!(exact.deviation <= TOLERANCE, "{kind}, {policy}: {exact:?}\n{pair:?}");
    exact
}

/// True if a verifier reports that it is exact for a policy.
pub fn supports(kind: &VerifierKind, policy: &PolicyKind) -> bool {
    kind.build().unwrap().supports(&policy.build().unwrap().form()).is_ok()
}

pub fn named(name: &str) -> VerifierKind {
    name.parse().unwrap()
}

pub fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= TOLERANCE, "{a} {b}");
}

/// (vocabulary, depth, paths, number of random pairs).
pub type Size = (usize, usize, usize, usize);

pub const SIZES: [Size; 17] = [
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
    (3, 2, 3, 2),
    (4, 2, 3, 1),
    (3, 3, 2, 2),
    (4, 3, 2, 1),
    (2, 4, 3, 1),
];

/// Random pairs of a size, half of them adversarial.
pub fn pairs((vocabulary, depth, _, count): Size, seed: u64) -> impl Iterator<Item = Pair> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(move |i| {
        random_pair(vocabulary, depth, [0.0, 0.4, 0.8][i % 3], i % 2 == 1, &mut rng).unwrap()
    })
}

/// A uniform number in [0, 1).
pub fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random distribution over `size` tokens, more or less peaked.
pub fn probs(size: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let flatness = [0.5, 1.0, 4.0, 12.0][rng.next_u32() as usize % 4];
    let weights: Vec<f64> = (0..size).map(|_| uniform(rng).powf(flatness) + 1e-9).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// Next-token distributions that depend on the last token only: the first one at the start, then
/// those after token 0, 1, ..
pub fn markov(distributions: &[&[f64]], depth: usize) -> HashMap<Vec<Token>, Distribution> {
    let mut all = HashMap::new();
    let mut sequences = vec![Vec::new()];
    for _ in 0..=depth {
        let mut longer = Vec::new();
        for sequence in sequences {
            let state = sequence.last().map_or(0, |last: &Token| *last as usize + 1);
            all.insert(sequence.clone(), Distribution::new(distributions[state].to_vec()).unwrap());
            longer.extend(
                (0..distributions[0].len() as Token)
                    .map(|token| [&sequence[..], &[token]].concat()),
            );
        }
        sequences = longer;
    }
    all
}
