//! Shared randomness that is decided lazily, for exact enumeration.
//!
//! Problem: run code that draws from several distributions with the same shared randomness once for
//! every outcome, with the outcome's exact probability.
//! Source: ours. Only the ratios of the times E matter, and E/ΣE is uniform on the simplex. The
//! known part of the times at a position is a union of small simplices. Token i arrives before j
//! under distribution p in the half space w_i·p_j < w_j·p_i; each query divides the known part, one
//! answer is chosen in proportion to its volume, and only its part is kept.
//! Method: a simplex that a plane cuts has an edge that it cuts. The intersection divides the
//! simplex into two, whose volumes are proportional to the parts of the edge; each of the two has
//! one corner fewer off the plane, so the recursion ends.
//! Complexity: exponential in the vocabulary and in the number of distributions at a position: for
//! tiny ones only.
//! Deviations: none.

use super::SharedRandomness;
use crate::random::RandomSource;
use crate::{Distribution, Token};

/// Parts with less than this fraction of the volume are slivers that rounding left on the wrong
/// side of a cut.
const SLIVER: f64 = 1e-13;

/// A simplex within the simplex of times, given by its corners.
#[derive(Debug, Clone)]
struct Simplex {
    corners: Vec<Vec<f64>>,
    /// Fraction of the volume of the whole simplex of times.
    volume: f64,
}

/// Shared randomness that is decided only as far as the queries so far require.
#[derive(Debug, Clone, Default)]
pub struct LazyRandomness {
    /// Per position: the simplices that the times may still lie in.
    known: Vec<Option<Vec<Simplex>>>,
}

impl LazyRandomness {
    /// Creates shared randomness with nothing decided.
    pub fn new() -> Self {
        Self::default()
    }
}

fn full_simplex(vocabulary: usize) -> Vec<Simplex> {
    let corner =
        |token| (0..vocabulary).map(|other| if other == token { 1.0 } else { 0.0 }).collect();
    vec![Simplex { corners: (0..vocabulary).map(corner).collect(), volume: 1.0 }]
}

/// Appends to `parts` the part of a simplex in which `a` arrives before `b`, each a token and its
/// probability.
fn keep_before(simplex: Simplex, a: (usize, f64), b: (usize, f64), parts: &mut Vec<Simplex>) {
    let side = |corner: &Vec<f64>| {
        let (left, right) = (corner[a.0] * b.1, corner[b.0] * a.1);
        let difference = left - right;
        // A corner made by an equal cut lies on the plane.
        if difference.abs() <= 1e-13 * (left + right) { 0.0 } else { difference }
    };
    let sides: Vec<f64> = simplex.corners.iter().map(side).collect();
    cut(simplex, sides, parts);
}

/// Appends to `parts` the part of a simplex on the side of a plane where `sides`, per corner, are
/// not positive. A new corner lies on the plane: its side is set to 0, not recomputed, because its
/// coordinates may have underflowed, and then the recursion would not end.
fn cut(simplex: Simplex, sides: Vec<f64>, parts: &mut Vec<Simplex>) {
    let after = sides.iter().position(|side| *side > 0.0);
    let Some(after) = after else { return parts.push(simplex) };
    let Some(ahead) = sides.iter().position(|side| *side < 0.0) else { return };
    let from_after = sides[after] / (sides[after] - sides[ahead]);
    let from_ahead = sides[ahead] / (sides[ahead] - sides[after]);
    let ends = simplex.corners[after].iter().zip(&simplex.corners[ahead]);
    let point: Vec<f64> =
        ends.map(|(after, ahead)| from_ahead * after + from_after * ahead).collect();
    for (replaced, fraction) in [(after, from_ahead), (ahead, from_after)] {
        let mut half = Simplex { volume: simplex.volume * fraction, ..simplex.clone() };
        half.corners[replaced].clone_from(&point);
        let mut sides = sides.clone();
        sides[replaced] = 0.0;
        cut(half, sides, parts);
    }
}

impl SharedRandomness for LazyRandomness {
    fn first_arrivals(
        &mut self,
        position: usize,
        probs: &Distribution,
        count: usize,
        rng: &mut dyn RandomSource,
    ) -> Vec<Token> {
        self.known.resize(self.known.len().max(position + 1), None);
        let mut known =
            self.known[position].take().unwrap_or_else(|| full_simplex(probs.vocabulary()));
        let mut remaining: Vec<(usize, f64)> =
            probs.support().map(|(token, p)| (token as usize, p)).collect();
        let mut first = Vec::new();
        while first.len() < count && !remaining.is_empty() {
            // For each remaining token, the part in which it arrives before all others.
            let parts: Vec<Vec<Simplex>> = remaining
                .iter()
                .map(|&first| {
                    let others = remaining.iter().filter(|other| other.0 != first.0);
                    others.fold(known.clone(), |known, &other| {
                        let mut part = Vec::new();
                        known
                            .into_iter()
                            .for_each(|simplex| keep_before(simplex, first, other, &mut part));
                        part
                    })
                })
                .collect();
            let volume =
                |part: &Vec<Simplex>| part.iter().map(|simplex| simplex.volume).sum::<f64>();
            let mut volumes: Vec<f64> = parts.iter().map(volume).collect();
            let slivers = SLIVER * volumes.iter().sum::<f64>();
            volumes.iter_mut().filter(|volume| **volume < slivers).for_each(|volume| *volume = 0.0);
            let chosen = rng.pick(&volumes);
            known = parts.into_iter().nth(chosen).unwrap_or_default();
            first.push(remaining.remove(chosen).0 as Token);
        }
        self.known[position] = Some(known);
        first
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::conformance::tree::random_pair;
    use crate::drafting::{Drafting, Draws, Proposal};
    use crate::gumbel::KeyedRandomness;
    use crate::random::enumerate;
    use rand::SeedableRng;

    /// The first tokens under one distribution are draws without replacement; the first token under
    /// another, queried afterwards, has that distribution; repeated queries give the same answers.
    #[test]
    fn lazy_tuples_and_first_tokens_have_their_distributions() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for vocabulary in 1..=4 {
            for round in 0..20 {
                let pair = random_pair(vocabulary, 0, 0.3, round % 2 == 1, &mut rng).unwrap();
                let (p, q) = (&pair.target[&vec![]], &pair.draft[&vec![]]);
                let count = 1 + round % 3;
                let (mut tuples, mut firsts) = (HashMap::new(), vec![0.0; vocabulary]);
                for (probability, (tuple, first)) in enumerate(|rng| {
                    let mut shared_randomness = LazyRandomness::new();
                    let mut query =
                        |probs, count| shared_randomness.first_arrivals(5, probs, count, rng);
                    let (tuple, first) = (query(q, count), query(p, 1));
                    assert_eq!((query(q, count), query(p, 1)), (tuple.clone(), first.clone()));
                    (tuple, first[0])
                }) {
                    *tuples.entry(tuple).or_insert(0.0) += probability;
                    firsts[first as usize] += probability;
                }
                let draws = Draws { scheme: Drafting::WithoutReplacement, count };
                let proposal = Proposal::new(draws, std::slice::from_ref(q)).unwrap();
                for (expected, tuple) in proposal.tuples() {
                    let got = tuples.remove(&tuple).unwrap_or(0.0);
                    assert!((got - expected).abs() < 1e-13, "{tuple:?}: {got} {expected}");
                }
                assert!(tuples.values().all(|rest| *rest < 1e-13), "{tuples:?}");
                for (token, got) in firsts.into_iter().enumerate() {
                    assert!((got - p.probability(token as Token)).abs() < 1e-13, "{token}: {got}");
                }
            }
        }
    }

    /// The probability that the first tokens under two distributions agree, by volumes, by the
    /// known formula, and by keyed times.
    #[test]
    fn first_tokens_agree_with_the_known_probability() {
        let (p, q) = ([0.5, 0.3, 0.15, 0.05], [0.2, 0.4, 0.3, 0.1]);
        let expected: f64 = (0..4)
            .map(|i| 1.0 / (0..4).map(|j| f64::max(p[j] / p[i], q[j] / q[i])).sum::<f64>())
            .sum();
        let (p, q) =
            (Distribution::new(p.to_vec()).unwrap(), Distribution::new(q.to_vec()).unwrap());
        let runs = enumerate(|rng| {
            let mut shared_randomness = LazyRandomness::new();
            shared_randomness.first_arrivals(0, &p, 1, rng)
                == shared_randomness.first_arrivals(0, &q, 1, rng)
        });
        let agree: f64 = runs.iter().filter(|run| run.1).map(|run| run.0).sum();
        assert!((agree - expected).abs() < 1e-13, "{agree} {expected}");
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        let mut shared_randomness = KeyedRandomness::new(rng.shared_key().unwrap());
        let mut first =
            |probs, position| shared_randomness.first_arrivals(position, probs, 1, &mut rng);
        let runs = 100_000;
        let same = (0..runs).filter(|&position| first(&p, position) == first(&q, position)).count();
        let (got, error) =
            (same as f64 / runs as f64, (expected * (1.0 - expected) / runs as f64).sqrt());
        assert!((got - expected).abs() < 4.0 * error, "{got} {expected}");
    }
}
