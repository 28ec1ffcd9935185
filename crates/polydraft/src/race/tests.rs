//! Expected shares against enumeration, and acceptance against the bound.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::{Distribution, Drafting, Draws, Problem, Proposal, acceptance};

/// A random distribution, with zeros and with one token that has almost all, by turns.
fn distribution(size: usize, number: usize, rng: &mut ChaCha8Rng) -> Distribution {
    let mut weights: Vec<f64> = (0..size).map(|_| -rng.random::<f64>().ln()).collect();
    match number % 5 {
        1 => weights[number % size] = 0.0,
        2 => weights[number % size] = 1e9,
        3 => weights.iter_mut().for_each(|weight| *weight = weight.powi(8)),
        _ => {}
    }
    let sum: f64 = weights.iter().sum();
    Distribution::new(weights.into_iter().map(|weight| weight / sum).collect()).unwrap()
}

fn draws(kind: Kind) -> Draws {
    match kind {
        Kind::Independent(count) => Draws::iid(count),
        Kind::Pair => Draws { scheme: Drafting::WithoutReplacement, count: 2 },
    }
}

/// Every outcome of all draws, with its probability.
fn outcomes(nodes: &[(Kind, Distribution)]) -> Vec<(f64, Vec<(usize, usize)>)> {
    let mut all = vec![(1.0, Vec::new())];
    for (entry, (kind, probs)) in nodes.iter().enumerate() {
        let tuples = Proposal::new(draws(*kind), std::slice::from_ref(probs)).unwrap().tuples();
        all = all
            .iter()
            .flat_map(|(p, drawn): &(f64, Vec<(usize, usize)>)| {
                tuples.iter().map(move |(tuple_p, tuple)| {
                    let mut drawn = drawn.clone();
                    drawn.extend(tuple.iter().map(|token| (entry, *token as usize)));
                    (p * tuple_p, drawn)
                })
            })
            .collect();
    }
    all
}

#[test]
fn expected_shares_are_those_of_all_draws() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut race = Race::default();
    for number in 0..60 {
        let kinds = [Kind::Pair, Kind::Independent(1), Kind::Independent(3)];
        let nodes: Vec<(Kind, Distribution)> = (0..1 + number % 3)
            .map(|node| {
                let kind = kinds[(number / 3 + node) % 3];
                (kind, distribution(3 + number % 2, number / 2 + node, &mut rng))
            })
            .filter(|(kind, probs)| *kind != Kind::Pair || probs.support_size() > 1)
            .collect();
        race.clear();
        let weight = 0.9 / nodes.len().max(1) as f64;
        let mut demands = Vec::new();
        for (node, (kind, probs)) in nodes.iter().enumerate() {
            let target = distribution(probs.vocabulary(), number / 3 + 2 * node, &mut rng);
            let demand: Vec<f64> = target.to_vec().iter().map(|p| p * weight).collect();
            race.add(*kind, |probabilities, demands| {
                probabilities.extend(probs.to_vec());
                demands.extend(&demand);
                Ignored::default()
            });
            demands.push(demand);
        }
        race.prepare();
        let mut expected: Vec<Vec<f64>> = demands.iter().map(|d| vec![0.0; d.len()]).collect();
        let mut shares = Vec::new();
        for (p, drawn) in outcomes(&nodes) {
            race.shares(&drawn, &mut shares);
            assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-12);
            for ((entry, token), share) in drawn.iter().zip(&shares) {
                assert!(*share >= 0.0);
                expected[*entry][*token] += p * share;
            }
        }
        for (entry, (demand, expected)) in demands.iter().zip(&expected).enumerate() {
            let left = race.left(entry);
            for ((demand, expected), left) in demand.iter().zip(expected).zip(left) {
                assert!((demand - expected - left).abs() < 1e-13, "case {number}: {left}");
                assert!(*left >= 0.0);
            }
            let sum: f64 = expected.iter().sum();
            assert!((race.accepted(entry) - sum).abs() < 1e-12);
        }
    }
}

#[test]
fn one_pair_is_accepted_as_often_as_possible() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (mut sum, mut most) = ([0.0; 4], [0.0_f64; 4]);
    for number in 0..400 {
        let size = [3, 5, 50, 1000][number % 4];
        let target = distribution(size, 0, &mut rng);
        let draft = distribution(size, [0, 3, 4][number % 3], &mut rng);
        let mut race = Race::default();
        race.add(Kind::Pair, |probabilities, demands| {
            probabilities.extend(draft.to_vec());
            demands.extend(target.to_vec());
            Ignored::default()
        });
        race.prepare();
        let proposal = Proposal::new(draws(Kind::Pair), std::slice::from_ref(&draft)).unwrap();
        let best = acceptance::optimal(&Problem::new(&target, proposal).unwrap()).unwrap();
        let lost = best - race.accepted(0);
        assert!((-1e-12..2e-2).contains(&lost), "case {number}: {lost}");
        sum[number % 4] += lost / 100.0;
        most[number % 4] = most[number % 4].max(lost);
    }
    assert!(sum.iter().all(|sum| *sum < 2e-4), "{sum:?} in the mean, {most:?} at most");
}
