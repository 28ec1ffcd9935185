//! Drawing schemes compared in `docs/theory.md`: Gumbel coupling by shared arrival times, and
//! i.i.d. draws against draws without replacement at the same expected number of distinct tokens.

mod common;

use common::{named, pairs, probs, run, uniform};
use polydraft::{
    Distribution, Drafting, Draws, PolicyKind, Problem, Proposal, Token, acceptance, drafting,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Sets of `0..size`, as bits.
fn sets(size: usize) -> std::ops::Range<usize> {
    0..1 << size
}

fn sum_over(set: usize, values: &[f64]) -> f64 {
    values
        .iter()
        .enumerate()
        .filter(|(index, _)| set >> index & 1 == 1)
        .map(|(_, value)| value)
        .sum()
}

/// Proposition 19: the probability that `invariant` accepts one of `count` drafts, and a lower
/// bound. Given that the target's first token is i and arrives at s, k comes before it in the
/// draft's order with probability 1 − e^(−s·c), c = (q_k·p_i/q_i − p_k)+, independently; the mean
/// over s of products of these is a sum of 1/(1 + Σc).
fn gumbel_acceptance(p: &[f64], q: &[f64], count: usize) -> (f64, f64) {
    let (mut acceptance, mut bound) = (0.0, 0.0);
    for i in (0..p.len()).filter(|&i| p[i] > 0.0 && q[i] > 0.0) {
        let c: Vec<f64> = (0..p.len()).map(|k| (q[k] * p[i] / q[i] - p[k]).max(0.0)).collect();
        let total: f64 = c.iter().sum();
        let others: Vec<f64> = (0..p.len()).filter(|&k| k != i).map(|k| c[k]).collect();
        for before in sets(others.len()).filter(|set| (set.count_ones() as usize) < count) {
            for subset in sets(others.len()).filter(|subset| subset & !before == 0) {
                let sign = if subset.count_ones() % 2 == 0 { 1.0 } else { -1.0 };
                let not_before = total - sum_over(before, &others);
                acceptance += p[i] * sign / (1.0 + sum_over(subset, &others) + not_before);
            }
        }
        bound += p[i] * (1.0 - (total / (1.0 + total)).powi(count as i32));
    }
    (acceptance, bound)
}

#[test]
fn gumbel_acceptance_matches_proposition_19() {
    for (vocabulary, count) in [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3)] {
        for pair in pairs((vocabulary, 1, 0, 12), 55) {
            let (p, q) = (pair.target[&vec![]].to_vec(), pair.draft[&vec![]].to_vec());
            let found = run(&named("invariant"), &PolicyKind::paths(count, 1), &pair);
            let (expected, bound) = gumbel_acceptance(&p, &q, count);
            let got = found.block_efficiency - 1.0;
            // Alternating sums lose digits where distributions have tiny probabilities.
            assert!((got - expected).abs() < 1e-10, "{got} {expected}\n{pair:?}");
            assert!(
                got > bound - 1e-10 && (count > 1 || (got - bound).abs() < 1e-10),
                "{got} {bound}"
            );
            let distance: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            assert!(got > (1.0 - distance) / (1.0 + distance) - 1e-10, "{got} {distance}");
        }
    }
}

/// Pr(all drafts lie in a set), per set: for `count` draws without replacement, and for a (possibly
/// fractional) number of i.i.d. draws with as many distinct tokens on average.
fn within(q: &[f64], count: usize) -> [Vec<f64>; 2] {
    let probs = Distribution::new(q.to_vec()).unwrap();
    let draws = Draws { scheme: Drafting::WithoutReplacement, count };
    let tuples = Proposal::new(draws, std::slice::from_ref(&probs)).unwrap().tuples();
    let inside = |set: usize, tuple: &[Token]| tuple.iter().all(|token| set >> token & 1 == 1);
    let without = sets(q.len())
        .map(|set| tuples.iter().filter(|(_, tuple)| inside(set, tuple)).map(|(p, _)| p).sum())
        .collect();
    let draws = drafting::draws_for_distinct(&probs, count as f64, 1 << 40);
    let fraction = draws.fract();
    let iid = sets(q.len()).map(|set| {
        let mass = sum_over(set, q).min(1.0);
        (1.0 - fraction) * mass.powf(draws.floor()) + fraction * mass.powf(draws.floor() + 1.0)
    });
    [without, iid.collect()]
}

/// Proposition 21: at the same expected number of distinct tokens, neither more i.i.d. draws nor
/// draws without replacement are always better. Tests its pairs.
#[test]
fn neither_more_iid_draws_nor_distinct_draws_always_win() {
    let optima = |p: &[f64], q: &[f64], count: usize| {
        let (target, draft) =
            (Distribution::new(p.to_vec()).unwrap(), Distribution::new(q.to_vec()).unwrap());
        let draws = Draws { scheme: Drafting::WithoutReplacement, count };
        let proposal = Proposal::new(draws, std::slice::from_ref(&draft)).unwrap();
        let without = acceptance::optimal(&Problem::new(&target, proposal).unwrap()).unwrap();
        let number = drafting::draws_for_distinct(&draft, count as f64, 1 << 40);
        [without, acceptance::optimal_iid(&target, &draft, number)]
    };
    let [without, iid] = optima(&[0.0, 0.5, 0.5], &[0.8, 0.1, 0.1], 2);
    println!("without replacement {without:.6}, i.i.d. {iid:.6}");
    assert!((without - 1.0).abs() < 1e-12 && (iid - 0.768_890).abs() < 1e-6);
    let [without, iid] = optima(&[1.0, 0.0, 0.0], &[0.6, 0.2, 0.2], 2);
    println!("without replacement {without:.6}, i.i.d. {iid:.6}");
    assert!((without - 0.9).abs() < 1e-12 && (iid - 0.949_895).abs() < 1e-6);
    // A draft confident in a token that the target excludes: the ratio approaches 1 − (1 − 1/k)^k.
    for k in 2..9 {
        let small = 1e-7 / k as f64;
        let q = [&[1.0 - 1e-7][..], &vec![small; k]].concat();
        let p = [&[0.0][..], &vec![1.0 / k as f64; k]].concat();
        let [without, iid] = optima(&p, &q, 2);
        let expected = 1.0 - (1.0 - 1.0 / k as f64).powi(k as i32);
        assert!(
            (without - 1.0).abs() < 1e-9 && (iid - expected).abs() < 1e-5,
            "{k}: {without} {iid}"
        );
    }
    // The target's only token has tiny draft probability, behind two others of which one is rare:
    // the ratio is unbounded.
    let mut ratios = Vec::new();
    for small in [1e-3, 1e-6, 1e-12] {
        let [without, iid] = optima(&[0.0, 0.0, 1.0], &[0.9 - small, 0.1, small], 2);
        ratios.push(iid / without);
    }
    println!("i.i.d. over without replacement {ratios:.3?}");
    assert!(
        ratios[0] > 2.0 && ratios[1] > 2.0 * ratios[0] && ratios[2] > 2.0 * ratios[1],
        "{ratios:?}"
    );
}

/// The optimum of a random number of i.i.d. draws is attained at a prefix; and conjecture D, over
/// all sets: i.i.d. draws hit a set at least 1 − (1 − 1/k)^k times as often as draws without
/// replacement, k = V − n + 1. Where fewer than n tokens are outside the set (Proposition 20) the
/// factor is 1 − 1/e.
#[test]
fn iid_draws_hit_sets_nearly_as_often_as_draws_without_replacement() {
    let mut rng = ChaCha8Rng::seed_from_u64(56);
    let mut smallest = [f64::INFINITY; 8];
    for round in 0..3000 {
        let size = 3 + round % 4;
        let count = 2 + rng.next_u32() as usize % (size - 2);
        let mut q = probs(size, &mut rng);
        if round % 3 == 0 {
            // One or two tokens with nearly all of the mass.
            (0..1 + round % 2).for_each(|token| q[token] += 10_f64.powf(4.0 * uniform(&mut rng)));
        }
        // Rarer tokens would take so many draws that powers lose all digits.
        let sum: f64 = q.iter().sum();
        q.iter_mut().for_each(|q| *q = (*q / sum + 1e-5) / (1.0 + 1e-5 * size as f64));
        let p = probs(size, &mut rng);
        let [without, iid] = within(&q, count);
        let (target, draft) =
            (Distribution::new(p.clone()).unwrap(), Distribution::new(q.clone()).unwrap());
        let number = drafting::draws_for_distinct(&draft, count as f64, 1 << 40);
        let slack = sets(size).map(|set| sum_over(set, &p) - iid[set]).fold(0.0, f64::min);
        let stated = acceptance::optimal_iid(&target, &draft, number);
        // A power multiplies the rounding error of its base.
        assert!((stated - 1.0 - slack).abs() < 1e-12 + 1e-15 * number, "{stated} {slack}");
        let k = (size - count + 1) as i32;
        let factor = 1.0 - (1.0 - 1.0 / f64::from(k)).powi(k);
        for set in sets(size) {
            let (without, iid) = (1.0 - without[set], 1.0 - iid[set]);
            assert!(iid > factor * without - 1e-9, "{q:?}, {count}: {iid} {without}");
            if (set.count_ones() as usize) < count && set + 1 < 1 << size {
                assert!(iid > 1.0 - (-1_f64).exp() - 1e-9, "{q:?}, {count}: {iid}");
            }
            if without > 1e-9 {
                smallest[k as usize] = smallest[k as usize].min(iid / without);
            }
        }
    }
    println!("smallest ratios by V - n + 1: {:.4?}", &smallest[2..6]);
    assert!(smallest[2] < 0.76 && smallest[3] < 0.72);
}

/// One set of arrival times for all drafts, against one per draft (Rowan et al. 2025) whose minimum
/// the target takes: simulated on distributions over 100 tokens, with the number of distinct
/// drafts.
#[test]
fn shared_arrival_times_accept_more_than_times_per_draft() {
    let mut rng = ChaCha8Rng::seed_from_u64(57);
    let first = |times: &[f64], probs: &[f64]| {
        let time = |token: &usize| times[*token] / probs[*token];
        (0..probs.len()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap()
    };
    for (name, spread) in [("peaked", 3.0), ("middling", 2.0), ("flat", 1.0)] {
        for count in [2, 4] {
            let [mut shared, mut separate, mut distinct, runs] = [0.0, 0.0, 0.0, 6000.0];
            let (mut p, mut q) = (vec![], vec![]);
            for run in 0..runs as usize {
                if run % 300 == 0 {
                    let mut normal = || (0..12).map(|_| uniform(&mut rng)).sum::<f64>() - 6.0;
                    let levels: Vec<f64> = (0..100).map(|_| spread * normal()).collect();
                    let normalized = |weights: Vec<f64>| {
                        let sum: f64 = weights.iter().sum();
                        weights.iter().map(|weight| weight / sum).collect::<Vec<f64>>()
                    };
                    q = normalized(levels.iter().map(|level| level.exp()).collect());
                    p = normalized(
                        levels.iter().map(|level| (level + 0.7 * normal()).exp()).collect(),
                    );
                }
                let times: Vec<Vec<f64>> = (0..count)
                    .map(|_| (0..100).map(|_| -(1.0 - uniform(&mut rng)).ln()).collect())
                    .collect();
                let token = first(&times[0], &p);
                let time = |k: usize| times[0][k] / q[k];
                shared += f64::from(u8::from(
                    (0..100).filter(|&k| time(k) < time(token)).count() < count,
                ));
                let minimum: Vec<f64> = (0..100)
                    .map(|k| times.iter().map(|times| times[k]).fold(f64::INFINITY, f64::min))
                    .collect();
                let mut drafts: Vec<usize> = times.iter().map(|times| first(times, &q)).collect();
                separate += f64::from(u8::from(drafts.contains(&first(&minimum, &p))));
                drafts.sort_unstable();
                drafts.dedup();
                distinct += drafts.len() as f64;
            }
            let [shared, separate, distinct] = [shared, separate, distinct].map(|sum| sum / runs);
            println!(
                "{name}, {count} drafts: shared times {shared:.3}; times per draft {separate:.3}, \
                 {distinct:.2} distinct"
            );
            assert!(shared > separate + 0.02, "{name} {count}: {shared} {separate}");
        }
    }
}
