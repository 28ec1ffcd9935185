//! What it takes to add a verifier: its file, and one line. Here is the one of the example, through
//! the same registry macro and the same runner as those of the library.

#[path = "../examples/own_verifier/random_draft.rs"]
mod random_draft;
#[path = "../examples/own_verifier/registry.rs"]
mod registry;

mod common;

use common::{TOLERANCE, pairs};
use polydraft::conformance::tree::{NodeTargets, drafts, exact};
use polydraft::{Drafting, PolicyKind, enumerate};
use registry::OwnVerifier;

#[test]
fn the_examples_verifier_is_exact_wherever_it_says_so() {
    let mut combinations = 0;
    for kind in OwnVerifier::all() {
        let mut verifier = kind.build().unwrap();
        for policy in PolicyKind::all().into_iter().filter(|policy| policy.max_draws(2) <= 8.0) {
            let grown = policy.build().unwrap();
            if verifier.supports(&grown.form()).is_err() {
                continue;
            }
            for pair in pairs((2, grown.depth(), 0, 6), 31) {
                let found = exact(
                    verifier.as_mut(),
                    grown.as_ref(),
                    &pair.target,
                    &pair.draft,
                    &mut |_| (),
                )
                .unwrap();
                assert!(found.deviation <= TOLERANCE, "{}, {policy}: {found:?}", kind.name());
                combinations += 1;
            }
        }
    }
    assert!(combinations >= 12, "{combinations}");
}

#[test]
fn it_refuses_what_it_is_not_made_for() {
    let mut verifier = OwnVerifier::named("random-draft").unwrap().build().unwrap();
    let policy = PolicyKind::levels(&[2, 2], Drafting::WithoutReplacement).build().unwrap();
    let pair = pairs((3, 2, 0, 1), 32).next().unwrap();
    let refused = exact(verifier.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ());
    assert!(refused.unwrap_err().to_string().contains("expected i.i.d. draws"));
    // Also where it is given the draft without having been asked.
    for (_, draft) in drafts(policy.as_ref(), &pair.draft).unwrap() {
        let distributions = NodeTargets::new(draft.tree(), &pair.target);
        let decisions = enumerate(|rng| verifier.verify(&draft, &distributions, rng));
        assert!(decisions.into_iter().all(|(_, outcome)| outcome.is_err()));
    }
}

/// Its settings are in the record, under its name.
#[test]
fn it_has_a_record() {
    let kind = OwnVerifier::named("random-draft").unwrap();
    let record = serde_json::to_string(&kind).unwrap();
    assert_eq!(record, r#"{"verifier":"random-draft"}"#);
    assert_eq!(serde_json::from_str::<OwnVerifier>(&record).unwrap(), kind);
}
