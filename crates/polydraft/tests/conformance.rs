//! Every rule, every scheme it supports, every vocabulary and number of drafts up to four, by exact
//! enumeration.

use polydraft::conformance::{Case, Report, TOLERANCE, case_count, cases};
use polydraft::coupling::priority::{Form, Settings};
use polydraft::coupling::{RuleSettings, k_seq};
use polydraft::drafting::Drafting;
use polydraft::{RuleKind, acceptance};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Runs `rule` on all cases; `also` looks at every report.
fn conform(
    rule: &RuleKind,
    schemes: &[Drafting],
    counts: std::ops::RangeInclusive<usize>,
    also: impl Fn(&Case, Report),
) {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut rule = rule.build().unwrap();
    for &scheme in schemes {
        for count in counts.clone() {
            for vocabulary in 1..=4 {
                let random = case_count(if count < 4 { 200 } else { 60 });
                for case in cases(vocabulary, scheme, count, random, &mut rng).unwrap() {
                    match case.check(rule.as_mut()) {
                        Ok(report) => also(&case, report),
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
    no_lucky_hits(case, report);
}

/// The last draw of the rule never hits a draft.
fn no_lucky_hits(case: &Case, report: Report) {
    let hits = report.contained - report.acceptance;
    assert!(hits.abs() <= TOLERANCE, "{hits:e}\n{case:?}");
}

fn named(name: &str) -> RuleKind {
    name.parse().unwrap()
}

#[test]
fn single() {
    conform(&named("single"), &Drafting::DRAWN, 1..=1, is_optimal);
}

#[test]
fn priority_exact() {
    let rule = RuleKind::Priority(Settings { form: Form::Exact, ..Settings::default() });
    conform(&rule, &[Drafting::Iid], 1..=4, is_optimal);
}

/// The pooled form is meant for large supports; on tiny ones its distribution must be exact all the
/// same.
#[test]
fn priority_pooled() {
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
fn k_seq() {
    conform(&named("k-seq"), &[Drafting::Iid], 1..=4, |case, report| {
        assert!(
            report.acceptance >= (1.0 - (-1.0_f64).exp()) * report.optimal - TOLERANCE,
            "{report:?} {case:?}"
        );
    });
}

/// Any ρ that is given: as good as none where it is below the best one, worse above.
#[test]
fn k_seq_with_a_given_factor() {
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
fn recursive() {
    conform(
        &named("recursive"),
        &[Drafting::Iid, Drafting::WithoutReplacement, Drafting::Distinct],
        1..=4,
        no_lucky_hits,
    );
}

#[test]
fn naive() {
    conform(&named("naive"), &Drafting::ALL, 1..=4, no_lucky_hits);
}

#[test]
fn hub() {
    conform(&named("hub"), &[Drafting::Hub, Drafting::Greedy], 1..=4, is_optimal);
}

/// The formulas for the optimum against the minimum over all sets, and the tuples' stated
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
