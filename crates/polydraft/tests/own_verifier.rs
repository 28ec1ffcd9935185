//! Tests the verifier of the `own_verifier` example with the same registry macro and conformance
//! runner as the library's verifiers: adding one takes a file and one line.

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
fn example_verifier_is_exact_on_supported_policies() {
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
fn example_verifier_rejects_unsupported_drafts() {
    let mut verifier = OwnVerifier::named("random-draft").unwrap().build().unwrap();
    let policy = PolicyKind::levels(&[2, 2], Drafting::WithoutReplacement).build().unwrap();
    let pair = pairs((3, 2, 0, 1), 32).next().unwrap();
    let result = exact(verifier.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ());
    assert!(result.unwrap_err().to_string().contains("expected i.i.d. draws"));
    // Also without a preceding call of `supports`.
    for (_, draft) in drafts(policy.as_ref(), &pair.draft).unwrap() {
        let distributions = NodeTargets::new(draft.tree(), &pair.target);
        let decisions = enumerate(|rng| verifier.verify(&draft, &distributions, rng));
        assert!(decisions.into_iter().all(|(_, outcome)| outcome.is_err()));
    }
}

/// The serialized form contains the name and the settings.
#[test]
fn example_verifier_round_trips_as_json() {
    let kind = OwnVerifier::named("random-draft").unwrap();
    let record = serde_json::to_string(&kind).unwrap();
    assert_eq!(record, r#"{"verifier":"random-draft"}"#);
    assert_eq!(serde_json::from_str::<OwnVerifier>(&record).unwrap(), kind);
}
