//! Properties that need larger vocabularies: truncation, size limits, time limits, and detection of
//! faults by enumeration.

use polydraft::coupling::{Emission, EmittedDistribution, Rule, RuleSettings};
use polydraft::random::RandomSource;
use polydraft::{
    Distribution, Draft, DraftTree, Drafting, Draws, Error, PolicyKind, Problem, Proposal, Result,
    Token, acceptance, couple,
};
use polydraft_reference::global_resolution::{GaveUp, Mode, Settings};
use polydraft_reference::{ReferenceKind, emitted, max_flow, optimum};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Returns a peaked pair of distributions: logits differ by up to 6, and the draft's are off by up
/// to `error`.
fn pair(vocabulary: usize, error: f64, seed: u64) -> (Distribution, Distribution) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX);
    let logits: Vec<f64> = (0..vocabulary).map(|_| 6.0 * uniform()).collect();
    let probs = |values: Vec<f64>| {
        let weights: Vec<f64> = values.into_iter().map(f64::exp).collect();
        let sum: f64 = weights.iter().sum();
        Distribution::new(weights.into_iter().map(|weight| weight / sum).collect()).unwrap()
    };
    (
        probs(logits.clone()),
        probs(logits.iter().map(|logit| logit + error * (uniform() - 0.5)).collect()),
    )
}

fn built(name: &str) -> Box<dyn Rule> {
    name.parse::<ReferenceKind>().unwrap().build().unwrap()
}

#[test]
fn solvers_agree_on_larger_problems() {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut priority = "priority".parse::<polydraft::RuleKind>().unwrap().build().unwrap();
    for (vocabulary, count) in [(60, 2), (25, 3), (12, 4), (9, 5)] {
        for seed in 0..4 {
            let (target, draft) = pair(vocabulary, 1.0 + seed as f64, seed);
            let problem = Problem::new(&target, Proposal::iid(&draft, count).unwrap()).unwrap();
            let expected =
                couple(priority.as_mut(), problem).unwrap().acceptance(&mut rng).probability;
            for name in ["linear-program", "max-flow", "slackness"] {
                let mut rule = built(name);
                let got = couple(rule.as_mut(), problem).unwrap().acceptance(&mut rng);
                assert_eq!(got.standard_error, None);
                assert!((got.probability - expected).abs() < 1e-9, "{name} {got:?} {expected}");
            }
            assert!((optimum::best(&problem).unwrap().acceptance - expected).abs() < 1e-12);
        }
    }
}

/// Two distinct drafts from 300 tokens, too many to list subsets: compares the cut, maximum flow
/// and slackness.
#[test]
fn minimum_cut_of_two_distinct_drafts() {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for seed in 0..3 {
        let (target, first) = pair(300, 2.0, seed);
        let (_, second) = pair(300, 2.0, 50 + seed);
        let distributions = [first, second];
        let problem = Problem::new(
            &target,
            Proposal::new(Draws { scheme: Drafting::Distinct, count: 2 }, &distributions).unwrap(),
        )
        .unwrap();
        assert!(acceptance::optimal(&problem).is_err());
        let cut = optimum::by_minimum_cut(&problem).unwrap();
        for name in ["max-flow", "slackness"] {
            let mut rule = built(name);
            let got = couple(rule.as_mut(), problem).unwrap().acceptance(&mut rng).probability;
            assert!((got - cut.acceptance).abs() < 1e-9, "{name} {got} {cut:?}");
        }
        assert!(cut.acceptance < 1.0 - 1e-6 && !cut.tokens.is_empty());
    }
}

/// With omitted tuples in both systems, published mode stays within 15τ and 10τ, and repaired mode
/// is exact.
#[test]
fn truncation() {
    let mut truncated = 0;
    for (vocabulary, count) in [(40, 2), (14, 3)] {
        for tau in [0.1, 0.03, 1e-2] {
            for seed in 0..10 {
                let (target, draft) = pair(vocabulary, 1.0 + 0.5 * seed as f64, seed);
                let problem = Problem::new(&target, Proposal::iid(&draft, count).unwrap()).unwrap();
                let best = optimum::best(&problem).unwrap().acceptance;
                let mut resolver = Settings { tau, ..Settings::default() }.resolver().unwrap();
                resolver.prepare(&problem).unwrap();
                let retained: usize = (0..vocabulary as Token)
                    .map(|token| vec![token; count])
                    .filter_map(|drafts| resolver.solve(&drafts).ok())
                    .map(|solved| solved.tokens)
                    .max()
                    .unwrap();
                truncated += usize::from(retained + 1 < vocabulary);
                for mode in [Mode::Published, Mode::Repaired] {
                    let mut rule = Settings { tau, mode, ..Settings::default() }.build().unwrap();
                    let found = emitted(rule.as_mut(), problem).unwrap();
                    let allowed = if mode == Mode::Published { 15.0 * tau } else { 1e-12 };
                    let deviation = found.deviation(&problem);
                    assert!(deviation <= allowed, "{mode:?} {tau} {vocabulary}: {deviation}");
                    assert!((best - found.acceptance).abs() <= 10.0 * tau, "{mode:?} {tau}");
                    assert_eq!(rule.fallback(), None);
                }
                resolver.solve_both().unwrap();
                let reported = resolver.acceptance().unwrap();
                assert!((best - reported).abs() <= 10.0 * tau);
            }
        }
    }
    assert!(truncated > 30, "{truncated}");
}

#[test]
fn giving_up_has_a_reason() {
    let (target, draft) = pair(4_000, 2.0, 1);
    let problem = Problem::new(&target, Proposal::iid(&draft, 2).unwrap()).unwrap();
    let mut resolver = Settings::default().resolver().unwrap();
    resolver.prepare(&problem).unwrap();
    let Err(GaveUp::TooManyTokens { needed, limit: 50, .. }) = resolver.solve_both() else {
        panic!()
    };
    assert!(needed > 50);
    let mut rule = Settings::default().build().unwrap();
    for nodes in 1..=3 {
        let mut coupling = couple(rule.as_mut(), problem).unwrap();
        let fallback = coupling.fallback().unwrap().clone();
        assert!(fallback.reason.contains(&format!("needs {needed} tokens")), "{fallback:?}");
        assert_eq!((fallback.rule, fallback.count), ("priority", nodes));
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let best = acceptance::optimal(&problem).unwrap();
        assert!((coupling.acceptance(&mut rng).probability - best).abs() < 1e-6);
    }
    let published = Settings { mode: Mode::Published, ..Settings::default() };
    let mut rule = published.build().unwrap();
    let error = couple(rule.as_mut(), problem).err().unwrap().to_string();
    assert!(error.contains("needs") && error.contains("limit is 50"), "{error}");

    // Limits that would take forever.
    let wide = Problem::new(&target, Proposal::iid(&draft, 5).unwrap()).unwrap();
    let mut rule = Settings { limits: vec![1000], ..Settings::default() }.build().unwrap();
    let error = couple(rule.as_mut(), wide).err().unwrap().to_string();
    assert!(error.contains("setting limits") && error.contains("1000 tokens"), "{error}");

    // One iteration is not enough.
    let (target, draft) = pair(20, 3.0, 1);
    let problem = Problem::new(&target, Proposal::iid(&draft, 2).unwrap()).unwrap();
    let mut resolver =
        Settings { tau: 1e-6, iterations: 1, ..Settings::default() }.resolver().unwrap();
    resolver.prepare(&problem).unwrap();
    let gave_up = resolver.solve_both().unwrap_err();
    assert!(matches!(gave_up, GaveUp::NotConverged { iterations: 1, .. }), "{gave_up}");
}

#[test]
fn rejects_too_large_problems_with_the_limit() {
    let (target, draft) = pair(5_000, 1.0, 1);
    let message = |name: &str, scheme: Drafting, count: usize| {
        let distributions =
            vec![draft.clone(); if scheme == Drafting::Distinct { count } else { 1 }];
        let problem =
            Problem::new(&target, Proposal::new(Draws { scheme, count }, &distributions).unwrap())
                .unwrap();
        let mut rule = built(name);
        couple(rule.as_mut(), problem).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let flow = message("max-flow", Drafting::Iid, 2);
    assert!(
        flow.contains("25000000 variables") && flow.contains("2000 tokens would fit"),
        "{flow}"
    );
    let program = message("linear-program", Drafting::Iid, 3);
    assert!(
        program.contains("at most 50000") && program.contains("46 tokens would fit"),
        "{program}"
    );
    assert!(message("max-flow", Drafting::Distinct, 3).contains("variables"));
    assert!(message("slackness", Drafting::Distinct, 2).contains("2000 drafted tokens"));
    assert!(message("slackness", Drafting::WithoutReplacement, 3).contains("variables"));
    let powers = message("max-flow", Drafting::WithoutReplacement, 60);
    assert!(powers.contains("variables for 60 drafts") && powers.len() < 200, "{powers}");
    // No size would fit.
    let hub = message("linear-program", Drafting::Hub, 10_000);
    assert!(hub.contains("at most 50000 variables, got"), "{hub}");
    // These schemes have few token sets, however large the vocabulary.
    assert_eq!(message("max-flow", Drafting::Greedy, 3), "");
    assert_eq!(message("slackness", Drafting::Hub, 2), "");

    let settings = max_flow::Settings { seconds: 1e-9, ..max_flow::Settings::default() };
    let problem = Problem::new(
        &target,
        Proposal::new(Draws { scheme: Drafting::Greedy, count: 2 }, std::slice::from_ref(&draft))
            .unwrap(),
    );
    let error =
        couple(settings.build().unwrap().as_mut(), problem.unwrap()).err().unwrap().to_string();
    assert!(error.contains("none within"), "{error}");
}

#[test]
fn settings_out_of_range() {
    for (text, expected) in [
        (r#"{"rule": "global-resolution", "tau": 0}"#, "tau"),
        (r#"{"rule": "global-resolution", "tau": 1}"#, "below 1"),
        (r#"{"rule": "global-resolution", "limits": []}"#, "limits"),
        (r#"{"rule": "global-resolution", "iterations": 0}"#, "iterations"),
        (r#"{"rule": "max-flow", "seconds": -1}"#, "seconds"),
        (r#"{"rule": "max-flow", "max_variables": 0}"#, "max_variables"),
        (r#"{"rule": "slackness", "max_variables": 1000000000}"#, "500000000"),
        (r#"{"rule": "linear-program", "max_variables": 0}"#, "max_variables"),
    ] {
        let error =
            serde_json::from_str::<ReferenceKind>(text).unwrap().build().err().unwrap().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(serde_json::from_str::<ReferenceKind>(r#"{"rule": "max-flow", "size": 1}"#).is_err());
    assert!("flow".parse::<ReferenceKind>().unwrap_err().to_string().contains("max-flow"));
    for name in ReferenceKind::NAMES {
        let rule: ReferenceKind = name.parse().unwrap();
        assert_eq!((rule.name(), rule.build().unwrap().name()), (*name, *name));
    }
}

/// A faulty rule that always accepts its first draft.
struct Credulous;

impl Rule for Credulous {
    fn name(&self) -> &'static str {
        "credulous"
    }

    fn supports(&self, _: Draws) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    fn acceptance(&mut self, _: &Problem) -> Option<f64> {
        Some(1.0)
    }

    fn emit(&mut self, _: &Problem, drafts: &[Token], _: &mut dyn RandomSource) -> Emission {
        Emission { token: drafts[0], accepted: Some(0) }
    }

    fn distribution(&mut self, problem: &Problem, _: &[Token]) -> EmittedDistribution {
        EmittedDistribution { probabilities: problem.target.to_vec(), accepted: 1.0 }
    }
}

#[test]
fn enumerator_covers_emitted_tokens() {
    let (target, draft) = pair(7, 3.0, 2);
    for scheme in [Drafting::Iid, Drafting::WithoutReplacement] {
        let problem = Problem::new(
            &target,
            Proposal::new(Draws { scheme, count: 3 }, std::slice::from_ref(&draft)).unwrap(),
        )
        .unwrap();
        let found = emitted(&mut Credulous, problem).unwrap();
        assert!((found.acceptance - 1.0).abs() < 1e-12);
        assert!((found.deviation(&problem) - 2.0 * target.total_variation(&draft)).abs() < 1e-12);
    }
    let problem = Problem::new(&target, Proposal::iid(&draft, 30).unwrap()).unwrap();
    assert!(emitted(&mut Credulous, problem).unwrap_err().to_string().contains("100000 tuples"));
}

/// Every stage of importance-weighted selection sorts the vocabulary. As many stages are accepted
/// as take about a tenth of a second. One more is rejected before sorting; in a walk, a fallback
/// rule handles such a node and is counted.
#[test]
fn importance_rejects_problems_that_take_minutes() {
    let vocabulary = 1 << 17;
    let (target, draft) = pair(vocabulary, 2.0, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut rule = built("importance");
    let most = 1 + (1 << 21) / vocabulary;
    let problem = |count| Problem::new(&target, Proposal::iid(&draft, count).unwrap()).unwrap();
    let clock = std::time::Instant::now();
    let mut tokens = Vec::new();
    problem(most).proposal.draw(&mut rng, &mut tokens);
    couple(rule.as_mut(), problem(most)).unwrap().emit(&tokens, &mut rng).unwrap();
    let allowed = clock.elapsed();
    for count in [most + 1, 1_024, 1 << 40] {
        let clock = std::time::Instant::now();
        let error = couple(rule.as_mut(), problem(count)).map(drop).unwrap_err();
        let expected = format!("{} stages of {vocabulary}", count - 1);
        assert!(matches!(&error, Error::TooLarge { got, .. } if *got == expected), "{error}");
        assert!(clock.elapsed() < allowed, "{:?} to refuse, {allowed:?} to do", clock.elapsed());
    }
}

#[test]
fn walk_falls_back_where_importance_is_too_large() {
    let (target, draft) = pair(1 << 17, 2.0, 1);
    for (paths, fallbacks) in [(4, 0), (40, 1)] {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut verifier =
            polydraft_reference::verifier("walk:importance").unwrap().build().unwrap();
        let policy = PolicyKind::paths(paths, 1).build().unwrap();
        let mut drawn = Draft::new();
        drawn.grow(DraftTree::ROOT, draft.clone(), policy.as_ref(), &mut rng).unwrap();
        let distributions = vec![target.clone(); drawn.tree().len()];
        let outcome = verifier.verify(&drawn, &distributions, &mut rng).unwrap();
        assert!(target.probability(outcome.token) > 0.0);
        assert_eq!(verifier.fallbacks(), fallbacks, "{paths} paths");
    }
}
