//! Checks that the conformance runner detects wrong verifiers and policies, each with one planted
//! fault.

mod common;

use std::sync::Mutex;

use common::{TOLERANCE, named, pairs, supports};
use polydraft::conformance::tree::{exact, random_pair};
use polydraft::gumbel::{self, WithSharedRandomness};
use polydraft::{
    Distribution, Draft, DraftTree, Drafting, Draws, Error, Form, Growth, Outcome, Path, Policy,
    PolicyKind, RandomSource, Result, TargetDistributions, Token, Verifier, VerifierKind,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Planted faults of verifiers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Emits the path of the first draw, but verifies against the distribution of the selection.
    WrongPath,
    /// Selects the first token that is most likely under the target, and verifies as if it had been
    /// drawn alone.
    Biased,
    /// Emits a token that the target never emits, once in 10^7.
    EmitsExcludedToken,
    /// After a rejection, draws from the target instead of the residual.
    WrongResidual,
    /// Makes a decision with NaN weights, for drafts that start with token 0.
    NanWeights,
}

struct Faulty(Fault);

impl Verifier for Faulty {
    fn supports(&self, _: &Form) -> Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        let tree = draft.tree();
        let probs = target.target(DraftTree::ROOT)?;
        let mut outcome = named("nested-priority").build()?.verify(draft, target, rng)?;
        match self.0 {
            Fault::WrongPath => {
                let first = tree.children(0).next().unwrap_or(0);
                if outcome.accepted.first().is_some_and(|node| *node != first) {
                    outcome = Outcome { accepted: vec![], token: probs.sample(rng) };
                }
            }
            Fault::Biased => {
                let likely = |node: &usize| probs.probability(tree.token(*node));
                let first =
                    tree.children(0).max_by(|a, b| likely(a).total_cmp(&likely(b))).unwrap_or(0);
                let (q, token) = (draft.drawn_from(0)?, tree.token(first));
                outcome = match rng.coin(probs.probability(token) / q.probability(token)) {
                    true => {
                        Outcome { accepted: vec![first], token: target.target(first)?.sample(rng) }
                    }
                    false => {
                        Outcome { accepted: vec![], token: probs.sample_residual(1.0, q, 1.0, rng) }
                    }
                };
            }
            Fault::EmitsExcludedToken => {
                if rng.coin(1e-7) {
                    let token =
                        (0..probs.vocabulary() as Token).find(|t| probs.probability(*t) == 0.0);
                    outcome = Outcome { accepted: vec![], token: token.unwrap_or(0) };
                }
            }
            Fault::WrongResidual => {
                let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
                outcome.token = target.target(end)?.sample(rng);
            }
            Fault::NanWeights => {
                if tree.children(0).next().is_some_and(|child| tree.token(child) == 0) {
                    rng.pick(&[f64::NAN, 1.0]);
                }
            }
        }
        Ok(outcome)
    }
}

#[test]
fn detects_planted_verifier_faults() {
    let mut rng = ChaCha8Rng::seed_from_u64(19);
    let pair = random_pair(3, 2, 0.3, false, &mut rng).unwrap();
    let policy = PolicyKind::paths(2, 2).build().unwrap();
    let found = |verifier: &mut dyn Verifier| {
        exact(verifier, policy.as_ref(), &pair.target, &pair.draft, &mut |_| ()).unwrap().deviation
    };
    assert!(found(named("nested-priority").build().unwrap().as_mut()) < TOLERANCE);
    for fault in [Fault::WrongPath, Fault::Biased, Fault::EmitsExcludedToken, Fault::WrongResidual]
    {
        assert!(found(&mut Faulty(fault)) > 10.0 * TOLERANCE, "{fault:?}");
    }
    assert!(found(&mut Faulty(Fault::WrongResidual)) > 1e-3);
    assert!(found(&mut Faulty(Fault::NanWeights)).is_nan());
}

/// Planted dependencies of policies on draws elsewhere in the tree.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Peek {
    /// Continues only at the first node of a level for which it is called: this depends on the
    /// number of other draws.
    FirstCalled,
    /// Continues only below the smallest token id among the nodes of this tree it was called for.
    SmallestSeen,
    /// Continues only the path that was drawn first: ranks may only be used with fresh draws.
    FirstPath,
}

struct Peeking {
    peek: Peek,
    /// First tokens of the nodes seen in the current tree, which the signature does not provide.
    seen: Mutex<Vec<Token>>,
}

impl Policy for Peeking {
    fn draws(&self, path: &Path, _: &Distribution) -> Option<Growth> {
        let mut seen = self.seen.lock().unwrap();
        if path.depth() == 0 {
            seen.clear();
            return Some(Growth::Fresh(Draws::iid(2)));
        }
        let token = path.tokens()[0];
        let others = seen.clone();
        seen.push(token);
        match self.peek {
            Peek::FirstCalled => others.is_empty().then_some(Growth::Continue),
            Peek::FirstPath => (path.ranks() == [0]).then_some(Growth::Continue),
            Peek::SmallestSeen => {
                others.iter().all(|other| token < *other).then_some(Growth::Continue)
            }
        }
    }

    fn depth(&self) -> usize {
        2
    }

    fn form(&self) -> Form {
        Form::paths(2)
    }
}

/// A policy that depends on draws elsewhere in the tree is detected, by some verifier on some pair.
#[test]
fn detects_policies_that_depend_on_other_draws() {
    for peek in [Peek::FirstCalled, Peek::SmallestSeen, Peek::FirstPath] {
        let policy = Peeking { peek, seen: Mutex::default() };
        let mut worst = 0.0_f64;
        for pair in pairs((3, 2, 0, 12), 21) {
            for kind in VerifierKind::all() {
                let mut verifier = kind.build().unwrap();
                if verifier.supports(&policy.form()).is_ok() {
                    let exact =
                        exact(verifier.as_mut(), &policy, &pair.target, &pair.draft, &mut |_| ());
                    worst = worst.max(exact.unwrap().deviation);
                }
            }
        }
        println!("{peek:?}: {worst:e}");
        assert!(worst > 1e3 * TOLERANCE, "{peek:?}: {worst:e}");
    }
}

/// Verifiers reject drafts for which they are not exact, however they were made.
#[test]
fn verifiers_reject_unsupported_drafts() {
    let levels = |counts: &[usize], drafting| PolicyKind::levels(counts, drafting);
    for (name, policy) in [
        ("token", PolicyKind::paths(2, 2)),
        ("block", PolicyKind::paths(2, 1)),
        ("walk:single", PolicyKind::paths(2, 1)),
        ("greedy-block", levels(&[2, 2], Drafting::Iid)),
        ("greedy-block", "delayed:1,2,1".parse().unwrap()),
        ("nested-priority", levels(&[2], Drafting::WithoutReplacement)),
        ("priority-block", levels(&[2], Drafting::WithoutReplacement)),
        ("spectr", levels(&[2], Drafting::WithoutReplacement)),
        ("traversal", levels(&[2], Drafting::TopK)),
        ("nested-priority", levels(&[1], Drafting::TopK)),
        ("nested-priority", "distinct:2,2".parse().unwrap()),
        ("spectr", "distinct:2,2".parse().unwrap()),
        ("traversal", "distinct:2,2".parse().unwrap()),
    ] {
        assert!(!supports(&named(name), &policy), "{name} {policy}");
        // Verifies the draft directly: only the draft itself describes its form.
        let policy = policy.build().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let pair = random_pair(3, policy.depth(), 0.3, false, &mut rng).unwrap();
        let draft =
            polydraft::conformance::tree::draw(policy.as_ref(), &pair.draft, &mut rng).unwrap();
        let distributions =
            polydraft::conformance::tree::NodeTargets::new(draft.tree(), &pair.target);
        let error =
            named(name).build().unwrap().verify(&draft, &distributions, &mut rng).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{name}: {error}");
    }
}

#[test]
fn policies_reject_settings_out_of_range() {
    for tree in [
        "paths:0,3",
        "paths:2,0",
        "levels:2,0",
        "levels:2/distinct",
        "budget:0.5",
        "fixed:0,2",
        "fixed:0,0/distinct",
        "delayed:0,2,2",
        "stop-below:2,paths:2,2",
        "stop-below:0.5,stop-below:0.5,paths:1,1",
        "paths:1024,256",
        "1000,1000,1000",
    ] {
        assert!(tree.parse::<PolicyKind>().unwrap().build().is_err(), "{tree}");
    }
}

#[test]
fn policies_reject_malformed_names() {
    for tree in [
        "",
        "paths:",
        "paths:2",
        "paths:a,b",
        "nonsense",
        "budget:x",
        "3,x",
        "delayed:1,2",
        "levels:2/nonsense",
    ] {
        assert!(tree.parse::<PolicyKind>().is_err(), "{tree}");
    }
}

#[test]
fn unknown_verifiers_are_rejected_with_the_known_names() {
    assert!("walk:nonsense".parse::<VerifierKind>().unwrap_err().to_string().contains("k-seq"));
    assert!("nested".parse::<VerifierKind>().unwrap_err().to_string().contains("nested-priority"));
}

#[test]
fn verifiers_round_trip_by_name_and_json() {
    for kind in VerifierKind::all() {
        assert_eq!(kind.to_string().parse::<VerifierKind>().unwrap(), kind);
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<VerifierKind>(&json).unwrap(), kind, "{json}");
    }
    let settings = polydraft::verify::nested_priority::Settings {
        proportional_below: 0.25,
        ..Default::default()
    };
    let kind = VerifierKind::NestedPriority(settings);
    let json = serde_json::to_value(&kind).unwrap();
    assert_eq!(
        (json["verifier"].as_str(), json["proportional_below"].as_f64()),
        (Some("nested-priority"), Some(0.25))
    );
    assert_eq!(serde_json::from_value::<VerifierKind>(json).unwrap(), kind);
}

#[test]
fn policies_round_trip_by_name_and_json() {
    for policy in PolicyKind::all() {
        assert_eq!(policy.to_string().parse::<PolicyKind>().unwrap(), policy);
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<PolicyKind>(&json).unwrap(), policy, "{json}");
    }
    assert_eq!(
        "3,2,1".parse::<PolicyKind>().unwrap(),
        PolicyKind::levels(&[3, 2, 1], Drafting::Iid)
    );
}

/// Decides at every depth by the arrival times of the first token, so later tokens depend on
/// earlier ones.
struct ReusedTimes;

impl Verifier for ReusedTimes {
    fn supports(&self, _: &Form) -> Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        let (mut accepted, mut node) = (Vec::new(), DraftTree::ROOT);
        loop {
            let token = gumbel::sample(target.target(node)?, 0, rng);
            match draft.tree().child(node, token) {
                Some(child) => node = child,
                None => return Ok(Outcome { accepted, token }),
            }
            accepted.push(node);
        }
    }

    fn uses_shared_randomness(&self) -> bool {
        true
    }
}

#[test]
fn detects_reuse_of_arrival_times_at_several_depths() {
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let pair = random_pair(3, 2, 0.3, false, &mut rng).unwrap();
    let policy = PolicyKind::paths(2, 2).build().unwrap();
    let found = |verifier: &mut dyn Verifier| {
        exact(verifier, policy.as_ref(), &pair.target, &pair.draft, &mut |_| ()).unwrap().deviation
    };
    assert!(found(named("invariant").build().unwrap().as_mut()) < TOLERANCE);
    assert!(found(&mut ReusedTimes) > 1e-2);
}

/// Verifiers that do not share the randomness of a draft reject it.
#[test]
fn rejects_drafts_by_shared_randomness_unless_the_verifier_shares_it() {
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    let probs = Distribution::new(vec![0.5, 0.3, 0.2]).unwrap();
    for count in [1, 2] {
        let mut shared_randomness = gumbel::shared_randomness(&mut rng);
        let mut draft = Draft::new();
        let mut rng = WithSharedRandomness::new(&mut rng, shared_randomness.as_mut(), 0);
        draft.draw(0, probs.clone(), Growth::Fresh(Draws::iid(count)), &mut rng).unwrap();
        let target = vec![probs.clone(); draft.tree().len()];
        for kind in VerifierKind::all() {
            let verified = kind.build().unwrap().verify(&draft, &target, &mut rng);
            match kind.to_string().as_str() {
                "invariant" => assert_eq!(verified.unwrap().accepted.len(), 1),
                _ => assert!(
                    verified.unwrap_err().to_string().contains("shared randomness"),
                    "{kind}"
                ),
            }
        }
    }
}

/// Tokens of two vocabularies are not compared, which would silently change the distribution.
#[test]
fn rejects_drafts_over_another_vocabulary_size() {
    let mut rng = ChaCha8Rng::seed_from_u64(22);
    let uniform = |size: usize| Distribution::new(vec![1.0 / size as f64; size]).unwrap();
    for kind in VerifierKind::all() {
        for (target_size, draft_size) in [(10, 7), (7, 10)] {
            for paths in [1, 2] {
                let mut draft = Draft::new();
                draft
                    .draw(0, uniform(draft_size), Growth::Fresh(Draws::iid(paths)), &mut rng)
                    .unwrap();
                let mut verifier = kind.build().unwrap();
                if verifier.supports(draft.form()).is_err() {
                    continue;
                }
                let target = vec![uniform(target_size); draft.tree().len()];
                let error = verifier.verify(&draft, &target, &mut rng).unwrap_err().to_string();
                assert!(
                    error.contains(&format!("{target_size} as the target has")),
                    "{kind}: {error}"
                );
            }
        }
    }
}
