use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::conformance::tree::{ContextLaws, draw, exact, random_pair};
use crate::policy::{Guess, Longer, Passes};
use crate::{Chance, PolicyKind, Sampling, VerifierKind};

fn costs(target: &[(usize, f64)], draft: f64) -> Costs {
    let draft = Passes::new(vec![(1, draft), (8, draft)]).unwrap();
    Costs {
        target: Passes::new(target.to_vec()).unwrap(),
        draft,
        verification: Passes::free(),
        ..Costs::default()
    }
}

/// Passes that take more for every token beyond so many.
fn longer(than: usize, target: f64, draft: f64) -> Box<Longer> {
    let [target, draft] = [target, draft].map(|more| Passes::new(vec![(1, more)]).unwrap());
    Box::new(Longer { than, target, draft })
}

/// Bound by memory: rows cost nothing.
fn flat(draft: f64) -> Costs {
    costs(&[(1, 1.0), (64, 1.0)], draft)
}

fn auto(paths: usize, depth: usize, costs: Costs) -> Auto {
    Auto::new(Settings { paths, depth, costs })
}

/// Decodes with laws over two tokens that end after two levels, again and again.
fn live(
    policy: &mut Auto,
    pair: (&dyn ContextLaws, &dyn ContextLaws),
    steps: usize,
    rng: &mut impl Rng,
) {
    let mut verifier = "nested-priority".parse::<VerifierKind>().unwrap().build().unwrap();
    for _ in 0..steps {
        let draft = draw(policy, pair.1, rng as &mut dyn Chance).unwrap();
        let laws = crate::conformance::tree::TargetOf::new(draft.tree(), pair.0);
        let outcome = verifier.verify(&draft, &laws, rng as &mut dyn Chance).unwrap();
        policy.observe(&draft, &outcome);
    }
}

/// Whatever it has seen, what it draws leaves the text the target's law: as every step is exact by
/// its past, so is the text.
#[test]
fn exact_after_every_past() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut plans = Vec::new();
    for round in 0..96 {
        let costs = match round % 3 {
            0 => flat(0.05),
            1 => costs(&[(1, 1.0), (2, 1.3), (4, 1.35), (8, 2.5)], 0.3),
            _ => costs(&[(1, 1.0), (2, 1.9), (8, 7.0)], 0.02),
        };
        let guess = Guess { rejected: rng.random(), unsure: rng.random() };
        let follows = rng.random();
        let costs = Costs { guess, follows, longer: longer(100, 1e-4, 1e-4), ..costs };
        let mut policy = auto(1 + round % 3, 3, costs);
        let context_length = rng.random_range(0..2000);
        let alike = [0.1, 0.5, 0.9][round % 3];
        let pair = random_pair(2, 4, alike, round % 2 == 0, &mut rng).unwrap();
        let batch_size = [1, 1, 2, 7][round / 3 % 4];
        policy.begin_step(&StepContext { batch_size, context_length });
        live(&mut policy, (&pair.target, &pair.draft), rng.random_range(0..20), &mut rng);
        plans.push(policy.plan);
        let names = if policy.paths == 1 {
            &["block", "token"][..]
        } else {
            &["traversal", "greedy-block"]
        };
        for name in names.iter().chain(&["nested-priority"]) {
            let mut verifier = name.parse::<VerifierKind>().unwrap().build().unwrap();
            let found =
                exact(verifier.as_mut(), &policy, &pair.target, &pair.draft, &mut |_| ()).unwrap();
            assert!(found.law_deviation < 1e-12, "{name}, {:?}: {found:?}", policy.plan);
        }
    }
    assert!(
        plans.contains(&Plan::Plain)
            && plans.iter().filter(|plan| matches!(plan, Plan::Paths(_))).count() > 20
    );
}

#[test]
fn drafts_that_cost_too_much_are_given_up_and_tried_again_at_times() {
    let mut rng = ChaCha8Rng::seed_from_u64(32);
    let law = |p: f64| Distribution::new(vec![p, 1.0 - p]).unwrap();
    let (target, wrong) = (Always(law(1.0)), Always(law(0.0)));
    // Reading what it missed costs this draft no more than a token.
    let draft = Passes::new(vec![(1, 0.3), (1024, 0.3)]).unwrap();
    let mut policy = auto(4, 16, Costs { draft, ..costs(&[(1, 1.0), (2, 1.2), (64, 4.0)], 0.3) });
    live(&mut policy, (&target, &wrong), 2000, &mut rng);
    let choices = policy.reckoning.choices.clone();
    assert!(choices.plain > 1900 && choices.plain < 2000, "{choices:?}");
    assert!(choices.gain() > 0.97, "{choices:?}");
    // Were they better from here on, it would notice.
    live(&mut policy, (&target, &target), 4000, &mut rng);
    assert!(
        policy.reckoning.choices.plain < choices.plain + 3000,
        "{:?}",
        policy.reckoning.choices
    );
}

/// A draft that must read what was decided without it costs more the longer it was not asked; one
/// that follows the target does not.
#[test]
fn one_that_follows_has_nothing_to_read() {
    let law = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    let probe = |follows| {
        let draft = Passes::new(vec![(1, 0.3), (64, 19.2)]).unwrap();
        let mut policy = auto(1, 4, Costs { draft, follows, ..flat(0.3) });
        live(&mut policy, (&law(1.0), &law(0.0)), 40, &mut ChaCha8Rng::seed_from_u64(35));
        assert!(policy.reckoning.unasked > 8, "{:?}", policy.reckoning.choices);
        (policy.reckoning.probe(), policy.reckoning.reading())
    };
    assert_eq!(probe(true), (0.3, 0.0));
    let (seconds, reading) = probe(false);
    assert!(seconds > 2.5 && (reading + 0.3 - seconds).abs() < 1e-9, "{seconds}, {reading}");
}

/// Measured on llama.cpp, SmolLM2 in q8_0 with its copy in q4_1: a pass over two rows takes two and
/// a half over one, and the draft has more to read the longer it was not asked. No drafts pay, not
/// those of the target itself; a text of 64 tokens shows how dear it is to find that out.
#[test]
fn finding_out_that_nothing_pays_costs_little() {
    let target = [
        (1, 1.0),
        (2, 2.5),
        (3, 3.4),
        (4, 3.4),
        (5, 4.1),
        (6, 4.1),
        (8, 4.5),
        (12, 5.9),
        (16, 7.1),
        (32, 13.0),
    ];
    let draft = [(1, 0.47), (2, 0.5), (4, 0.66), (8, 1.15), (32, 4.5), (64, 9.0)];
    let costs = Costs {
        target: Passes::new(target.to_vec()).unwrap(),
        draft: Passes::new(draft.to_vec()).unwrap(),
        verification: Passes::new(vec![(1, 0.36)]).unwrap(),
        guess: Guess { rejected: 0.14, unsure: 0.36 },
        ..Costs::default()
    };
    let law = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    for (target, draft) in
        [(law(0.5), law(0.5)), (law(0.9), law(0.9)), (law(0.7), law(0.9)), (law(1.0), law(0.0))]
    {
        for seed in 0..20 {
            let mut policy = auto(4, 16, costs.clone());
            live(&mut policy, (&target, &draft), 64, &mut ChaCha8Rng::seed_from_u64(seed));
            assert!(policy.reckoning.choices.gain() > 0.97, "{:?}", policy.reckoning.choices);
        }
    }
}

/// Measured on llama.cpp, SmolLM2 in f32 with its copy in q5_1, whose first three tokens were
/// rejected in a text of code: it was given up.
#[test]
fn a_good_draft_with_a_bad_beginning_is_not_given_up() {
    let target =
        [(1, 1.0), (2, 1.24), (3, 1.54), (4, 1.61), (5, 1.76), (6, 1.95), (8, 2.39), (16, 3.44)];
    let costs = Costs {
        target: Passes::new(target.to_vec()).unwrap(),
        draft: Passes::new(vec![(1, 0.21), (8, 0.38), (32, 1.24)]).unwrap(),
        verification: Passes::new(vec![(1, 0.31)]).unwrap(),
        guess: Guess { rejected: 0.07, unsure: 0.4 },
        ..Costs::default()
    };
    let law = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    let (one, other) = (law(1.0), law(0.0));
    for seed in 0..20 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut policy = auto(4, 16, costs.clone());
        live(&mut policy, (&one, &other), 3, rng);
        live(&mut policy, (&one, &one), 20, rng);
        assert!(policy.reckoning.choices.gain() > 1.2, "{:?}", policy.reckoning.choices);
        // One that is never right, whatever was measured elsewhere, is found out after five trees.
        let mut policy = auto(4, 16, costs.clone());
        live(&mut policy, (&one, &other), 256, rng);
        let Choices { steps, plain, .. } = policy.reckoning.choices;
        assert!(
            steps - plain < 10 && policy.reckoning.choices.gain() > 0.94,
            "{:?}",
            policy.reckoning.choices
        );
    }
}

/// What the draft's first pass takes beyond another decides whether it is asked; once it is,
/// whether anything is drawn hangs on what drawing takes. Charged with verification, nothing was
/// drawn where the draft was unsure, and the pass was for nothing.
#[test]
fn what_asking_took_is_not_asked_of_drawing() {
    let law = |p: f64| Always(Distribution::new(vec![p, 1.0 - p]).unwrap());
    let (target, sure, unsure) = (law(0.3), law(0.8), law(0.5));
    let step = |first: f64, verification: f64| {
        let verification = Passes::new(vec![(1, verification)]).unwrap();
        let mut policy = auto(1, 1, Costs { first, verification, ..flat(0.05) });
        let rng = &mut ChaCha8Rng::seed_from_u64(38);
        live(&mut policy, (&target, &sure), 400, rng);
        let draft = draw(&policy, &unsure, rng as &mut dyn Chance).unwrap();
        let Choices { steps, plain, .. } = policy.reckoning.choices;
        (steps - plain, draft.asked().len(), draft.tree().len() - 1)
    };
    let (as_first, as_verification, dear) = (step(0.3, 0.0), step(0.0, 0.3), step(1.5, 0.0));
    assert!(as_first.0 > 300 && as_verification.0 > 300, "{as_first:?}, {as_verification:?}");
    assert_eq!((as_first.1, as_first.2), (1, 1));
    assert_eq!((as_verification.1, as_verification.2), (1, 0));
    // Where asking takes too long it is not asked, but for a try now and then.
    assert!(dear.0 < 20, "{dear:?}");
}

#[test]
fn good_drafts_make_deep_trees() {
    let mut rng = ChaCha8Rng::seed_from_u64(33);
    let sure = Always(Distribution::new(vec![0.95, 0.05]).unwrap());
    let mut policy = auto(4, 16, flat(0.1));
    live(&mut policy, (&sure, &sure), 300, &mut rng);
    assert!(
        policy.reckoning.choices.depth > 5.0 && policy.reckoning.choices.gain() > 2.5,
        "{:?}",
        policy.reckoning.choices
    );
    // A draft as dear as the target gains nothing.
    let mut policy = auto(4, 16, flat(1.2));
    live(&mut policy, (&sure, &sure), 300, &mut rng);
    assert!(policy.reckoning.choices.gain() > 0.95, "{:?}", policy.reckoning.choices);
}

/// A copy of the target is known to be good before its first token is accepted.
#[test]
fn a_good_guess_makes_the_first_tree_deep_and_a_bad_one_is_not_believed() {
    let mut rng = ChaCha8Rng::seed_from_u64(36);
    let law = Always(Distribution::new(vec![0.5, 0.5]).unwrap());
    let mut after = |rejected: f64, steps: usize| {
        let guess = Guess { rejected, unsure: 0.5 };
        let mut policy =
            auto(1, 16, Costs { guess, ..costs(&[(1, 1.0), (4, 1.1), (16, 3.0)], 0.3) });
        live(&mut policy, (&law, &law), steps, &mut rng);
        policy.reckoning.choices
    };
    let (good, usual, bad) = (after(0.02, 1), after(0.5, 1), after(1.0, 200));
    assert!(good.depth >= 3.0 && good.depth > usual.depth, "{good:?}, {usual:?}");
    assert!(bad.depth >= 2.0 && bad.gain() > 1.2, "{bad:?}");
}

/// What time is worth at the beginning: with the past alone, nothing but plain steps, a tree would
/// be as deep as it may be.
#[test]
fn the_first_tree_is_as_deep_as_the_later_ones() {
    let mut rng = ChaCha8Rng::seed_from_u64(37);
    let law = Always(Distribution::new(vec![0.5, 0.5]).unwrap());
    let guess = Guess { rejected: 0.02, unsure: 0.5 };
    let dear = costs(&[(1, 1.0), (4, 1.0), (5, 1.6), (8, 2.2), (16, 4.6)], 0.3);
    let mut policy = auto(1, 16, Costs { guess, ..dear });
    live(&mut policy, (&law, &law), 1, &mut rng);
    assert_eq!(policy.reckoning.choices.depth, 3.0, "{:?}", policy.reckoning.choices);
    live(&mut policy, (&law, &law), 100, &mut rng);
    assert!((policy.reckoning.choices.depth - 3.0).abs() < 0.5, "{:?}", policy.reckoning.choices);
}

/// Several paths help here, but not where verifying them takes longer than they save.
#[test]
fn paths_are_worth_their_verification() {
    let unsure = Always(Distribution::new(vec![0.5, 0.5]).unwrap());
    let other = Always(Distribution::new(vec![0.8, 0.2]).unwrap());
    let by_paths = |verification: &[(usize, f64)]| {
        let mut rng = ChaCha8Rng::seed_from_u64(34);
        let verification = Passes::new(verification.to_vec()).unwrap();
        let mut policy = auto(4, 4, Costs { verification, ..flat(0.1) });
        live(&mut policy, (&other, &unsure), 300, &mut rng);
        policy.reckoning.choices
    };
    let (free, dear) = (by_paths(&[(1, 0.0)]), by_paths(&[(1, 0.0), (2, 0.5), (4, 1.0)]));
    assert!(free.by_paths.iter().skip(1).sum::<u64>() > 200, "{free:?}");
    assert!(dear.by_paths[0] > 250 && dear.gain() < free.gain() && dear.gain() > 1.0, "{dear:?}");
    let nothing_pays = by_paths(&[(1, 3.0)]);
    assert!(nothing_pays.plain > 250 && nothing_pays.gain() > 0.9, "{nothing_pays:?}");
}

/// As texts join, a row costs more, and trees give way; as they leave, they come back. The costs
/// are a staircase whose first step is wide enough for one text's tree, and not for those of eight.
#[test]
fn trees_give_way_to_neighbours() {
    let mut rng = ChaCha8Rng::seed_from_u64(35);
    let sure = Always(Distribution::new(vec![0.9, 0.1]).unwrap());
    let stairs = [(1, 1.0), (8, 1.05), (9, 1.9), (16, 2.0), (32, 4.0), (64, 8.0)];
    let mut policy = auto(4, 16, costs(&stairs, 0.1));
    let mut tree = |policy: &mut Auto, texts: usize| {
        policy.begin_step(&StepContext { batch_size: texts, context_length: 0 });
        live(policy, (&sure, &sure), 100, &mut rng);
        let before = policy.reckoning.choices.clone();
        live(policy, (&sure, &sure), 200, &mut rng);
        (
            policy.reckoning.choices.plain - before.plain,
            policy.reckoning.choices.by_paths.iter().sum::<u64>() > 0,
        )
    };
    assert_eq!(tree(&mut policy, 1), (0, true));
    let (plain, _) = tree(&mut policy, 32);
    assert!(plain > 190, "{plain}");
    assert_eq!(tree(&mut policy, 1).0, 0);
    // A new text among many drafts nothing from the beginning.
    let mut new = auto(4, 16, costs(&stairs, 0.1));
    new.begin_step(&StepContext { batch_size: 32, context_length: 0 });
    assert_eq!(new.plan, Plan::Plain);
}

/// A copy of the target that takes a twentieth of its pass, and as much more with every token:
/// behind a long text drafting hardly pays.
#[test]
fn trees_give_way_to_long_texts() {
    let mut rng = ChaCha8Rng::seed_from_u64(36);
    let target = Always(Distribution::new(vec![0.7, 0.3]).unwrap());
    let draft = Always(Distribution::new(vec![0.6, 0.4]).unwrap());
    let costs = Costs { longer: longer(128, 1e-3, 1e-3), ..costs(&[(1, 1.0), (8, 1.1)], 0.05) };
    let mut depth = |tokens: usize| {
        let mut policy = auto(1, 16, costs.clone());
        policy.begin_step(&StepContext { batch_size: 1, context_length: tokens });
        live(&mut policy, (&target, &draft), 300, &mut rng);
        let choices = policy.reckoning.choices;
        choices.depth * (choices.steps - choices.plain) as f64 / choices.steps as f64
    };
    let (short, long) = (depth(128), depth(20_000));
    assert!(short > 1.5 && long < 0.1, "{short}, {long}");
}

/// At temperature 0 a law says nothing of how sure its maker was; what is kept beside it does, and
/// is gone by.
#[test]
fn cold_drafts_are_judged_by_how_sure_they_were() {
    let cold = |sure: f32| {
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        Distribution::drafted(None, 2, None, &[sure.ln(), (1.0 - sure).ln()], &sampling).unwrap()
    };
    let (sure, unsure) = (cold(0.95), cold(0.55));
    let mut policy = auto(4, 4, costs(&[(1, 1.0), (2, 1.3), (64, 20.0)], 0.02));
    for law in [&sure, &unsure].repeat(30) {
        policy.expected.see(law);
        policy.expected.observe(1.0 - law.sureness(), 1, law.sureness() < 0.6);
        policy.remember(1.0 - law.sureness());
    }
    (policy.plan, _) = policy.plan();
    // All its draws would be one token.
    assert_eq!(policy.plan, Plan::Paths(1));
    let draft = Draft::new();
    let draws = |law| policy.draws(&draft.path(DraftTree::ROOT), law).is_some();
    assert_eq!((draws(&sure), draws(&unsure)), (true, false));
    assert_eq!(sure, unsure, "their laws are equal");
}

/// The same law everywhere.
struct Always(Distribution);

impl ContextLaws for Always {
    fn law(&self, _: &[crate::Token]) -> Result<&Distribution> {
        Ok(&self.0)
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    for wrong in ["auto:0", "auto:5", "auto:2,17", "auto:x", "auto:1,2,3"] {
        let built = wrong.parse::<PolicyKind>().and_then(|kind| kind.build().map(|_| ()));
        assert!(built.unwrap_err().to_string().contains("auto"), "{wrong}");
    }
    assert_eq!("auto:2".parse::<PolicyKind>().unwrap().to_string(), "auto:2,16");
    assert!(Passes::new(vec![(2, 1.0)]).is_err() && Passes::new(vec![(1, f64::NAN)]).is_err());
    let mut free = Settings::default();
    free.costs.target = Passes::new(vec![(1, 0.0)]).unwrap();
    assert!(free.build().is_err());
    for rejected in [-0.1, 1.1, f64::NAN] {
        let costs = Costs { guess: Guess { rejected, unsure: 0.5 }, ..Costs::default() };
        let refused = Settings { costs, ..Settings::default() }.build().map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("two numbers from 0 to 1"), "{refused}");
    }
}
