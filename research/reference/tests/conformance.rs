//! Compares the reference solvers with each other and with `priority`, by exact enumeration.

use polydraft::conformance::{Case, Report, cases};
use polydraft::coupling::priority::{self, Form};
use polydraft::coupling::{Rule, RuleSettings};
use polydraft::{Drafting, acceptance, couple};
use polydraft_reference::global_resolution::{self, Mode};
use polydraft_reference::{ReferenceKind, emitted, importance, linear_program, optimum};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Maximum difference between optima.
const CLOSE: f64 = 1e-9;

/// Calls `look` with every case of these schemes: for each V ≤ 6 and n ≤ 4, 121 fixed cases and
/// `random` random ones.
fn every_case(schemes: &[Drafting], random: usize, mut look: impl FnMut(&Case)) -> usize {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut seen = 0;
    for &scheme in schemes {
        for count in 1..=4 {
            for vocabulary in 1..=6 {
                for case in cases(vocabulary, scheme, count, random, &mut rng).unwrap() {
                    look(&case);
                    seen += 1;
                }
            }
        }
    }
    seen
}

fn check(rule: &mut dyn Rule, case: &Case) -> Report {
    case.check(rule).unwrap_or_else(|failure| panic!("{}: {failure}\n{case:?}", rule.name()))
}

fn built(name: &str) -> Box<dyn Rule> {
    name.parse::<ReferenceKind>().unwrap().build().unwrap()
}

/// Checks that a rule is exact (`check`) and optimal: its acceptance equals the minimum over all
/// subsets, as computed by the conformance runner and by this crate.
fn is_optimal(name: &str, schemes: &[Drafting], random: usize) {
    let mut rule = built(name);
    let seen = every_case(schemes, random, |case| {
        let report = check(rule.as_mut(), case);
        let gap = report.optimal - report.acceptance;
        assert!(gap.abs() <= CLOSE, "{name}: {gap:e} below {}\n{case:?}", report.optimal);
    });
    assert!(seen >= 500, "{seen}");
}

#[test]
fn linear_program() {
    is_optimal("linear-program", &Drafting::ALL, 60);
}

#[test]
fn max_flow() {
    is_optimal("max-flow", &Drafting::ALL, 60);
}

#[test]
fn slackness() {
    is_optimal("slackness", &Drafting::ALL, 60);
}

#[cfg(feature = "highs")]
#[test]
fn linear_program_by_highs() {
    use polydraft_reference::Solver;
    let settings = linear_program::Settings { solver: Solver::Highs, ..Default::default() };
    let mut rule = settings.build().unwrap();
    let seen = every_case(&[Drafting::Iid, Drafting::Distinct], 5, |case| {
        let report = check(rule.as_mut(), case);
        assert!((report.optimal - report.acceptance).abs() <= CLOSE, "{report:?}\n{case:?}");
    });
    assert!(seen >= 500);
}

#[cfg(not(feature = "highs"))]
#[test]
fn rejects_highs_without_its_feature() {
    let rule: ReferenceKind =
        serde_json::from_str(r#"{"rule": "linear-program", "solver": "highs"}"#).unwrap();
    assert!(rule.build().err().unwrap().to_string().contains("feature highs"));
    assert_eq!(linear_program::Settings::default().solver.name(), "microlp");
}

/// Compares subsets, formulas, cuts and `priority`, without any solver.
#[test]
fn optima_agree() {
    let exact = priority::Settings { form: Form::Exact, ..priority::Settings::default() };
    let mut priority = exact.build().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    every_case(&Drafting::ALL, 60, |case| {
        let problem = case.problem().unwrap();
        let subsets = optimum::by_subsets(&problem).unwrap();
        let mut others = vec![
            optimum::best(&problem).unwrap().acceptance,
            acceptance::optimal(&problem).unwrap(),
        ];
        let independent = [Drafting::Iid, Drafting::Distinct].contains(&case.scheme);
        if independent && case.count == 2 {
            others.push(optimum::by_minimum_cut(&problem).unwrap().acceptance);
        }
        if case.scheme == Drafting::Iid {
            others
                .push(couple(priority.as_mut(), problem).unwrap().acceptance(&mut rng).probability);
        }
        for other in others {
            assert!((other - subsets.acceptance).abs() <= CLOSE, "{other} {subsets:?}\n{case:?}");
        }
        // The set proves the bound.
        let inside = |drafts: &[u32]| drafts.iter().all(|token| subsets.tokens.contains(token));
        let within: f64 =
            problem.proposal.tuples().iter().filter(|t| inside(&t.1)).map(|t| t.0).sum();
        let demand: f64 =
            subsets.tokens.iter().map(|token| problem.target.probability(*token)).sum();
        assert!((1.0 + demand - within - subsets.acceptance).abs() <= 1e-12);
    });
}

/// In published mode the distribution deviates by at most 15τ, and the acceptance by at most 10τ,
/// by enumeration.
#[test]
fn global_resolution_as_published() {
    let (mut solved, mut gave_up, mut worst_distribution, mut worst_acceptance) =
        (0, 0, 0.0_f64, 0.0_f64);
    for tau in [0.05, 1e-2, 1e-3, 1e-4] {
        let settings =
            global_resolution::Settings { tau, mode: Mode::Published, ..Default::default() };
        let mut rule = settings.build().unwrap();
        every_case(&[Drafting::Iid], 40, |case| {
            let problem = case.problem().unwrap();
            match emitted(rule.as_mut(), problem) {
                Ok(found) => {
                    solved += 1;
                    let off =
                        (optimum::best(&problem).unwrap().acceptance - found.acceptance).abs();
                    worst_distribution = worst_distribution.max(found.deviation(&problem) / tau);
                    worst_acceptance = worst_acceptance.max(off / tau);
                    assert!(found.deviation(&problem) <= 15.0 * tau, "{tau} {found:?}\n{case:?}");
                    assert!(off <= 10.0 * tau, "{tau} {off}\n{case:?}");
                }
                Err(error) => {
                    gave_up += 1;
                    assert!(error.to_string().contains("gradient"), "{error}");
                }
            }
        });
    }
    println!(
        "{solved} solved, {gave_up} not; probs off by up to {worst_distribution} tau, acceptance \
         by \
         {worst_acceptance} tau"
    );
    assert!(gave_up * 10 < solved, "{gave_up} {solved}");
    // The deviation is measurable: otherwise the check above would prove nothing.
    assert!(worst_distribution > 1.0 && worst_acceptance > 0.1);
}

/// In repaired mode the distribution is exact, and the acceptance still within 10τ.
#[test]
fn global_resolution_repaired() {
    let mut fallbacks = 0;
    for (tau, limits) in [(0.1, None), (1e-2, None), (1e-4, None), (1e-3, Some(vec![2, 2, 1]))] {
        let mut settings = global_resolution::Settings { tau, ..Default::default() };
        settings.limits = limits.unwrap_or(settings.limits);
        let mut rule = settings.build().unwrap();
        every_case(&[Drafting::Iid], 40, |case| {
            let report = check(rule.as_mut(), case);
            let loss = report.optimal - report.acceptance;
            assert!(loss <= 10.0 * tau, "{tau} {loss}\n{case:?}");
            if let Some(fallback) = rule.fallback() {
                fallbacks += 1;
                assert_eq!((fallback.rule, fallback.count > 0), ("priority", true));
                assert!(loss <= CLOSE);
            }
        });
    }
    assert!(fallbacks > 100, "{fallbacks}");
}

/// With the full vocabulary in the program, two i.i.d. drafts reach the optimum, to the solver's
/// tolerance.
#[test]
fn importance_weighted_selection() {
    use importance::{Selection, Settings};
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for selection in [Selection::Gap, Selection::LargestDraft] {
        for (truncation, alphabet) in
            [(1, None), (2, Some(2)), (5, Some(40)), (5, Some(1)), (20, None)]
        {
            let mut rule = Settings { truncation, selection, alphabet }.build().unwrap();
            for scheme in [Drafting::Iid, Drafting::Distinct] {
                for count in 1..=4 {
                    for vocabulary in 1..=4 {
                        let random = if count < 4 { 200 } else { 60 };
                        for case in cases(vocabulary, scheme, count, random, &mut rng).unwrap() {
                            let report = check(rule.as_mut(), &case);
                            let complete = truncation >= 4 && alphabet.is_none_or(|size| size >= 4);
                            if complete && case.count <= 2 {
                                assert!(
                                    report.optimal - report.acceptance < 1e-7,
                                    "{report:?} {case:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
