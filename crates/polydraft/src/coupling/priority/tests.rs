use super::plan::{Detail, Plan};
use super::selection::Selection;
use super::shares::{Entry, Highest, Interval, Layout, Profile, Shares};
use super::{Choice, Settings};
use crate::Distribution;
use crate::priorities::WeightedInterval;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random distributions: `spread` is the standard deviation of the target's logits, `error` that of
/// the draft's error.
fn distributions(vocabulary: usize, spread: f64, error: f64, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut normal =
        || (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX)).sum::<f64>() - 6.0;
    let (p, q): (Vec<f64>, Vec<f64>) = (0..vocabulary)
        .map(|token| {
            let logit = spread * normal();
            let p = if token % 17 == 3 { 0.0 } else { logit.exp() };
            let q = if token % 13 == 5 { 0.0 } else { (logit + error * normal()).exp() };
            (p, q)
        })
        .unzip();
    let (total_p, total_q): (f64, f64) = (p.iter().sum(), q.iter().sum());
    (p.iter().map(|p| p / total_p).collect(), q.iter().map(|q| q / total_q).collect())
}

fn detail(threshold: f64) -> Detail {
    Detail {
        threshold,
        negligible: 1e-7,
        choice: Choice::Balanced,
        layout: Layout::Spread,
        scale: 1.0,
    }
}

/// 1 − max (Z^n − P) over prefixes in order of p/q.
fn optimum(p: &[f64], q: &[f64], count: usize) -> f64 {
    let mut pairs: Vec<_> = p.iter().zip(q).filter(|(_, q)| **q > 0.0).collect();
    pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (mut z, mut demand, mut best) = (0.0_f64, 0.0, 0.0_f64);
    for (p, q) in pairs {
        z += q;
        demand += p;
        best = best.max(z.powf(count as f64) - demand);
    }
    1.0 - best
}

const CHOICES: [Choice; 3] = [Choice::Balanced, Choice::Target, Choice::Draft];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Σ m = 1; no set of tokens is selected more often than it is drafted; the intervals of all
    /// tokens partition [0, 1]; the acceptance is the optimum, up to the stated loss when pooled.
    #[test]
    fn selection_is_feasible_and_optimal(
        vocabulary in 2_usize..3000,
        spread in 0.0_f64..5.0,
        error in 0.0_f64..3.0,
        count in 2_usize..=64,
        pooled in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (p, q) = distributions(vocabulary, spread, error, seed);
        let mut plan = Plan::new();
        plan.prepare(&p, &q, &Highest::new(count), detail(if pooled { 1.0 / 256.0 } else { 0.0 }));
        let m: Vec<f64> = (0..vocabulary).map(|i| plan.mass(i, p[i], q[i])).collect();
        prop_assert!((m.iter().sum::<f64>() - 1.0).abs() < 1e-11);

        let mut order: Vec<usize> = (0..vocabulary).filter(|&i| q[i] > 0.0).collect();
        order.sort_by(|&a, &b| (m[b] / q[b]).total_cmp(&(m[a] / q[a])));
        let (mut selected, mut mass) = (0.0, 0.0);
        for i in order {
            selected += m[i];
            mass += q[i];
            let drafted = 1.0 - (1.0 - mass).max(0.0).powf(count as f64);
            prop_assert!(selected <= drafted + 1e-11, "{} {}", selected, drafted);
        }

        let intervals: Vec<(f64, WeightedInterval)> = (0..vocabulary)
            .filter(|&i| q[i] > 0.0)
            .flat_map(|i| {
                let mass = q[i];
                plan.intervals(i, p[i], mass).map(move |interval| (mass, interval))
            })
            .collect();
        check_partition(&intervals, 1.0)?;

        for scale in [1.0, 0.7, 0.0] {
            let rest: f64 = p.iter().zip(&m).map(|(p, m)| (scale * p - m).max(0.0)).sum();
            prop_assert!((plan.residual_mass(&p, &q, scale) - rest).abs() < 1e-12);
        }
        let acceptance: f64 = p.iter().zip(&m).map(|(p, m)| p.min(*m)).sum();
        let loss = optimum(&p, &q, count) - acceptance;
        let bound = if pooled { 1e-7 + 1e-11 } else { 1e-11 };
        prop_assert!(loss.abs() < bound, "loss {}", loss);
    }

    /// With demands that do not fill the segment (as under a sub-probability target), lengths are
    /// kept, nothing overlaps, and Σ min(demand, mass) is optimal.
    #[test]
    fn shares_are_optimal_for_sub_probability_demands(
        size in 1_usize..200,
        total in 0.01_f64..1.0,
        count in 1_usize..10,
        spread in any::<bool>(),
        choice in 0_usize..3,
        seed in any::<u64>(),
    ) {
        let (p, q) = distributions(size.max(20), 1.0, 1.0, seed);
        let layout = if spread { Layout::Spread } else { Layout::Intervals };
        check_shares(&Highest::new(count), &p, &q, total, CHOICES[choice], layout)?;
    }

    /// The same on a union of intervals, whose density jumps.
    #[test]
    fn shares_are_optimal_on_unions_of_intervals(
        ends in prop::collection::vec(0.0_f64..1.0, 2..10),
        total in 0.01_f64..2.0,
        count in 2_usize..10,
        spread in any::<bool>(),
        choice in 0_usize..3,
        seed in any::<u64>(),
    ) {
        let mut ends = ends;
        ends.sort_by(f64::total_cmp);
        let parts = ends
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[start, end]| Interval { start: *start, length: end - start });
        let profile = Union { parts: parts.collect(), highest: Highest::new(count) };
        let (p, q) = distributions(50, 1.0, 1.0, seed);
        let length = profile.length();
        let mass = length * profile.mean(0.0, length);
        let layout = if spread { Layout::Spread } else { Layout::Intervals };
        let lengths: Vec<f64> = q.iter().map(|q| q * length).collect();
        check_shares(&profile, &p, &lengths, total * mass, CHOICES[choice], layout)?;
    }
}

/// Profile of `highest` on a union of disjoint intervals, in order, pushed together.
struct Union {
    parts: Vec<Interval>,
    highest: Highest,
}

impl Profile for Union {
    fn length(&self) -> f64 {
        self.parts.iter().map(|part| part.length).sum()
    }

    fn density(&self, t: f64) -> f64 {
        let mut rest = t;
        for part in &self.parts {
            if rest <= part.length {
                return self.highest.density(part.start + rest);
            }
            rest -= part.length;
        }
        self.parts.last().map_or(0.0, |part| self.highest.density(part.start + part.length))
    }

    fn mean(&self, start: f64, length: f64) -> f64 {
        let (mut at, mut mass) = (0.0, 0.0);
        for part in &self.parts {
            let (from, to) = (start.max(at), (start + length).min(at + part.length));
            if to > from {
                mass += (to - from) * self.highest.mean(part.start + from - at, to - from);
            }
            at += part.length;
        }
        if length > 0.0 { mass / length } else { self.density(start) }
    }

    fn below(&self, t: f64) -> f64 {
        t * self.mean(0.0, t)
    }

    fn guess(&self, _: f64) -> f64 {
        0.5 * self.length()
    }
}

/// Checks that distributions, each with its probability, together cover [0, `end`] evenly.
fn check_partition(intervals: &[(f64, WeightedInterval)], end: f64) -> Result<(), TestCaseError> {
    for step in 1..=200 {
        let position = end * f64::from(step) / 200.0;
        let below = |interval: &WeightedInterval| {
            ((position - interval.start) / interval.length.max(1e-300)).clamp(0.0, 1.0)
        };
        let sum: f64 =
            intervals.iter().map(|(mass, interval)| mass * interval.weight * below(interval)).sum();
        prop_assert!((sum - position).abs() < 1e-11, "{} {}", sum, position);
    }
    Ok(())
}

/// Divides a segment among entries with lengths `q`, which sum to the segment's length, and demands
/// `total`·`p`.
fn check_shares(
    profile: &impl Profile,
    p: &[f64],
    q: &[f64],
    total: f64,
    choice: Choice,
    layout: Layout,
) -> Result<(), TestCaseError> {
    let mut entries: Vec<Entry> =
        p.iter().zip(q).map(|(p, q)| Entry { length: *q, demand: total * p }).collect();
    entries.retain(|entry| entry.length > 0.0);
    entries.sort_by(|a, b| (a.demand / a.length).total_cmp(&(b.demand / b.length)));
    let mut shares = Shares::default();
    shares.share(profile, &entries, choice, layout);
    let intervals: Vec<(f64, WeightedInterval)> = (0..entries.len())
        .flat_map(|index| {
            shares
                .intervals(index)
                .map(|interval| (entries[index].length, interval))
                .collect::<Vec<_>>()
        })
        .collect();
    check_partition(&intervals, profile.length())?;
    let got: f64 =
        entries.iter().zip(shares.masses()).map(|(entry, mass)| entry.demand.min(*mass)).sum();
    let (mut length, mut demand, mut best) = (0.0, 0.0, 0.0_f64);
    for entry in &entries {
        length += entry.length;
        demand += entry.demand;
        best = best.max(length * profile.mean(0.0, length) - demand);
    }
    // All mass is divided; the excess over demands is the largest excess of D.
    let expected = length * profile.mean(0.0, length) - best;
    prop_assert!((got - expected).abs() < 1e-11, "{} {}", got, expected);
    Ok(())
}

/// At full vocabulary size the exact form reaches the optimum to rounding, and pooling loses at
/// most the stated acceptance.
#[test]
fn acceptance_is_optimal_for_large_vocabularies() {
    let mut plan = Plan::new();
    for (spread, error) in [(4.0, 1.0), (0.0, 0.3), (2.0, 2.0), (1.0, 1e-4)] {
        let (p, q) = distributions(128_256, spread, error, 5);
        for count in [2, 3, 8, 64] {
            let best = optimum(&p, &q, count);
            for (threshold, bound) in [(0.0, 1e-11), (1.0 / 256.0, 1e-7 + 1e-11)] {
                plan.prepare(&p, &q, &Highest::new(count), detail(threshold));
                let masses = (0..p.len()).map(|i| plan.mass(i, p[i], q[i]));
                let acceptance: f64 = masses.zip(&p).map(|(m, p)| p.min(m)).sum();
                let loss = best - acceptance;
                assert!(
                    loss.abs() < bound,
                    "spread {spread} error {error} n {count} threshold {threshold}: {loss:e}"
                );
            }
        }
    }
}

/// Targets that n drafts reach exactly or nearly: D is about 0 everywhere, so every cell matters.
#[test]
fn pooling_loss_is_bounded_for_targets_that_drafts_reach() {
    let mut plan = Plan::new();
    let mut worst = 0.0_f64;
    for vocabulary in [300, 1_000, 5_000, 32_000, 128_256] {
        let q = vec![1.0 / vocabulary as f64; vocabulary];
        for count in [2, 3, 4, 8, 16, 64] {
            let power = |i: usize| (i as f64 / vocabulary as f64).powi(count);
            let reached: Vec<f64> = (0..vocabulary).map(|i| power(i + 1) - power(i)).collect();
            for (noise, seed) in [(0.0, 0), (1e-3, 1), (0.03, 2), (0.5, 3)] {
                let (other, _) = distributions(vocabulary, 1.0, 0.0, seed);
                let mix = |(p, other): (&f64, &f64)| (1.0 - noise) * p + noise * other;
                let p: Vec<f64> = reached.iter().zip(&other).map(mix).collect();
                let profile = Highest::new(count as usize);
                plan.prepare(&p, &q, &profile, detail(1.0 / 256.0));
                let masses = (0..p.len()).map(|i| plan.mass(i, p[i], q[i]));
                let acceptance: f64 = masses.zip(&p).map(|(m, p)| p.min(m)).sum();
                let loss = optimum(&p, &q, count as usize) - acceptance;
                // The stated loss, and rounding.
                let bound = 1e-7 + 1e-11;
                assert!(loss.abs() <= bound, "V {vocabulary} n {count} noise {noise}: {loss:e}");
                worst = worst.max(loss);
            }
        }
    }
    println!("largest loss {worst:.2e}");
}

#[test]
fn profile_means_agree_with_the_integral() {
    for count in [1, 2, 3, 5, 16, 17, 64, 1000] {
        let profile = Highest::new(count);
        for (start, length) in
            [(0.0, 1.0), (0.3, 0.2), (0.9, 1e-9), (0.0, 1e-3), (0.99, 0.01), (0.7, 0.0)]
        {
            let end: f64 = start + length;
            let exact = if length > 1e-6 {
                (end.powi(count as i32) - f64::powi(start, count as i32)) / length
            } else {
                profile.density(start + 0.5 * length)
            };
            let got = profile.mean(start, length);
            assert!(
                (got - exact).abs() <= 1e-12 * (1.0 + exact),
                "{count} {start} {length}: {got} {exact}"
            );
            let t = profile.guess(profile.density(0.6));
            assert!(
                count == 1 || profile.density(0.6) == 0.0 || (t - 0.6).abs() < 1e-12,
                "{count} {t}"
            );
        }
    }
}

/// The residual mass is the same for dense and sparse storage.
#[test]
fn residual_mass_is_the_same_for_dense_and_sparse_storage() {
    let (p, q) = distributions(1000, 2.0, 1.0, 7);
    // Every fifth token, so that both are stored sparsely.
    let cut = |probs: &[f64], rest: usize| {
        let mut probs: Vec<f64> =
            probs.iter().enumerate().map(|(i, p)| if i % 5 == rest { *p } else { 0.0 }).collect();
        let sum: f64 = probs.iter().sum();
        probs.iter_mut().for_each(|p| *p /= sum);
        Distribution::new(probs).unwrap()
    };
    let all = |probs: &[f64]| Distribution::new(probs.to_vec()).unwrap();
    let pairs = [
        (all(&p), all(&q)),
        (all(&p), cut(&q, 0)),
        (cut(&p, 0), all(&q)),
        (cut(&p, 0), cut(&q, 0)),
        (cut(&p, 1), cut(&q, 0)),
    ];
    for (target, draft) in pairs {
        for exact_up_to in [0, 2000] {
            let settings = Settings { exact_up_to, ..Settings::default() };
            let mut selection = Selection::new();
            selection.prepare(&target, &draft, &Highest::new(3), 1.0, &settings);
            for scale in [1.0, 0.4] {
                let residual = |t| {
                    (scale * target.probability(t) - selection.probability(&target, &draft, t))
                        .max(0.0)
                };
                let expected: f64 = (0..1000).map(residual).sum();
                let got = selection.residual_mass(&target, &draft, scale);
                assert!((got - expected).abs() < 1e-13, "{got} {expected}");
            }
        }
    }
}
