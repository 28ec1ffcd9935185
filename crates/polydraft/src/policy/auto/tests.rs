use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::conformance::tree::{ContextDistributions, NodeTargets, draw, exact, random_pair};
use crate::policy::{Pass, Passes};
use crate::{PolicyKind, RandomSource, Sampling, VerifierKind};

fn passes(pairs: &[(usize, f64)], longer: f64) -> Passes {
    Passes(pairs.iter().map(|&(tokens, seconds)| Pass { tokens, seconds, longer }).collect())
}

fn costs(target: &[(usize, f64)], draft: f64) -> Costs {
    let draft = passes(&[(1, draft), (8, draft)], 0.0);
    Costs { target: passes(target, 0.0), draft, ..Costs::default() }
}

/// Costs of a memory-bound target: several tokens take no longer than one.
fn flat(draft: f64) -> Costs {
    costs(&[(1, 1.0), (64, 1.0)], draft)
}

fn auto(depth: usize, costs: Costs) -> Auto {
    Auto::new(Settings { depth, costs, times_plain: false })
}

/// Runs `steps` steps on distributions over two tokens, each from the same context. Returns the
/// number of drafted tokens.
fn run_steps(
    policy: &mut Auto,
    pair: (&dyn ContextDistributions, &dyn ContextDistributions),
    steps: usize,
    rng: &mut impl Rng,
) -> usize {
    let mut verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
    let mut drafted = 0;
    for _ in 0..steps {
        let draft = draw(policy, pair.1, rng as &mut dyn RandomSource).unwrap();
        let distributions = NodeTargets::new(draft.tree(), pair.0);
        let outcome =
            verifier.verify(&draft, &distributions, rng as &mut dyn RandomSource).unwrap();
        policy.observe(&draft, &outcome);
        policy.record_time(rng.random(), rng.random());
        drafted += draft.tree().len() - 1;
    }
    drafted
}

fn begin(policy: &mut Auto, batch_size: usize, context_length: usize) {
    policy.begin_step(&StepContext { batch_size, context_length, ..StepContext::default() });
}

fn plain(policy: &Auto) -> u64 {
    policy.estimate.choices.plain
}

fn gain(policy: &Auto) -> f64 {
    policy.estimate.choices.gain()
}

/// For any past and any measured times, a step's output has the target's distribution; as each step
/// is exact given its past, so is the whole output.
#[test]
fn output_is_exact_after_any_history() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut plans = Vec::new();
    for round in 0..96 {
        let costs = match round % 3 {
            0 => flat(0.05),
            1 => costs(&[(1, 1.0), (2, 1.3), (4, 1.35), (8, 2.5)], 0.3),
            _ => costs(&[(1, 1.0), (2, 1.9), (8, 7.0)], 0.02),
        };
        let (rejected, follows) = (rng.random(), rng.random());
        let mut policy = auto(3, Costs { rejected, follows, ..costs });
        let agreement = [0.1, 0.5, 0.9][round % 3];
        let pair = random_pair(2, 4, agreement, round % 2 == 0, &mut rng).unwrap();
        begin(&mut policy, [1, 1, 2, 7][round / 3 % 4], rng.random_range(0..2000));
        run_steps(&mut policy, (&pair.target, &pair.draft), rng.random_range(0..20), &mut rng);
        plans.push((policy.step_depth, policy.probes));
        for name in ["block", "token", "traversal", "greedy-block", "nested-priority"] {
            let mut verifier = name.parse::<VerifierKind>().unwrap().build().unwrap();
            let found =
                exact(verifier.as_mut(), &policy, &pair.target, &pair.draft, &mut |_| ()).unwrap();
            assert!(found.deviation < 1e-12, "{name}, {:?}: {found:?}", policy.step_depth);
        }
    }
    let count = |plan| plans.iter().filter(|other| **other == plan).count();
    let [plain, probes, drafts] = [(0, false), (1, true), (3, false)].map(count);
    assert!(plain > 5 && probes > 0 && drafts > 20, "{plain}, {probes}, {drafts}");
}

#[test]
fn stops_drafting_that_does_not_pay_and_probes_it_again() {
    let mut rng = ChaCha8Rng::seed_from_u64(32);
    let probs = |p: f64| Distribution::new(vec![p, 1.0 - p]).unwrap();
    let (target, rejected) = (Always(probs(1.0)), Always(probs(0.0)));
    // Reading the missed tokens costs this draft no more than one token.
    let draft = passes(&[(1, 0.3), (1024, 0.3)], 0.0);
    let mut policy = auto(16, Costs { draft, ..costs(&[(1, 1.0), (2, 1.2), (64, 4.0)], 0.3) });
    run_steps(&mut policy, (&target, &rejected), 2000, &mut rng);
    let before = plain(&policy);
    assert!(before > 1900 && before < 2000 && gain(&policy) > 0.97, "{before}");
    // Better drafts from here on are noticed.
    run_steps(&mut policy, (&target, &target), 4000, &mut rng);
    assert!(plain(&policy) < before + 3000, "{:?}", policy.estimate.choices);
}

/// A draft that must read the tokens decided without it costs more the longer it was not used; one
/// that follows the target (`Costs::follows`) does not.
#[test]
fn drafts_that_follow_the_target_read_no_missed_tokens() {
    let probs = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    let first = |follows| {
        let draft = passes(&[(1, 0.3), (64, 19.2)], 0.0);
        let mut policy = auto(4, Costs { draft, follows, ..flat(0.3) });
        run_steps(&mut policy, (&probs(1.0), &probs(0.0)), 40, &mut ChaCha8Rng::seed_from_u64(35));
        assert!(plain(&policy) > 25, "{:?}", policy.estimate.choices);
        (policy.estimate.first_draft_seconds(false), policy.estimate.first_draft_seconds(true))
    };
    assert_eq!(first(true), (0.3, 0.3));
    let (one, all) = first(false);
    assert!(one == 0.3 && all > 0.8, "{all}");
}

/// Costs measured on llama.cpp, SmolLM2 in q8_0 with its copy in q4_1: a pass over two tokens takes
/// 2.9 times one over one token, and the draft has more to read the longer it was not used. No
/// drafts pay, not even the target's own distributions; an output of 64 tokens must not lose much
/// by finding that out.
#[test]
fn finding_out_that_drafting_never_pays_costs_little() {
    let target =
        [(1, 1.0), (2, 2.86), (3, 3.76), (4, 3.76), (5, 4.46), (8, 4.86), (16, 7.5), (32, 13.4)];
    let draft = [(1, 0.47), (2, 0.5), (4, 0.66), (8, 1.15), (32, 4.5), (64, 9.0)];
    let (target, draft) = (passes(&target, 0.0), passes(&draft, 0.0));
    let costs = Costs { target, draft, rejected: 0.14, ..Costs::default() };
    let probs = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    for (target, draft) in [
        (probs(0.5), probs(0.5)),
        (probs(0.9), probs(0.9)),
        (probs(0.7), probs(0.9)),
        (probs(1.0), probs(0.0)),
    ] {
        for seed in 0..20 {
            let mut policy = auto(16, costs.clone());
            run_steps(&mut policy, (&target, &draft), 64, &mut ChaCha8Rng::seed_from_u64(seed));
            assert!(gain(&policy) > 0.97, "{:?}", policy.estimate.choices);
        }
    }
}

/// Costs measured on llama.cpp, SmolLM2 in f32 with its copy in q5_1, whose first tokens were
/// rejected in an output of code: drafting used to be given up.
#[test]
fn keeps_a_good_draft_whose_first_tokens_were_rejected() {
    let target =
        [(1, 1.0), (2, 1.55), (3, 1.85), (4, 1.92), (5, 2.07), (6, 2.26), (8, 2.7), (16, 3.75)];
    let draft = passes(&[(1, 0.21), (8, 0.38), (32, 1.24)], 0.0);
    let target = passes(&target, 0.0);
    let costs = Costs { target, draft, rejected: 0.07, ..Costs::default() };
    let probs = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    let (one, other) = (probs(1.0), probs(0.0));
    for seed in 0..20 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut policy = auto(16, costs.clone());
        run_steps(&mut policy, (&one, &other), 2, rng);
        run_steps(&mut policy, (&one, &one), 20, rng);
        assert!(gain(&policy) > 1.2, "{:?}", policy.estimate.choices);
        // A draft that is always rejected is detected, whatever was measured elsewhere.
        let mut policy = auto(16, costs.clone());
        run_steps(&mut policy, (&one, &other), 256, rng);
        assert!(gain(&policy) > 0.94, "{:?}", policy.estimate.choices);
    }
}

#[test]
fn good_drafts_make_long_paths() {
    let mut rng = ChaCha8Rng::seed_from_u64(33);
    let probs = Always(Distribution::new(vec![0.95, 0.05]).unwrap());
    let mut policy = auto(16, flat(0.1));
    let drafted = run_steps(&mut policy, (&probs, &probs), 300, &mut rng);
    assert!(drafted > 1500 && gain(&policy) > 2.5, "{drafted}, {}", gain(&policy));
    // A draft as expensive as the target gains nothing.
    let mut policy = auto(16, flat(1.2));
    run_steps(&mut policy, (&probs, &probs), 300, &mut rng);
    assert!(gain(&policy) > 0.95, "{}", gain(&policy));
}

/// The prior of a copy of the target makes the first draft long; a bad prior is corrected.
#[test]
fn good_priors_lengthen_the_first_draft_and_bad_ones_are_corrected() {
    let mut rng = ChaCha8Rng::seed_from_u64(36);
    let probs = Always(Distribution::new(vec![0.5, 0.5]).unwrap());
    let mut run = |rejected: f64, steps: usize| {
        let mut policy =
            auto(16, Costs { rejected, ..costs(&[(1, 1.0), (4, 1.1), (16, 3.0)], 0.3) });
        (run_steps(&mut policy, (&probs, &probs), steps, &mut rng), gain(&policy))
    };
    let (good, usual, bad) = (run(0.02, 1), run(0.5, 1), run(1.0, 200));
    assert!(good.0 >= 3 && good.0 > usual.0, "{good:?}, {usual:?}");
    assert!(bad.0 >= 400 && bad.1 > 1.2, "{bad:?}");
}

/// As sequences join, a token costs more, and drafts shrink; as they leave, drafts grow again. The
/// first step of the costs' staircase is wide enough for the draft of one sequence, not for those
/// of eight.
#[test]
fn drafts_shrink_as_the_batch_grows() {
    let mut rng = ChaCha8Rng::seed_from_u64(35);
    let probs = Always(Distribution::new(vec![0.9, 0.1]).unwrap());
    let stairs = [(1, 1.0), (8, 1.05), (9, 1.9), (16, 2.0), (32, 4.0), (64, 8.0)];
    let mut policy = auto(16, costs(&stairs, 0.1));
    let mut drafted = |policy: &mut Auto, batch_size: usize| {
        begin(policy, batch_size, 0);
        run_steps(policy, (&probs, &probs), 100, &mut rng);
        run_steps(policy, (&probs, &probs), 200, &mut rng)
    };
    assert!(drafted(&mut policy, 1) > 600);
    assert!(drafted(&mut policy, 32) < 10);
    assert!(drafted(&mut policy, 1) > 600);
    // A new sequence in a large batch drafts nothing from the start.
    let mut new = auto(16, costs(&stairs, 0.1));
    begin(&mut new, 32, 0);
    assert!(new.step_depth < 2, "{}", new.step_depth);
}

/// A copy of the target that takes a twentieth of its pass, and as much more per token of context:
/// after a long context drafting hardly pays.
#[test]
fn drafts_shrink_in_long_contexts() {
    let mut rng = ChaCha8Rng::seed_from_u64(36);
    let target = Always(Distribution::new(vec![0.7, 0.3]).unwrap());
    let draft = Always(Distribution::new(vec![0.6, 0.4]).unwrap());
    let costs = Costs {
        target: passes(&[(1, 0.9), (8, 1.0)], 1e-3),
        draft: passes(&[(1, 0.03), (8, 0.03)], 1e-3),
        ..Costs::default()
    };
    let mut drafted = |context| {
        let mut policy = auto(16, costs.clone());
        begin(&mut policy, 1, context);
        run_steps(&mut policy, (&target, &draft), 300, &mut rng)
    };
    let (short, long) = (drafted(20), drafted(20_000));
    assert!(short > 450 && long < 30, "{short}, {long}");
}

/// At temperature 0 a distribution carries no information on confidence; the stored confidence
/// does, and is used.
#[test]
fn uses_stored_confidence_at_temperature_zero() {
    let cold = |confidence: f32| {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Distribution::for_draft(
            None,
            2,
            None,
            &[confidence.ln(), (1.0 - confidence).ln()],
            &sampling,
        )
        .unwrap()
    };
    let (sure, uncertain) = (cold(0.95), cold(0.55));
    let mut policy = auto(4, costs(&[(1, 1.0), (2, 1.3), (64, 20.0)], 0.02));
    for probs in [&sure, &uncertain].repeat(30) {
        policy.acceptance.observe(1.0 - probs.confidence(), probs.confidence() < 0.6);
    }
    (policy.step_depth, policy.probes) = (4, false);
    let draft = Draft::new();
    let draws = |probs| policy.draws(&draft.path(DraftTree::ROOT), probs).is_some();
    assert_eq!((draws(&sure), draws(&uncertain)), (true, false));
    assert_eq!(sure, uncertain, "their distributions are equal");
}

/// Where drafts pay, some steps are plain, so that both kinds are measured. The measured times do
/// not change the drafts.
#[test]
fn measures_plain_and_drafted_steps_without_changing_drafts() {
    let probs = Always(Distribution::new(vec![0.6, 0.4]).unwrap());
    let run = |drafted_seconds: f64| {
        let mut policy = auto(16, costs(&[(1, 1.0), (8, 1.2)], 0.3));
        let mut verifier = "block".parse::<VerifierKind>().unwrap().build().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(39);
        let mut drafts = Vec::new();
        for _ in 0..600 {
            let draft = draw(&policy, &probs, &mut rng).unwrap();
            let distributions = NodeTargets::new(draft.tree(), &probs);
            let outcome = verifier.verify(&draft, &distributions, &mut rng).unwrap();
            policy.observe(&draft, &outcome);
            policy.record_time(if draft.tree().len() > 1 { drafted_seconds } else { 1.0 }, 0.0);
            drafts.push(draft.tree().len());
        }
        (drafts, policy.estimate.choices.clone())
    };
    let ((drafts, choices), (again, slower)) = (run(2.0), run(4.0));
    assert_eq!(drafts, again);
    assert!(choices.plain > 10 && choices.plain < 60, "{choices:?}");
    assert!(choices.clock.steps[0] > 6 && choices.clock.steps[1] > 500, "{choices:?}");
    assert_eq!(2.0 * choices.clock.clock[1], slower.clock.clock[1]);
    let by_clock = choices.measured_plain_seconds().unwrap();
    assert!((by_clock / choices.plain_seconds - 1.0).abs() < 1e-9, "{choices:?}");
}

/// The same distribution for every sequence.
struct Always(Distribution);

impl ContextDistributions for Always {
    fn distribution(&self, _: &[crate::Token]) -> Result<&Distribution> {
        Ok(&self.0)
    }
}

#[test]
fn rejects_settings_out_of_range() {
    for invalid in ["auto:0", "auto:65", "auto:2,3", "auto:x", "auto:1,2,3"] {
        let built = invalid.parse::<PolicyKind>().and_then(|kind| kind.build().map(|_| ()));
        assert!(built.unwrap_err().to_string().contains("auto"), "{invalid}");
    }
    assert_eq!("auto".parse::<PolicyKind>().unwrap().to_string(), "auto:64");
    let target = |pairs: &[_], longer| Costs { target: passes(pairs, longer), ..Costs::default() };
    let invalid = [-0.1, 1.1, f64::NAN].map(|rejected| Costs { rejected, ..Costs::default() });
    for costs in invalid.into_iter().chain([
        Costs { first: -1.0, ..Costs::default() },
        target(&[], 0.0),
        target(&[(1, 0.0)], 0.0),
        target(&[(2, 1.0)], 0.0),
        target(&[(1, 1.0), (1, 2.0)], 0.0),
        target(&[(1, f64::NAN)], 0.0),
        target(&[(1, 1.0)], -1.0),
    ]) {
        let error = Settings { costs, ..Settings::default() }.build().map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("from 0 to 1"), "{error}");
    }
}

#[test]
fn depth_is_limited_by_the_draft_levels() {
    let mut policy = auto(12, Costs::with_cheap_drafts());
    begin(&mut policy, 1, 0);
    assert_eq!(policy.depth(), 12);
    policy.begin_step(&StepContext { batch_size: 1, levels: Some(2), ..StepContext::default() });
    assert_eq!(policy.depth(), 2);
    // The rate is not estimated from deeper trees either: here two levels do not pay, twelve would.
    let expensive = || costs(&[(1, 1.0), (2, 2.1), (3, 3.1), (13, 3.2)], 0.0);
    let mut policy = auto(12, Costs { rejected: 0.05, ..expensive() });
    begin(&mut policy, 1, 0);
    assert!(policy.rate > 1.5, "{}", policy.rate);
    policy.begin_step(&StepContext { batch_size: 1, levels: Some(2), ..StepContext::default() });
    assert!((policy.rate - 1.0).abs() < 1e-9, "{}", policy.rate);
}
