//! Propositions of `docs/theory.md` that no other test checks, and its counterexamples.

mod common;

use std::collections::HashMap;

use common::{markov, named, pairs, probs, run, uniform};
use polydraft::conformance::tree::Pair;
use polydraft::coupling::priority::shares::{Entry, Highest, Layout, Shares};
use polydraft::coupling::priority::{self, Choice, Form};
use polydraft::verify::nested_priority::Settings;
use polydraft::{
    Distribution, PolicyKind, Problem, Proposal, RuleKind, VerifierKind, acceptance, couple,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The distribution of the highest draft in a random order of the tokens: a corner of the polytope
/// of selection distributions.
fn corner(q: &[f64], count: i32, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let mut order: Vec<usize> = (0..q.len()).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, rng.next_u32() as usize % (index + 1));
    }
    let (mut m, mut below) = (vec![0.0; q.len()], 0.0_f64);
    for token in order {
        m[token] = (below + q[token]).powi(count) - below.powi(count);
        below += q[token];
    }
    m
}

/// Theorem 5: mixtures of corners, which are all distributions that a selection can have, are met
/// exactly by intervals of the free part; other distributions are not.
#[test]
fn every_selection_distribution_is_met_by_shares() {
    let mut rng = ChaCha8Rng::seed_from_u64(51);
    let mut shares = Shares::default();
    for round in 0..4000 {
        let (size, count) = (2 + round % 7, 2 + (round / 7 % 4) as i32);
        let q = probs(size, &mut rng);
        let mixture = probs(3, &mut rng);
        let corners: Vec<_> = (0..3).map(|_| corner(&q, count, &mut rng)).collect();
        let corners = &corners[..1 + round % 3];
        let total: f64 = mixture[..corners.len()].iter().sum();
        let m: Vec<f64> = (0..size)
            .map(|token| {
                corners
                    .iter()
                    .zip(&mixture)
                    .map(|(corner, part)| part / total * corner[token])
                    .sum()
            })
            .collect();
        let mut laid_out = |m: &[f64], choice, layout| {
            let mut entries: Vec<Entry> =
                q.iter().zip(m).map(|(&length, &demand)| Entry { length, demand }).collect();
            entries.sort_by(|a, b| (a.demand / a.length).total_cmp(&(b.demand / b.length)));
            shares.share(&Highest::new(count as usize), &entries, choice, layout);
            let got =
                shares.masses().iter().zip(&entries).map(|(mass, entry)| mass.min(entry.demand));
            got.sum::<f64>()
        };
        for (choice, layout) in [
            (Choice::Balanced, Layout::Intervals),
            (Choice::Balanced, Layout::Spread),
            (Choice::Target, Layout::Spread),
            (Choice::Draft, Layout::Spread),
        ] {
            let met = laid_out(&m, choice, layout);
            assert!((met - 1.0).abs() < 1e-11, "round {round}, {choice:?}, {layout:?}: {met}");
            // All mass on one token exceeds what any selection can have by Π(1 − q), the
            // probability that it is not drafted.
            let mut one = vec![0.0; size];
            one[0] = 1.0;
            let most = 1.0 - (1.0 - q[0]).powi(count);
            let met = laid_out(&one, choice, layout);
            assert!((met - most).abs() < 1e-11, "round {round}, {choice:?}: {met} {most}");
        }
    }
}

/// Proposition 23(b): if the distributions of the second token are the same for all first tokens on
/// average, no selection accepts more tokens, first and second, than the masses of the shares.
#[test]
fn masses_are_optimal_for_the_second_token_on_average() {
    let mut rng = ChaCha8Rng::seed_from_u64(55);
    let mut shares = Shares::default();
    let (mut nearest, mut draft_nearest) = (f64::INFINITY, f64::INFINITY);
    for round in 0..400 {
        let (size, count) = (2 + round % 5, 2 + (round / 5 % 3) as i32);
        let (p, mut q) = (probs(size, &mut rng), probs(size, &mut rng));
        if round % 2 == 0 {
            // The draft lacks a token.
            q[rng.next_u32() as usize % size] = 0.0;
            let sum: f64 = q.iter().sum();
            q.iter_mut().for_each(|q| *q /= sum);
        }
        // After every first token, target and draft are one of these pairs, with equal probability.
        let below: Vec<_> = (0..3).map(|_| (probs(3, &mut rng), probs(3, &mut rng))).collect();
        let tokens = |m: &[f64]| -> f64 {
            let expected = |(&p, &m): (&f64, &f64)| {
                let b = p.min(m);
                let next = below.iter().map(|(target, draft)| {
                    target.iter().zip(draft).map(|(p, q)| (b * p).min(m * q)).sum::<f64>()
                });
                b + next.sum::<f64>() / below.len() as f64
            };
            p.iter().zip(m).map(expected).sum()
        };
        let drafted: Vec<usize> = (0..size).filter(|&token| q[token] > 0.0).collect();
        let mut masses = |choice| {
            let mut order = drafted.clone();
            order.sort_by(|&a, &b| (p[a] / q[a]).total_cmp(&(p[b] / q[b])));
            let entry = |&token: &usize| Entry { length: q[token], demand: p[token] };
            let entries: Vec<Entry> = order.iter().map(entry).collect();
            shares.share(&Highest::new(count as usize), &entries, choice, Layout::Spread);
            let mut m = vec![0.0; size];
            order.iter().zip(shares.masses()).for_each(|(&token, mass)| m[token] = *mass);
            m
        };
        let best = tokens(&masses(Choice::Balanced));
        assert!((best - tokens(&masses(Choice::Target))).abs() < 1e-11);
        draft_nearest = draft_nearest.min(best - tokens(&masses(Choice::Draft)));
        for _ in 0..50 {
            let parts = probs(3, &mut rng);
            let mut m = vec![0.0; size];
            for part in parts {
                let corner = corner(&q, count, &mut rng);
                m.iter_mut().zip(corner).for_each(|(m, corner)| *m += part * corner);
            }
            nearest = nearest.min(best - tokens(&m));
            assert!(tokens(&m) <= best + 1e-11, "round {round}: {} {best}", tokens(&m));
        }
    }
    println!(
        "nearest of random selections {nearest:.1e}, nearest to the draft {draft_nearest:.1e}"
    );
    assert!(draft_nearest > -1e-11);
}

/// Proposition 7: pooling all tokens on the coarse grid, without a second pass, loses at most the
/// bound of the theory.
#[test]
fn pooling_loss_is_within_proposition_7() {
    let mut rng = ChaCha8Rng::seed_from_u64(52);
    let (mut worst, mut largest) = (0.0_f64, 0.0_f64);
    for round in 0..400 {
        let (size, count) = ([5, 40, 400][round % 3], [2, 3, 8][round / 3 % 3]);
        let (p, q) = (probs(size, &mut rng), probs(size, &mut rng));
        let mix = uniform(&mut rng);
        let p: Vec<f64> = p.iter().zip(&q).map(|(p, q)| mix * p + (1.0 - mix) * q).collect();
        // The cell of a ratio: 8 of equal width per factor of two, one from 0 to 2^-24.
        let mut cells: HashMap<u64, (f64, f64)> = HashMap::new();
        for (p, q) in p.iter().zip(&q) {
            let ratio = (p / q).min(count as f64);
            let cell = if ratio < 0.5_f64.powi(24) { 0 } else { ratio.to_bits() >> 49 };
            let (length, mass) = cells.entry(cell).or_default();
            *length += q;
            *mass += q * ratio;
        }
        let bound = cells.iter().map(|(cell, (length, mass))| {
            let (low, high) = match cell {
                0 => (0.0, 0.5_f64.powi(24)),
                cell => (f64::from_bits(cell << 49), f64::from_bits((cell + 1) << 49)),
            };
            let upper = ((mass / length - low) / (high - low)).clamp(0.0, 1.0);
            upper * (1.0 - upper) * (high - low) * length
        });
        let bound = bound.fold(0.0, f64::max);
        let (target, draft) = (Distribution::new(p).unwrap(), Distribution::new(q).unwrap());
        let problem = Problem::new(&target, Proposal::iid(&draft, count).unwrap()).unwrap();
        let pooled = priority::Settings {
            form: Form::Pooled,
            individual_above: 1.0,
            negligible: 1.0,
            ..Default::default()
        };
        let mut rule = RuleKind::Priority(pooled).build().unwrap();
        let got = couple(rule.as_mut(), problem).unwrap().acceptance(&mut rng).probability;
        let loss = acceptance::optimal(&problem).unwrap() - got;
        assert!(loss > -1e-12 && loss <= bound + 1e-12, "round {round}: {loss:e} {bound:e}");
        (worst, largest) = (worst.max(loss), largest.max(bound));
    }
    println!("largest loss {worst:.2e}, largest bound {largest:.2e}");
    // Pooling did lose acceptance, so the bound was tested.
    assert!(worst > 1e-5);
}

fn nested(proportional_below: f64, layout: Layout) -> VerifierKind {
    let sharing = priority::Settings { layout, ..Default::default() };
    VerifierKind::NestedPriority(Settings { proportional_below, sharing })
}

/// Proposition 14: proportional sharing below a variation of δ loses at most the fraction δ of what
/// it accepts.
#[test]
fn proportional_sharing_loses_at_most_its_threshold() {
    for below in [1e-3, 0.05, 0.5, 1.0] {
        let (mut largest, mut sum, mut cases) = (0.0_f64, 0.0, 0);
        for size in [(2, 3, 2, 12), (3, 2, 2, 24), (2, 2, 3, 24), (2, 4, 2, 3)] {
            let policy = PolicyKind::paths(size.2, size.1);
            for pair in pairs(size, 53) {
                let accepted = |kind| run(&kind, &policy, &pair).block_efficiency - 1.0;
                let proportional = accepted(nested(below, Layout::Spread));
                let exact = accepted(nested(0.0, Layout::Spread));
                assert!(
                    exact <= (1.0 + below) * proportional + 1e-10,
                    "{below}: {exact} {proportional}\n{pair:?}"
                );
                largest = largest.max(exact - proportional);
                sum += exact - proportional;
                cases += 1;
            }
        }
        println!(
            "proportional below {below}: tokens lost, mean {:.1e}, largest {largest:.1e}",
            sum / f64::from(cases)
        );
    }
}

/// Conjecture A of section 8, on random Markov models.
#[test]
fn nested_priority_accepts_at_least_as_much_as_the_priority_walk() {
    let mut rng = ChaCha8Rng::seed_from_u64(54);
    let mut smallest = f64::INFINITY;
    for round in 0..600 {
        let (vocabulary, depth, paths) = [(3, 2, 2), (2, 3, 2), (2, 2, 3), (3, 2, 2)][round % 4];
        let mut distributions = || -> Vec<Vec<f64>> {
            // Multiples of 0.1, so that zeros, ties and equal distributions are common.
            let mut tenths = || {
                let mut counts = vec![0.0; vocabulary];
                (0..10).for_each(|_| counts[rng.next_u32() as usize % vocabulary] += 0.1);
                if rng.next_u32() % 3 == 0 {
                    let removed = rng.next_u32() as usize % vocabulary;
                    counts[(removed + 1) % vocabulary] += counts[removed];
                    counts[removed] = 0.0;
                }
                counts
            };
            (0..=vocabulary).map(|_| tenths()).collect()
        };
        let (target, draft) = (distributions(), distributions());
        let table = |distributions: &[Vec<f64>]| {
            markov(&distributions.iter().map(|probs| &probs[..]).collect::<Vec<_>>(), depth)
        };
        let pair = Pair { target: table(&target), draft: table(&draft) };
        let policy = PolicyKind::paths(paths, depth);
        let nested_efficiency = run(&nested(0.0, Layout::Spread), &policy, &pair).block_efficiency;
        let walk = run(&named("walk:priority"), &policy, &pair).block_efficiency;
        smallest = smallest.min(nested_efficiency - walk);
        assert!(
            nested_efficiency > walk - 1e-9,
            "{nested_efficiency} {walk}\n{target:?}\n{draft:?}"
        );
    }
    println!("smallest difference {smallest:e}");
}
