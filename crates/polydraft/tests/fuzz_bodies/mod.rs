//! Bodies of the fuzz targets. Ordinary functions, so that a test on stable Rust runs them too.

#![allow(dead_code)] // not every target uses everything

use std::collections::HashMap;

use polydraft::conformance::tree::exact;
use polydraft::conformance::{Case, Failure};
use polydraft::coupling::Problem;
use polydraft::coupling::priority::{Form, Settings};
use polydraft::{
    Distribution, Drafting, Draws, PolicyKind, Proposal, RuleKind, Sampling, Token, VerifierKind,
    acceptance, couple,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn check_distribution(probs: &Distribution) {
    let all = probs.to_vec();
    let sum: f64 = all.iter().sum();
    assert!((sum - 1.0).abs() < 1e-9, "sum {sum}");
    assert!(all.iter().all(|p| (0.0..=1.0 + 1e-9).contains(p)));
    assert_eq!(all.iter().filter(|p| **p > 0.0).count(), probs.support_size());
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for _ in 0..8 {
        assert!(probs.probability(probs.sample(&mut rng)) > 0.0);
    }
}

/// Interprets bytes as settings and logits, and as probabilities: the result must be an error or a
/// valid distribution.
pub fn distribution(bytes: &[u8]) {
    let Some((settings, rest)) = bytes.split_first_chunk::<4>() else { return };
    let [temperature, top_k, top_p, min_p] = *settings;
    let sampling = Sampling {
        temperature: [0.0, 1e-30, 0.5, 1.0, 1e30, -1.0, f64::NAN][temperature as usize % 7],
        top_k: (top_k > 0).then(|| top_k as usize - 1),
        top_p: f64::from(top_p) / 200.0,
        min_p: f64::from(min_p) / 500.0,
    };
    let logits: Vec<f32> =
        rest.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    for sampling in [sampling, Sampling::default()] {
        if let Ok(probs) = Distribution::from_logits(&logits, &sampling) {
            check_distribution(&probs);
            assert!(logits.iter().all(|logit| *logit < f32::INFINITY));
            assert!(probs.support_size() <= sampling.top_k.unwrap_or(usize::MAX));
        }
    }
    let values: Vec<f64> =
        rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    if let Ok(probs) = Distribution::new(values) {
        check_distribution(&probs);
    }
}

/// A distribution from any floats: magnitudes, scaled to sum 1; `None` if that is impossible.
fn probs(values: &[f64]) -> Option<Distribution> {
    let values: Vec<f64> =
        values.iter().map(|v| if v.is_finite() { v.abs() } else { 0.0 }).collect();
    let largest = values.iter().copied().fold(0.0, f64::max);
    let scaled: Vec<f64> = values.iter().map(|v| v / largest).collect();
    let sum: f64 = scaled.iter().sum();
    Distribution::new(scaled.iter().map(|v| v / sum).collect()).ok()
}

/// Interprets bytes as a number of drafts and two distributions: `priority` must not fail, its
/// distribution must be exact, its acceptance nearly optimal.
pub fn priority(bytes: &[u8]) {
    let Some((&[count, form], rest)) = bytes.split_first_chunk::<2>() else { return };
    let count = 1 + count as usize % 64;
    let form = [Form::Auto, Form::Exact, Form::Pooled][form as usize % 3];
    let values: Vec<f64> =
        rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let (target, draft) = values.split_at(values.len() / 2);
    let (Some(target), Some(draft)) = (probs(target), probs(&draft[..target.len()])) else {
        return;
    };

    let mut rule = RuleKind::Priority(Settings { form, ..Settings::default() })
        .build()
        .expect("valid settings");
    let problem = Problem::new(&target, Proposal::iid(&draft, count).expect("a draft"))
        .expect("one vocabulary");
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
        let probs = coupling.distribution(&drafts).expect("drafts that were drawn");
        assert!((probs.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    // If all tuples can be enumerated, the distribution must be the target's.
    if count <= 3 && target.vocabulary() <= 3 {
        let case = Case {
            target: target.clone(),
            drafts: vec![draft.clone(); count],
            scheme: Drafting::Iid,
            count,
        };
        match case.check(rule.as_mut()) {
            Ok(_) => {}
            Err(
                Failure::WrongDistribution { expected, got, .. }
                | Failure::Inconsistent { expected, got, .. },
            ) => {
                assert!((expected - got).abs() < 1e-9, "{expected} {got}");
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// Interprets bytes as a rule, a number of drafts, a scheme and distributions: the rule must reject
/// the problem, or its distribution must be the target's and its acceptance at most the optimum.
pub fn rules(bytes: &[u8]) {
    let Some((&[rule, scheme, count, size], rest)) = bytes.split_first_chunk::<4>() else { return };
    let kind = RuleKind::NAMES[rule as usize % RuleKind::NAMES.len()];
    let mut rule =
        RuleKind::named(kind).expect("a name of the registry").build().expect("default settings");
    let scheme = Drafting::ALL[scheme as usize % Drafting::ALL.len()];
    // One in four problems is large; only small ones can be enumerated.
    let small = !size.is_multiple_of(4);
    let count = 1 + count as usize % if small { 3 } else { 9 };
    let values: Vec<f64> =
        rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let vocabulary =
        if small { 1 + size as usize % 4 } else { (values.len() / (1 + count)).max(1) };
    let mut distributions =
        values.chunks(vocabulary).filter(|values| values.len() == vocabulary).filter_map(probs);
    let Some(target) = distributions.next() else { return };
    let drafts: Vec<Distribution> = distributions.take(count).collect();
    let used = if scheme == Drafting::Distinct { count } else { 1 };
    if drafts.len() < used {
        return;
    }
    if small {
        let drafts = drafts.iter().cycle().take(count).cloned().collect();
        let case = Case { target, drafts, scheme, count };
        match case.check(rule.as_mut()) {
            Ok(report) => {
                let stated =
                    acceptance::optimal(&case.problem().expect("a problem")).expect("a small one");
                assert!((stated - report.optimal).abs() < 1e-9, "{stated} {}", report.optimal);
            }
            Err(Failure::Rejected(_)) => {}
            Err(
                Failure::WrongDistribution { expected, got, .. }
                | Failure::Inconsistent { expected, got, .. },
            ) => {
                assert!((expected - got).abs() < 1e-9, "{kind} {scheme}: {expected} {got}");
            }
            Err(Failure::AboveOptimum { optimal, got }) => {
                assert!(got - optimal < 1e-9, "{kind} {scheme}: {optimal} {got}");
            }
        }
        return;
    }
    let Ok(proposal) = Proposal::new(Draws { scheme, count }, &drafts[..used]) else { return };
    let Ok(problem) = Problem::new(&target, proposal) else { return };
    let optimal = acceptance::optimal(&problem);
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let Ok(mut coupling) = couple(rule.as_mut(), problem) else { return };
    let mut drawn = Vec::new();
    proposal.draw(&mut rng, &mut drawn);
    let probs = coupling.distribution(&drawn).expect("drafts that were drawn");
    assert!((probs.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{kind} {scheme}");
    let emission = coupling.emit(&drawn, &mut rng).expect("drafts that were drawn");
    assert!(target.probability(emission.token) > 0.0, "{kind} {scheme}");
    let accepted = coupling.acceptance(&mut rng);
    if let (Ok(optimal), None) = (optimal, accepted.standard_error) {
        assert!(
            accepted.probability - optimal < 1e-9,
            "{kind} {scheme}: {} {optimal}",
            accepted.probability
        );
    }
}

/// Interprets bytes as a verifier, paths and tables of distributions: the verifier must reject the
/// tree, or its enumerated distribution must be the target's.
pub fn verifiers(bytes: &[u8]) {
    let Some((&[verifier, paths, depth, size], rest)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let all = VerifierKind::all();
    let kind = &all[verifier as usize % all.len()];
    let mut verifier = kind.build().expect("default settings");
    // Few enough draws for a fast enumeration.
    let (paths, depth) = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)][(paths ^ depth) as usize % 5];
    let vocabulary = 1 + size as usize % 3;
    let policy = PolicyKind::paths(paths, depth).build().expect("valid settings");
    if verifier.supports(&policy.form()).is_err() {
        return;
    }
    let values: Vec<f64> =
        rest.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let distributions: Vec<Distribution> = values
        .chunks(vocabulary)
        .filter(|values| values.len() == vocabulary)
        .filter_map(probs)
        .collect();
    if distributions.is_empty() {
        return;
    }
    let mut distributions = distributions.iter().cycle();
    let mut table = || {
        let mut table = HashMap::new();
        let mut sequences = vec![Vec::new()];
        for _ in 0..=depth {
            let next = |sequence: &Vec<Token>| {
                (0..vocabulary as Token)
                    .map(|token| [&sequence[..], &[token]].concat())
                    .collect::<Vec<_>>()
            };
            let longer = sequences.iter().flat_map(next).collect();
            table.extend(sequences.into_iter().zip(distributions.by_ref().cloned()));
            sequences = longer;
        }
        table
    };
    let (target, draft) = (table(), table());
    let found = exact(verifier.as_mut(), policy.as_ref(), &target, &draft, &mut |_| ());
    let found = found.expect("a tree that it supports");
    assert!(found.deviation < 1e-9, "{kind}, {paths} of {depth}: {found:?}\n{target:?}\n{draft:?}");
    assert!(found.block_efficiency < depth as f64 + 1.0 + 1e-9, "{kind}: {found:?}");
}
