//! Compares tree verifiers with the maximum that any lossless verifier can reach.

use polydraft::VerifierKind;
use polydraft::conformance::case_count;
use polydraft::conformance::tree::{ContextDistributions, Pair, exact, random_pair};
use polydraft::coupling::priority::{self, shares::Layout};
use polydraft::verify::nested_priority::Settings;
use polydraft::{Distribution, Drafting, Draws, PolicyKind, Problem, Proposal};
use polydraft_reference::global_resolution::{self, Mode};
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use polydraft_reference::{ReferenceKind, for_measurement, optimum};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn bound(pair: &Pair, vocabulary: usize, depth: usize, paths: usize) -> f64 {
    let target = |text: &[u32]| pair.target.distribution(text).cloned();
    let draft = |text: &[u32]| pair.draft.distribution(text).cloned();
    let problem = PathProblem { vocabulary, depth, paths, target: &target, draft: &draft };
    multi_path_optimum(&problem, &Limits::default()).unwrap()
}

#[test]
fn no_verifier_exceeds_the_linear_program_and_nested_priority_is_close() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let (mut gap, mut intervals_gap, mut walk_gap, mut cases) = (0.0, 0.0, 0.0, 0_u32);
    for (vocabulary, depth, paths, count) in [
        (2, 1, 2, 12),
        (3, 1, 3, 6),
        (2, 2, 1, 12),
        (2, 2, 2, 18),
        (3, 2, 2, 12),
        (2, 3, 2, 9),
        (2, 2, 3, 9),
    ] {
        for index in 0..case_count(count) {
            let agreement = [0.0, 0.4, 0.8][index % 3];
            let adversarial = index % 2 == 1;
            // The solver rejects coefficients of such different sizes; other tests enumerate
            // verifiers with them.
            let spread = |probs: &Distribution| probs.support().any(|(_, p)| p < 1e-9);
            let pair = (0..)
                .map(|_| random_pair(vocabulary, depth, agreement, adversarial, &mut rng).unwrap())
                .find(|pair| !pair.target.values().chain(pair.draft.values()).any(spread))
                .unwrap();
            let bound = bound(&pair, vocabulary, depth, paths);
            let policy = PolicyKind::paths(paths, depth).build().unwrap();
            for kind in VerifierKind::all_with(&polydraft_reference::rules()) {
                let mut verifier = kind.build().unwrap();
                // Drafts with shared randomness are not i.i.d. paths.
                if verifier.supports(&policy.form()).is_err() || verifier.uses_shared_randomness() {
                    continue;
                }
                // A race takes a hundred times as long; both kinds of pairs are among these.
                let is_raced = matches!(kind.to_string().as_str(), "pooled" | "walk:race");
                if is_raced && (index % 7 != 1 || index > 30) {
                    continue;
                }
                let found = exact(
                    verifier.as_mut(),
                    policy.as_ref(),
                    &pair.target,
                    &pair.draft,
                    &mut |_| (),
                )
                .unwrap();
                assert!(found.deviation < 1e-10, "{kind} {found:?}\n{pair:?}");
                assert!(
                    found.block_efficiency <= bound + 1e-9,
                    "{kind} {found:?} {bound}\n{pair:?}"
                );
                match kind.to_string().as_str() {
                    "nested-priority" => gap += bound - found.block_efficiency,
                    "walk:priority" => walk_gap += bound - found.block_efficiency,
                    // No single-path method is better.
                    "block" => assert!(found.block_efficiency >= bound - 1e-8, "{found:?} {bound}"),
                    _ => {}
                }
            }
            let sharing = priority::Settings { layout: Layout::Intervals, ..Default::default() };
            let settings = Settings { sharing, ..Settings::default() };
            let mut intervals = VerifierKind::NestedPriority(settings).build().unwrap();
            let found =
                exact(intervals.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ())
                    .unwrap();
            intervals_gap += bound - found.block_efficiency;
            cases += 1;
        }
    }
    let mean = |sum: f64| sum / f64::from(cases);
    println!(
        "{cases} cases, tokens per call below the bound: nested-priority {:.4}, with intervals \
         {:.4}, walk:priority {:.4}",
        mean(gap),
        mean(intervals_gap),
        mean(walk_gap)
    );
    // Spread shares close much of the gap that interval shares leave.
    assert!(
        gap < 0.7 * intervals_gap && intervals_gap < walk_gap,
        "{gap} {intervals_gap} {walk_gap}"
    );
}

/// Global Resolution as published does not have the target's distribution, so no verifier accepts
/// it.
#[test]
fn walks_take_exact_rules_only() {
    let mode = Mode::Published;
    let settings = global_resolution::Settings { mode, ..Default::default() };
    let walk = VerifierKind::walk(ReferenceKind::GlobalResolution(settings));
    assert!(walk.build().err().unwrap().to_string().contains("global-resolution"));
}

/// A walk whose rule fails at some nodes is still exact, and reports how often.
#[test]
fn walks_fall_back_and_stay_exact() {
    use polydraft_reference::{linear_program, max_flow};
    let mut rng = ChaCha8Rng::seed_from_u64(32);
    let small = [
        ReferenceKind::MaxFlow(max_flow::Settings { max_variables: 1, ..Default::default() }),
        ReferenceKind::LinearProgram(linear_program::Settings {
            max_variables: 1,
            ..Default::default()
        }),
        ReferenceKind::GlobalResolution(global_resolution::Settings {
            limits: vec![1],
            tau: 1e-9,
            ..Default::default()
        }),
    ];
    for tree in ["paths:2,2", "2,2/without-replacement", "2,2/hub", "2,1/top-k"] {
        let policy = tree.parse::<PolicyKind>().unwrap().build().unwrap();
        for rule in &small {
            let mut fallbacks = 0;
            for index in 0..6 {
                let pair = random_pair(3, 2, 0.3, index % 2 == 1, &mut rng).unwrap();
                let mut verifier = VerifierKind::walk(rule.clone()).build().unwrap();
                if verifier.supports(&policy.form()).is_err() {
                    continue;
                }
                let (target, draft) = (&pair.target, &pair.draft);
                let found =
                    exact(verifier.as_mut(), policy.as_ref(), target, draft, &mut |_| ()).unwrap();
                assert!(found.deviation < 1e-10, "{tree} {} {found:?}", rule.name());
                fallbacks += verifier.fallbacks();
            }
            assert!(fallbacks > 0 || rule.name() == "global-resolution", "{tree} {}", rule.name());
        }
    }
}

/// Global Resolution as published, in a walk: close to the target's distribution if all systems are
/// solved, further away if only one of two is. Draws from the target are counted. In repaired mode
/// it is still exact.
#[test]
fn published_walks_are_measured() {
    let mut rng = ChaCha8Rng::seed_from_u64(41);
    let policy = PolicyKind::paths(2, 2).build().unwrap();
    let (mut solved, mut drawn, mut worst) = (0, 0, 0.0_f64);
    for index in 0..case_count(60) {
        let pair = random_pair(3, 2, [0.0, 0.4, 0.8][index % 3], false, &mut rng).unwrap();
        // Some systems need more than three tokens.
        for limits in [vec![50], vec![2], vec![1]] {
            let settings = global_resolution::Settings { limits, ..Default::default() };
            let value_of = |mode| {
                let settings = global_resolution::Settings { mode, ..settings.clone() };
                let kind = VerifierKind::walk(ReferenceKind::GlobalResolution(settings));
                assert_eq!(kind.build().is_ok(), mode == Mode::Repaired);
                let mut verifier = for_measurement(&kind).unwrap();
                let (target, draft) = (&pair.target, &pair.draft);
                exact(verifier.as_mut(), policy.as_ref(), target, draft, &mut |_| ()).unwrap()
            };
            assert!(value_of(Mode::Repaired).deviation < 1e-10);
            let published = value_of(Mode::PublishedWalk);
            if published.fallbacks == 0.0 {
                // Each of at most three tokens adds the paper's bound.
                assert!(published.deviation <= 3.0 * settings.deviation_bound(), "{published:?}");
                solved += 1;
            } else {
                worst = worst.max(published.deviation);
                drawn += 1;
            }
        }
    }
    assert!(solved > 20 && drawn > 20, "{solved} {drawn}");
    println!("largest deviation with draws from the target: {worst:e}");
    assert!(worst > 0.01, "{worst}");
}

/// Walks with paths of several drafts are exact. With reference solvers and one level they reach
/// the optimum, which a minimum cut computes for two drafts.
#[test]
fn walks_of_distinct_drafts() {
    let mut rng = ChaCha8Rng::seed_from_u64(51);
    let names =
        ["specinfer", "walk:naive", "walk:importance", "walk:linear-program", "walk:max-flow"];
    for (tree, count) in
        [("distinct:2,1", 30), ("distinct:2,2", 12), ("distinct:3,1", 12), ("distinct:3,2", 2)]
    {
        let policy = tree.parse::<PolicyKind>().unwrap().build().unwrap();
        let drafts = policy.form().distinct();
        for index in 0..case_count(count) {
            let adversarial = index % 2 == 1;
            let mut pair = |agreement| {
                random_pair(3, policy.depth(), agreement, adversarial, &mut rng).unwrap()
            };
            let target = pair(0.0).target;
            let tables: Vec<_> =
                (0..drafts).map(|number| pair(0.2 * number as f64).draft).collect();
            let value_of = |name: &str| {
                let mut verifier = polydraft_reference::verifier(name).unwrap().build().unwrap();
                let found =
                    exact(verifier.as_mut(), policy.as_ref(), &target, &tables, &mut |_| ())
                        .unwrap();
                assert!(found.deviation < 1e-10, "{name} {tree}: {found:?}");
                found.block_efficiency
            };
            let found: Vec<f64> = names.iter().map(|name| value_of(name)).collect();
            if policy.depth() > 1 {
                continue;
            }
            let best = found[4];
            assert!((found[3] - best).abs() < 1e-9, "{tree}: {found:?}");
            assert!(found.iter().all(|own| *own <= best + 1e-9), "{tree}: {found:?}");
            if drafts == 2 {
                let probs = [0, 1].map(|number| tables[number][&Vec::new()].clone());
                let draws = Draws { scheme: Drafting::Distinct, count: 2 };
                let proposal = Proposal::new(draws, &probs).unwrap();
                let problem = Problem::new(&target[&Vec::new()], proposal).unwrap();
                let cut = optimum::by_minimum_cut(&problem).unwrap().acceptance;
                assert!((1.0 + cut - best).abs() < 1e-9, "{cut} {found:?}");
            }
        }
    }
}
