//! Exact enumeration of every rule with every scheme it supports, for vocabularies and numbers of
//! drafts up to four.

use polydraft::conformance::{Case, Report, TOLERANCE, case_count, cases};
use polydraft::coupling::priority::{Form, Settings};
use polydraft::coupling::{RuleSettings, k_seq};
use polydraft::drafting::Drafting;
use polydraft::{RuleKind, acceptance};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Checks `rule` on all cases; `check` inspects every report.
fn conform(
    rule: &RuleKind,
    schemes: &[Drafting],
    counts: std::ops::RangeInclusive<usize>,
    check: impl Fn(&Case, Report),
) {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut rule = rule.build().unwrap();
    for &scheme in schemes {
        for count in counts.clone() {
            for vocabulary in 1..=4 {
                let random = case_count(if count < 4 { 200 } else { 60 });
                for case in cases(vocabulary, scheme, count, random, &mut rng).unwrap() {
                    match case.check(rule.as_mut()) {
                        Ok(report) => check(&case, report),
                        Err(failure) => panic!("{} {scheme}: {failure}\n{case:?}", rule.name()),
                    }
                }
            }
        }
    }
}

fn is_optimal(case: &Case, report: Report) {
    let gap = report.optimal - report.acceptance;
    assert!(gap.abs() <= TOLERANCE, "{gap:e} below the optimum {}\n{case:?}", report.optimal);
    rejected_tokens_are_not_drafts(case, report);
}

/// Checks that a rejected token never equals a draft.
fn rejected_tokens_are_not_drafts(case: &Case, report: Report) {
    let hits = report.contained - report.acceptance;
    assert!(hits.abs() <= TOLERANCE, "{hits:e}\n{case:?}");
}

fn named(name: &str) -> RuleKind {
    name.parse().unwrap()
}

#[test]
fn single_is_exact_and_optimal() {
    conform(&named("single"), &Drafting::DRAWN, 1..=1, is_optimal);
}

#[test]
fn priority_is_exact_and_optimal() {
    let rule = RuleKind::Priority(Settings { form: Form::Exact, ..Settings::default() });
    conform(&rule, &[Drafting::Iid], 1..=4, is_optimal);
}

/// The pooled form is for large supports; on tiny ones its distribution must be exact too.
#[test]
fn pooled_priority_is_exact_and_nearly_optimal() {
    for individual_above in [1e-3, 0.3, 1.0] {
        let rule = RuleKind::Priority(Settings {
            form: Form::Pooled,
            individual_above,
            ..Settings::default()
        });
        conform(&rule, &[Drafting::Iid], 1..=4, |case, report| {
            assert!(report.optimal - report.acceptance < 1e-4, "{report:?} {case:?}");
        });
    }
}

#[test]
fn k_seq_is_exact_and_within_its_bound() {
    conform(&named("k-seq"), &[Drafting::Iid], 1..=4, |case, report| {
        assert!(
            report.acceptance >= (1.0 - (-1.0_f64).exp()) * report.optimal - TOLERANCE,
            "{report:?} {case:?}"
        );
    });
}

/// A given ρ: equal to the best one if it is below, worse if above.
#[test]
fn k_seq_with_a_given_rho_is_exact_and_no_better() {
    for rho in [1.0, 1.7, 4.0, 1e3] {
        let rule = RuleKind::KSeq(k_seq::Settings { rho: Some(rho) });
        conform(&rule, &[Drafting::Iid], 1..=4, |case, report| {
            let mut best = named("k-seq").build().unwrap();
            let best = case.check(best.as_mut()).unwrap().acceptance;
            assert!(report.acceptance <= best + TOLERANCE, "{rho}: {report:?} {case:?}");
            assert!(rho > 1.0 || report.acceptance >= best - TOLERANCE, "{report:?} {case:?}");
        });
    }
    for rho in [0.99, f64::NAN, f64::INFINITY] {
        let error = k_seq::Settings { rho: Some(rho) }.build().err().unwrap().to_string();
        assert!(error.contains("at least 1"), "{error}");
    }
}

#[test]
fn recursive_is_exact_for_all_its_schemes() {
    conform(
        &named("recursive"),
        &[Drafting::Iid, Drafting::WithoutReplacement, Drafting::Distinct],
        1..=4,
        rejected_tokens_are_not_drafts,
    );
}

#[test]
fn naive_is_exact_for_all_schemes() {
    conform(&named("naive"), &Drafting::ALL, 1..=4, rejected_tokens_are_not_drafts);
}

#[test]
fn hub_is_exact_and_optimal() {
    conform(&named("hub"), &[Drafting::Hub, Drafting::Greedy], 1..=4, is_optimal);
}

/// The formulas of the optimum agree with the minimum over all sets, and tuples have their stated
/// probabilities.
#[test]
fn optimal_acceptance_and_tuple_probabilities() {
    let mut naive = named("naive").build().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for scheme in Drafting::ALL {
        for count in 1..=4 {
            for vocabulary in 1..=4 {
                for case in cases(vocabulary, scheme, count, 100, &mut rng).unwrap() {
                    let problem = case.problem().unwrap();
                    let expected = case.check(naive.as_mut()).unwrap().optimal;
                    let got = acceptance::optimal(&problem).unwrap();
                    assert!(
                        (got - expected).abs() <= TOLERANCE,
                        "{scheme} {count}: {got} {expected}\n{case:?}"
                    );
                    let tuples = problem.proposal.tuples();
                    assert!(tuples.len() as f64 <= problem.proposal.tuple_bound());
                    for (probability, drafts) in tuples {
                        let stated = problem.proposal.probability(&drafts);
                        assert!((stated - probability).abs() <= TOLERANCE, "{scheme} {drafts:?}");
                    }
                }
            }
        }
    }
}
