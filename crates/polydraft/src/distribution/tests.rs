use super::*;
use crate::enumerate;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn probs(values: &[f64]) -> Distribution {
    Distribution::new(values.to_vec()).unwrap()
}

#[test]
fn rejects_invalid_probabilities() {
    let message = |values: &[f64]| Distribution::new(values.to_vec()).unwrap_err().to_string();
    assert!(message(&[]).contains("entries"));
    assert!(message(&[0.5, -0.5, 1.0]).contains("entry 1"));
    assert!(message(&[0.5, 0.5, f64::NAN]).contains("entry 2"));
    assert!(message(&[0.5, 0.4]).contains("0.9"));
    assert!(Distribution::normalized(vec![0.5, 0.4995]).is_ok());
    assert!(Distribution::normalized(vec![0.5, 0.49]).is_err());
}

#[test]
fn rejects_invalid_logits() {
    let plain = Sampling::default();
    let message =
        |logits: &[f32]| Distribution::from_logits(logits, &plain).unwrap_err().to_string();
    assert!(message(&[]).contains("entries"));
    let mut logits = vec![0.0_f32; 20];
    logits[9] = f32::NAN;
    assert!(message(&logits).contains("entry 9"));
    logits[9] = f32::INFINITY;
    assert!(message(&logits).contains("entry 9"));
    logits[19] = f32::NAN;
    logits[9] = f32::NEG_INFINITY;
    assert!(message(&logits).contains("entry 19"));
    assert!(message(&[f32::NEG_INFINITY; 11]).contains("inf"));
    assert!(Distribution::from_logits(&[1.0], &Sampling { temperature: -1.0, ..plain }).is_err());
    assert!(Distribution::from_logits(&[1.0], &Sampling { top_k: Some(0), ..plain }).is_err());
    assert!(Distribution::from_logits(&[1.0], &Sampling { top_p: f64::NAN, ..plain }).is_err());
    assert!(Distribution::from_logits(&[1.0], &Sampling { min_p: 1.5, ..plain }).is_err());
}

#[test]
fn softmax_applies_temperature_and_filters() {
    let logits: Vec<f32> = [0.1_f32, 0.4, 0.05, 0.25, 0.2].iter().map(|p| p.ln()).collect();
    let with = |sampling| Distribution::from_logits(&logits, &sampling).unwrap().to_vec();
    let close = |got: Vec<f64>, expected: [f64; 5]| {
        assert!(
            got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6),
            "{got:?} {expected:?}"
        );
    };
    let plain = Sampling::default();
    close(with(plain), [0.1, 0.4, 0.05, 0.25, 0.2]);
    close(with(Sampling { top_k: Some(2), ..plain }), [0.0, 0.4 / 0.65, 0.0, 0.25 / 0.65, 0.0]);
    close(with(Sampling { top_p: 0.7, ..plain }), [0.0, 0.4 / 0.85, 0.0, 0.25 / 0.85, 0.2 / 0.85]);
    close(with(Sampling { min_p: 0.45, ..plain }), [0.0, 0.4 / 0.85, 0.0, 0.25 / 0.85, 0.2 / 0.85]);
    close(with(Sampling { temperature: 0.0, ..plain }), [0.0, 1.0, 0.0, 0.0, 0.0]);
    close(with(Sampling { temperature: 1e-30, ..plain }), [0.0, 1.0, 0.0, 0.0, 0.0]);
    let squares = 0.01 + 0.16 + 0.0025 + 0.0625 + 0.04;
    let halved = [0.01, 0.16, 0.0025, 0.0625, 0.04].map(|p| p / squares);
    close(with(Sampling { temperature: 0.5, ..plain }), halved);
    // top-p applies to the renormalised result of top-k: 0.4/0.65 alone reaches 0.6.
    close(with(Sampling { top_k: Some(2), top_p: 0.6, ..plain }), [0.0, 1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn ties_prefer_the_lowest_ids() {
    let logits = [1.0_f32, 2.0, 2.0, 2.0, 0.0];
    let with = |sampling| Distribution::from_logits(&logits, &sampling).unwrap();
    assert_eq!(
        with(Sampling { top_k: Some(2), ..Sampling::default() }).to_vec(),
        [0.0, 0.5, 0.5, 0.0, 0.0]
    );
    assert_eq!(with(Sampling { temperature: 0.0, ..Sampling::default() }).argmax(), 1);
}

#[test]
fn top_p_over_many_blocks_is_the_sorted_prefix() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 * -1e-3).collect();
    let all = Distribution::from_logits(&logits, &Sampling::default()).unwrap();
    for top_p in [0.01, 0.3, 0.9, 0.999] {
        let filtered =
            Distribution::from_logits(&logits, &Sampling { top_p, ..Sampling::default() }).unwrap();
        let mut sorted = all.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let mut sum = 0.0;
        let expected = sorted
            .iter()
            .take_while(|p| {
                sum += **p;
                sum - **p < top_p - 1e-9
            })
            .count();
        assert!(
            filtered.support_size().abs_diff(expected) <= 1,
            "{} {expected}",
            filtered.support_size()
        );
    }
}

#[test]
fn reusing_memory_leaves_no_old_contents() {
    let logits: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
    let filtered = Sampling { top_k: Some(10), ..Sampling::default() };
    let mut reused = Distribution::from_logits(&logits, &filtered).unwrap();
    reused.set_from_logits(&logits[..700], &Sampling::default()).unwrap();
    assert_eq!(reused, Distribution::from_logits(&logits[..700], &Sampling::default()).unwrap());
    let unchanged = reused.clone();
    assert!(reused.set_from_logits(&[f32::NAN], &filtered).is_err());
    assert_eq!(reused, unchanged);
}

#[test]
fn overlap_is_the_same_for_dense_and_sparse_storage() {
    let (a, b) = (
        [0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0],
        [0.2, 0.3, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0],
    );
    let (sparse, dense) = (probs(&a), probs(&b));
    assert!(sparse.dense().is_none() && dense.dense().is_some());
    for (x, y) in [(&sparse, &dense), (&dense, &sparse)] {
        assert!((x.overlap(y) - 0.4).abs() < 1e-15);
        assert!((x.total_variation(y) - 0.6).abs() < 1e-15);
    }
    assert!((sparse.residual_mass(0.5, &dense, 1.0) - 0.15).abs() < 1e-15);
    assert!((sparse.excess_mass(0.5, |t| dense.probability(t)) - 0.15).abs() < 1e-15);
}

/// Checked for every combination of dense and sparse storage; the sparse distributions hold every
/// third token.
#[test]
fn residual_mass_is_the_same_for_dense_and_sparse_storage() {
    let logits = |seed: u64| -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..1000).map(|_| rand::Rng::next_u32(&mut rng) as f32 / 1e9).collect()
    };
    let some: Vec<Token> = (0..1000).filter(|token| token % 3 == 1 || *token == 999).collect();
    let plain = Sampling::default();
    let dense = |seed| Distribution::from_logits(&logits(seed), &plain).unwrap();
    let sparse = |seed| {
        Distribution::from_sparse_logits(1000, &some, &logits(seed)[..some.len()], &plain).unwrap()
    };
    for (a, b) in
        [(dense(1), dense(2)), (dense(1), sparse(2)), (sparse(1), dense(2)), (sparse(1), sparse(2))]
    {
        let pairs = || a.to_vec().into_iter().zip(b.to_vec());
        for (scale, other_scale) in [(1.0, 1.0), (0.3, 1.0), (1.0, 0.7)] {
            let expected: f64 = pairs().map(|(p, q)| (scale * p - other_scale * q).max(0.0)).sum();
            let got = a.residual_mass(scale, &b, other_scale);
            assert!((got - expected).abs() < 1e-14, "{got} {expected}");
        }
        let outside: f64 = pairs().filter(|(_, q)| *q == 0.0).map(|(p, _)| p).sum();
        assert!((a.mass_outside(&b) - outside).abs() < 1e-14);
    }
}

#[test]
fn sparse_distributions_store_only_positive_probabilities() {
    let plain = Sampling::default();
    let probs = |tokens: &[Token], logits: &[f32], sampling: &Sampling| {
        Distribution::from_sparse_logits(10, tokens, logits, sampling).unwrap()
    };
    let lost = probs(&[2, 5, 7], &[0.0, -1000.0, 0.0], &plain);
    assert_eq!(lost, probs(&[2, 7], &[0.0, 0.0], &plain));
    assert_eq!(lost.support().collect::<Vec<_>>(), [(2, 0.5), (7, 0.5)]);
    let all: Vec<Token> = (0..10).collect();
    assert_eq!(
        probs(&all, &[0.5; 10], &plain),
        Distribution::from_logits(&[0.5; 10], &plain).unwrap()
    );
    let best = Sampling { temperature: 0.0, ..plain };
    assert_eq!(probs(&[2, 5, 7], &[0.0, 1.0, 0.5], &best), Distribution::one_hot(10, 5).unwrap());
    let two = Sampling { top_k: Some(2), ..plain };
    assert_eq!(
        probs(&[2, 5, 7], &[0.0, 1.0, 0.5], &two).support().map(|(t, _)| t).collect::<Vec<_>>(),
        [5, 7]
    );
    // In place; an error leaves the distribution unchanged.
    let mut reused = Distribution::from_logits(&[0.0; 10], &plain).unwrap();
    reused.set_from_sparse_logits(10, &[2, 7], &[0.0, 0.0], &plain).unwrap();
    assert_eq!(reused, lost);
    assert!(reused.set_from_sparse_logits(10, &[7, 2], &[0.0, 0.0], &plain).is_err());
    assert_eq!(reused, lost);
}

#[test]
fn draws_follow_the_distribution() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let values: Vec<f64> = (0..1000).map(|i| if i % 3 == 0 { 0.0 } else { f64::from(i) }).collect();
    let sum: f64 = values.iter().sum();
    let dense = probs(&values.iter().map(|v| v / sum).collect::<Vec<_>>());
    let sparse = probs(&[0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.7, 0.0]);
    let runs = 100_000;
    for distribution in [&dense, &sparse] {
        let mut counts = vec![0.0; distribution.vocabulary()];
        (0..runs).for_each(|_| counts[distribution.sample(&mut rng) as usize] += 1.0);
        let mut chi_squared = 0.0;
        for (count, p) in counts.iter().zip(distribution.to_vec()) {
            assert!(p > 0.0 || *count == 0.0);
            chi_squared +=
                if p > 0.0 { (count - runs as f64 * p).powi(2) / (runs as f64 * p) } else { 0.0 };
        }
        let freedom = distribution.support().count() as f64 - 1.0;
        assert!(chi_squared < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0, "{chi_squared}");
    }
}

#[test]
fn residual_draws_follow_the_residual() {
    let (p, q) = (probs(&[0.1, 0.2, 0.3, 0.4]), probs(&[0.4, 0.1, 0.3, 0.2]));
    let exact = enumerate(|rng| p.sample_residual(1.0, &q, 1.0, rng));
    assert_eq!(exact.len(), 2);
    assert!((exact[0].0 - 1.0 / 3.0).abs() < 1e-15 && exact[0].1 == 1 && exact[1].1 == 3);
    // Covers both rejection sampling (excess mass 0.3) and the full pass (excess mass 1e-9, where
    // 48 tries hardly ever succeed).
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for covered in [[0.4, 0.1, 0.3, 0.2], [0.1, 0.2 - 1e-9, 0.3, 0.4 - 2e-9]] {
        let runs = 50_000;
        let ones = (0..runs)
            .filter(|_| p.sample_excess(1.0, |t| covered[t as usize], &mut rng) == 1)
            .count();
        let deviation = ones as f64 / f64::from(runs) - 1.0 / 3.0;
        assert!(deviation.abs() < 5.0 * (2.0 / 9.0 / f64::from(runs)).sqrt(), "{deviation}");
    }
    // Empty residual: draws from the target itself.
    assert_eq!(enumerate(|rng| p.sample_residual(1.0, &p, 1.0, rng)).len(), 4);
}

#[test]
fn from_parts_restores_the_distribution_bit_for_bit() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1000) as f32 * 0.02).collect();
    for top_k in [None, Some(40)] {
        let original =
            Distribution::from_logits(&logits, &Sampling { top_k, ..Sampling::default() }).unwrap();
        let (tokens, mass) = original.parts();
        let restored = Distribution::from_parts(1000, tokens.to_vec(), mass.to_vec()).unwrap();
        assert_eq!((restored.cumulative == original.cumulative, &restored), (true, &original));
    }
    let message = |tokens: &[Token], mass: &[f64]| {
        Distribution::from_parts(3, tokens.to_vec(), mass.to_vec()).unwrap_err().to_string()
    };
    assert!(message(&[], &[0.5, 0.5]).contains("expected 3"));
    assert!(message(&[0, 1], &[1.0]).contains("expected 2"));
    assert!(message(&[1, 0], &[0.5, 0.5]).contains("larger than the one before"));
    assert!(message(&[1, 3], &[0.5, 0.5]).contains("below 3"));
    assert!(message(&[0, 1], &[1.0, 0.0]).contains("entry 1"));
    assert!(message(&[], &[1.5, -0.5, 0.0]).contains("entry 1"));
    assert!(message(&[], &[f64::NAN, 0.5, 0.5]).contains("entry 0"));
    assert!(message(&[], &[0.5, 0.4, 0.0]).contains("0.9"));
    assert!(Distribution::from_parts(0, Vec::new(), Vec::new()).is_err());
}

#[test]
fn nucleus_is_the_smallest_set_with_the_probability() {
    let probs = probs(&[0.1, 0.4, 0.0, 0.4, 0.1]);
    assert_eq!(probs.nucleus(0.3), [1]);
    assert_eq!(probs.nucleus(0.5), [1, 3]);
    assert_eq!(probs.nucleus(0.85), [0, 1, 3]);
    assert_eq!(probs.nucleus(1.0), [0, 1, 3, 4]);
}
