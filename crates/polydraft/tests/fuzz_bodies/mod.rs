//! What the fuzz targets do with arbitrary bytes. Ordinary functions, so that a test on stable Rust drives them too.

#![allow(dead_code)] // each target uses its own part

use polydraft::conformance::{Case, Failure};
use polydraft::coupling::Problem;
use polydraft::coupling::priority::{Form, Settings};
use polydraft::{Distribution, Drafting, Proposal, RuleKind, Sampling, acceptance, couple};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn is_a_law(law: &Distribution) {
    let all = law.to_vec();
    let sum: f64 = all.iter().sum();
    assert!((sum - 1.0).abs() < 1e-9, "sum {sum}");
    assert!(all.iter().all(|p| (0.0..=1.0 + 1e-9).contains(p)));
    assert_eq!(all.iter().filter(|p| **p > 0.0).count(), law.support_size());
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for _ in 0..8 {
        assert!(law.probability(law.sample(&mut rng)) > 0.0);
    }
}

/// Any bytes as settings and logits, and as probabilities: an error, or a law.
pub fn distribution(bytes: &[u8]) {
    let Some((settings, rest)) = bytes.split_first_chunk::<4>() else { return };
    let [temperature, top_k, top_p, min_p] = *settings;
    let sampling = Sampling {
        temperature: [0.0, 1e-30, 0.5, 1.0, 1e30, -1.0, f64::NAN][temperature as usize % 7],
        top_k: (top_k > 0).then(|| top_k as usize - 1),
        top_p: f64::from(top_p) / 200.0,
        min_p: f64::from(min_p) / 500.0,
    };
    let logits: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for sampling in [sampling, Sampling::default()] {
        if let Ok(law) = Distribution::from_logits(&logits, &sampling) {
            is_a_law(&law);
            assert!(logits.iter().all(|logit| *logit < f32::INFINITY));
            assert!(law.support_size() <= sampling.top_k.unwrap_or(usize::MAX));
        }
    }
    let values: Vec<f64> = rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    if let Ok(law) = Distribution::new(values) {
        is_a_law(&law);
    }
}

/// A law from any floats: magnitudes, scaled to sum 1; None if that is impossible.
fn law(values: &[f64]) -> Option<Distribution> {
    let values: Vec<f64> = values.iter().map(|v| if v.is_finite() { v.abs() } else { 0.0 }).collect();
    let largest = values.iter().copied().fold(0.0, f64::max);
    let scaled: Vec<f64> = values.iter().map(|v| v / largest).collect();
    let sum: f64 = scaled.iter().sum();
    Distribution::new(scaled.iter().map(|v| v / sum).collect()).ok()
}

/// Any bytes as a number of drafts and two laws: `priority` never fails, its law is exact, its acceptance next to the
/// optimum.
pub fn priority(bytes: &[u8]) {
    let Some((&[count, form], rest)) = bytes.split_first_chunk::<2>() else { return };
    let count = 1 + count as usize % 64;
    let form = [Form::Auto, Form::Exact, Form::Pooled][form as usize % 3];
    let values: Vec<f64> = rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let (target, draft) = values.split_at(values.len() / 2);
    let (Some(target), Some(draft)) = (law(target), law(&draft[..target.len()])) else { return };

    let mut rule =
        RuleKind::Priority(Settings { form, ..Settings::default() }).build().expect("valid settings");
    let problem =
        Problem::new(&target, Proposal::iid(&draft, count).expect("a draft")).expect("one vocabulary");
    let optimal = acceptance::optimal(&problem).expect("a formula");
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut coupling = couple(rule.as_mut(), problem).expect("i.i.d. drafts");
    let loss = optimal - coupling.acceptance(&mut rng).probability;
    let allowed = if form == Form::Exact { 1e-9 } else { 1e-4 };
    assert!(loss > -1e-9 && loss < allowed, "loss {loss:e}");
    let mut drafts = Vec::new();
    for _ in 0..4 {
        problem.proposal.draw(&mut rng, &mut drafts);
        let emission = coupling.emit(&drafts, &mut rng).expect("drafts that were drawn");
        assert!(target.probability(emission.token) > 0.0);
        assert!(emission.accepted.is_none_or(|index| drafts[index] == emission.token));
        let law = coupling.law(&drafts).expect("drafts that were drawn");
        assert!((law.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    // Where all tuples can be enumerated, the law must be the target.
    if count <= 3 && target.vocabulary() <= 3 {
        let case =
            Case { target: target.clone(), drafts: vec![draft.clone(); count], scheme: Drafting::Iid, count };
        match case.check(rule.as_mut()) {
            Ok(_) => {}
            Err(Failure::WrongLaw { expected, got, .. } | Failure::Inconsistent { expected, got, .. }) => {
                assert!((expected - got).abs() < 1e-9, "{expected} {got}");
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}
