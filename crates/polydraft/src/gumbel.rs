//! Gumbel coupling: randomness shared by a target and its drafts, so that the output does not
//! depend on the drafts.
//!
//! Problem: draw a token from a distribution p and, elsewhere and without knowing p, tokens from a
//! distribution q that are likely to include it.
//! Source: the coupling by exponential arrival times as in Daliri, Musco, Suresh 2025 ("Coupling
//! without communication and drafter-invariant speculative decoding", Gumbel sampling) for one
//! draft; Rowan et al. 2025 (list-level coupling) for several, where each draft has its own arrival
//! times.
//! Complexity: one hash per token of the support, one logarithm per token that may still be among
//! the first.
//! Deviations: (1) all drafts of a node come from one set of times: they are the first n tokens to
//! arrive under q (Gumbel-top-n), which are n draws without replacement, and the output does not
//! depend on n either; (2) the times depend on the position in the sequence, not on the tokens
//! before it, so nodes of one depth share them.
//!
//! At each position of a sequence every token i has an exponential time E_i of rate 1. Under a
//! distribution p, token i arrives at E_i/p_i, and the first token to arrive is drawn. As E_i/p_i
//! is exponential with rate p_i, the drawn token has the distribution p. Two programs with the same
//! times draw the same token from the same distribution, and usually the same token from similar
//! distributions.

mod lazy;

use crate::random::{Outcomes, RandomSource};
use crate::{Distribution, Token};

pub use lazy::LazyRandomness;

/// The shared randomness of one sequence.
pub trait SharedRandomness: Send {
    /// The first `count` tokens of `probs` to arrive at this position, in order of arrival; fewer
    /// if the support is smaller. The same arguments always give the same result. `rng` decides
    /// times that are still undecided.
    fn first_arrivals(
        &mut self,
        position: usize,
        probs: &Distribution,
        count: usize,
        rng: &mut dyn RandomSource,
    ) -> Vec<Token>;
}

/// Shared randomness derived from a key.
///
/// ```
/// use polydraft::gumbel::{SharedRandomness, KeyedRandomness};
/// use polydraft::Distribution;
/// use rand::SeedableRng;
///
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let mut shared_randomness = KeyedRandomness::new([1, 2]);
/// let (p, q) = (Distribution::new(vec![0.5, 0.3, 0.2])?, Distribution::new(vec![0.4, 0.3, 0.3])?);
/// // Similar distributions have the same first token nearly always.
/// let mut first = |probs, at| shared_randomness.first_arrivals(at, probs, 1, &mut rng);
/// let same = (0..1000).filter(|&position| first(&p, position) == first(&q, position)).count();
/// assert!(same > 800);
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRandomness {
    key: [u64; 2],
}

impl KeyedRandomness {
    /// Creates the shared randomness of a key.
    pub fn new(key: [u64; 2]) -> Self {
        Self { key }
    }
}

/// Creates the shared randomness of a sequence: from a key drawn from `rng`, or, under enumeration,
/// one that takes all of its outcomes in turn.
pub fn shared_randomness(rng: &mut dyn RandomSource) -> Box<dyn SharedRandomness> {
    match rng.shared_key() {
        Some(key) => Box::new(KeyedRandomness::new(key)),
        None => Box::new(LazyRandomness::new()),
    }
}

/// The mixing step of SplitMix64 (Steele, Lea, Flood 2014): neighbouring inputs give unrelated
/// outputs.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SharedRandomness for KeyedRandomness {
    fn first_arrivals(
        &mut self,
        position: usize,
        probs: &Distribution,
        count: usize,
        _: &mut dyn RandomSource,
    ) -> Vec<Token> {
        let base =
            mix(self.key[0] ^ mix(self.key[1].wrapping_add((position as u64).wrapping_mul(STEP))));
        let mut first: Vec<(f64, Token)> = Vec::with_capacity(count.min(probs.support_size()) + 1);
        for (token, p) in probs.support() {
            let bits = mix(base.wrapping_add(u64::from(token).wrapping_add(1).wrapping_mul(STEP)));
            // Small values decide, so they keep their digits.
            let uniform = (bits as f64 + 0.5) * (-64_f64).exp2();
            let full = first.len() == count;
            // −ln(1 − u) ≥ u: most tokens need no logarithm.
            if full && first.last().is_none_or(|last| uniform >= last.0 * p) {
                continue;
            }
            let time = -(-uniform).ln_1p() / p;
            let rank = first.partition_point(|other| other.0 <= time);
            if rank < count {
                first.truncate(count - 1);
                first.insert(rank.min(first.len()), (time, token));
            }
        }
        first.into_iter().map(|(_, token)| token).collect()
    }
}

/// A random source that also provides the shared randomness of a sequence, from a position on.
pub struct WithSharedRandomness<'a> {
    rng: &'a mut dyn RandomSource,
    shared_randomness: &'a mut dyn SharedRandomness,
    position: usize,
}

impl<'a> WithSharedRandomness<'a> {
    /// Joins a random source and shared randomness. `position` is the position of the token after
    /// the draft's root: the number of tokens of the sequence so far.
    pub fn new(
        rng: &'a mut dyn RandomSource,
        shared_randomness: &'a mut dyn SharedRandomness,
        position: usize,
    ) -> Self {
        Self { rng, shared_randomness, position }
    }
}

impl RandomSource for WithSharedRandomness<'_> {
    fn coin(&mut self, probability: f64) -> bool {
        self.rng.coin(probability)
    }

    fn choose(&mut self, outcomes: &dyn Outcomes) -> usize {
        self.rng.choose(outcomes)
    }

    fn gumbel_top(
        &mut self,
        depth: usize,
        probs: &Distribution,
        count: usize,
    ) -> Option<Vec<Token>> {
        Some(self.shared_randomness.first_arrivals(self.position + depth, probs, count, self.rng))
    }
}

/// Samples a token of `probs` at this depth below a draft's root: the first to arrive by Gumbel
/// coupling, or an ordinary draw where there is no shared randomness.
pub fn sample(probs: &Distribution, depth: usize, rng: &mut dyn RandomSource) -> Token {
    let first = rng.gumbel_top(depth, probs, 1).and_then(|first| first.first().copied());
    first.unwrap_or_else(|| probs.sample(rng))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::drafting::{Drafting, Draws, Proposal};

    /// All tokens in order of arrival, found by removing the first one repeatedly.
    fn arrival_order(
        shared_randomness: &KeyedRandomness,
        position: usize,
        probs: &Distribution,
    ) -> Vec<Token> {
        let one = |token| Distribution::one_hot(probs.vocabulary(), token).unwrap();
        let mut remaining: Vec<(Token, f64)> = probs.support().collect();
        let mut order = Vec::new();
        while !remaining.is_empty() {
            let mut weights = vec![0.0; probs.vocabulary()];
            let sum: f64 = remaining.iter().map(|entry| entry.1).sum();
            remaining.iter().for_each(|entry| weights[entry.0 as usize] = entry.1 / sum);
            let rest = Distribution::new(weights).unwrap_or_else(|_| one(remaining[0].0));
            let mut rng = ChaCha8Rng::seed_from_u64(0);
            let first = shared_randomness.clone().first_arrivals(position, &rest, 1, &mut rng)[0];
            remaining.retain(|entry| entry.0 != first);
            order.push(first);
        }
        order
    }

    #[test]
    fn first_arrivals_are_a_prefix_of_the_arrival_order() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut shared_randomness = KeyedRandomness::new(rng.shared_key().unwrap());
        let probs = Distribution::new(vec![0.3, 0.0, 0.4, 0.05, 0.15, 0.1]).unwrap();
        for position in 0..500 {
            let order = arrival_order(&shared_randomness, position, &probs);
            for count in 0..8 {
                let first = shared_randomness.first_arrivals(position, &probs, count, &mut rng);
                assert_eq!(first, order[..count.min(5)], "{position}");
            }
        }
    }

    /// Keyed times are exponential times: tuples have the distribution of draws without
    /// replacement, over positions of one key and over keys at one position.
    #[test]
    fn keyed_tuples_have_the_distribution_of_draws_without_replacement() {
        let probs = Distribution::new(vec![0.55, 0.25, 0.15, 0.05]).unwrap();
        let draws = Draws { scheme: Drafting::WithoutReplacement, count: 2 };
        let proposal = Proposal::new(draws, std::slice::from_ref(&probs)).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let runs = 60_000;
        for by_key in [false, true] {
            let mut shared_randomness = KeyedRandomness::new(rng.shared_key().unwrap());
            let mut counts = std::collections::HashMap::new();
            for run in 0..runs {
                if by_key {
                    shared_randomness = KeyedRandomness::new(rng.shared_key().unwrap());
                }
                let first = shared_randomness.first_arrivals(
                    if by_key { 7 } else { run },
                    &probs,
                    2,
                    &mut rng,
                );
                *counts.entry(first).or_insert(0_u64) += 1;
            }
            let cells = proposal.tuples().into_iter().map(|(p, tuple)| (p, counts[&tuple]));
            let test = crate::conformance::statistics::GTest::new(cells);
            assert!(test.p_value() > 1e-3, "{test:?}");
        }
    }
}
