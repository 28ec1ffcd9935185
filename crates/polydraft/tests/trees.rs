//! Exact enumeration of every verifier on trees of every policy that it supports.

mod common;

use common::{SIZES, named, pairs, run, supports};
use polydraft::conformance::case_count;
use polydraft::conformance::tree::{Pair, exact, random_pair};
use polydraft::coupling::priority::{self, Form};
use polydraft::verify::nested_priority::Settings;
use polydraft::{Distribution, Drafting, PolicyKind, VerifierKind};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The pairs on which verifiers with races, which are slow to enumerate, are tried: of every
/// agreement, adversarial ones (odd numbers) and others.
const RACED: [usize; 5] = [1, 8, 15, 22, 29];

#[test]
fn every_verifier_is_exact_on_paths() {
    for size in SIZES {
        let policy = PolicyKind::paths(size.2, size.1);
        let count = case_count(size.3);
        for (number, pair) in pairs((size.0, size.1, size.2, count), 11).enumerate() {
            let fitting = VerifierKind::all().into_iter().filter(|kind| supports(kind, &policy));
            for kind in fitting.filter(|kind| is_fast(kind) || RACED.contains(&number)) {
                run(&kind, &policy, &pair);
            }
        }
    }
}

/// Large vocabularies are pooled; on tiny ones the distribution must be exact too. The same holds
/// for sharing that is proportional from the first or second token on.
#[test]
fn approximate_sharing_keeps_the_distribution_exact() {
    for size in [(3, 2, 2, 20), (2, 3, 3, 2), (4, 1, 3, 30), (2, 4, 2, 3)] {
        let policy = PolicyKind::paths(size.2, size.1);
        for pair in pairs(size, 12) {
            for individual_above in [1e-3, 0.3, 1.0] {
                for proportional_below in [0.0, 0.5, 1.0] {
                    let sharing = priority::Settings {
                        form: Form::Pooled,
                        individual_above,
                        ..Default::default()
                    };
                    let nested = VerifierKind::NestedPriority(Settings {
                        sharing: sharing.clone(),
                        proportional_below,
                    });
                    run(&nested, &policy, &pair);
                    run(&VerifierKind::PriorityBlock(sharing), &policy, &pair);
                }
            }
        }
    }
}

/// Draft tokens so unlikely that the positions of their shares are lost to rounding: the
/// distribution stays exact, whether or not the target has them, at the root or below.
#[test]
fn tiny_draft_probabilities_keep_the_distribution_exact() {
    let mut rng = ChaCha8Rng::seed_from_u64(77);
    for (vocabulary, depth, paths) in
        [(2, 1, 3), (3, 1, 2), (2, 2, 2), (3, 2, 2), (2, 2, 3), (2, 3, 2)]
    {
        let policy = PolicyKind::paths(paths, depth);
        for sliver in [1e-13, 1e-14, 1e-15, 1e-16, 1e-17, 1e-100, 1e-300] {
            let mut pair = random_pair(vocabulary, depth, 0.3, false, &mut rng).unwrap();
            for (sequence, probs) in &mut pair.draft {
                let mut values = probs.to_vec();
                // A different token after every sequence, and the same one after sequences of
                // zeros.
                values[sequence.iter().sum::<u32>() as usize % vocabulary] = sliver;
                let sum: f64 = values.iter().sum();
                *probs = Distribution::new(values.into_iter().map(|value| value / sum).collect())
                    .unwrap();
            }
            for form in [Form::Exact, Form::Pooled] {
                let sharing = priority::Settings { form, ..Default::default() };
                let kind = VerifierKind::NestedPriority(Settings { sharing, ..Default::default() });
                let found = run(&kind, &policy, &pair);
                assert!(found.deviation < 1e-12, "{sliver:e}, {policy}: {found:?}\n{pair:?}");
            }
        }
    }
}

/// Checks which verifiers support which trees, and enumerates every supported combination.
#[test]
fn supported_verifiers_are_exact_on_other_trees() {
    let levels = |counts: &[usize], drafting| PolicyKind::levels(counts, drafting);
    let tree = |text: &str| text.parse::<PolicyKind>().unwrap();
    // Verifiers of independent draws that start below the root.
    let iid = [
        "specinfer",
        "spectr",
        "walk:priority",
        "walk:naive",
        "traversal",
        "priority-block",
        "nested-priority",
        "pooled",
        "walk:race",
    ];
    let paths = &[&iid[..], &["greedy-block"]].concat()[..];
    let chain = &[paths, &["token", "block", "walk:single"]].concat()[..];
    let without = &["specinfer", "walk:naive", "traversal", "pooled", "walk:race"];
    let top = &["walk:naive", "pooled", "walk:race"];
    let hubs = &[&top[..], &["walk:hub"]].concat()[..];
    for (policy, names) in [
        (tree("budget:1.5,1.2"), &iid[..]),
        (levels(&[2, 2], Drafting::Iid), &iid),
        (levels(&[3, 1], Drafting::Iid), &iid),
        (levels(&[1, 2], Drafting::Iid), &iid),
        (levels(&[2, 2], Drafting::WithoutReplacement), without),
        (levels(&[3, 2], Drafting::WithoutReplacement), without),
        (levels(&[2, 2], Drafting::Greedy), hubs),
        (levels(&[2, 2], Drafting::Hub), hubs),
        (levels(&[2, 1, 2], Drafting::TopK), top),
        (tree("fixed:0,0,1,1,2"), without),
        (tree("fixed:0,0,1,1,2/top-k"), top),
        // Shapes that depend on the order of independent draws.
        (tree("fixed:0,0,1/iid"), &iid),
        (tree("fixed:0,0,1,1,2/iid"), &iid),
        (tree("fixed:0,0,0,1/iid"), &iid),
        (tree("fixed:0,0,2,2/iid"), &iid),
        (tree("fixed:0,0/iid"), paths),
        (tree("fixed:0,0,1,1,2/hub"), hubs),
        (tree("fixed:0,0,0,1,2/hub"), hubs),
        (tree("fixed:0,0,1,1,2/greedy"), hubs),
        (tree("fixed:0,0,0,1,3/greedy"), hubs),
        // Not i.i.d.
        (tree("distinct:2,2"), &["specinfer", "walk:naive"]),
        (tree("distinct:3,1"), &["specinfer", "walk:naive"]),
        (tree("stop-below:0.8,distinct:2,2"), &["specinfer", "walk:naive"]),
        (levels(&[1, 1], Drafting::Iid), chain),
        (tree("delayed:1,2,1"), &iid),
        (tree("delayed:1,2,2"), &iid),
        (tree("delayed:2,2,1"), &iid),
        (tree("delayed:1,3,1"), &iid),
        (tree("stop-below:0.7,paths:2,2"), paths),
        (tree("stop-below:0.6,paths:2,3"), paths),
        (tree("stop-below:0.8,paths:3,2"), paths),
        (tree("stop-below:0.75,paths:1,3"), chain),
        (tree("stop-below:0.6,delayed:1,2,2"), &iid),
        (tree("auto:3"), chain),
        (tree("stop-below:0.8,2,2"), &iid),
        (tree("stop-below:0.8,fixed:0,0,1"), without),
    ] {
        let supported: Vec<_> =
            VerifierKind::all().into_iter().filter(|kind| supports(kind, &policy)).collect();
        // The verifier whose output does not depend on the draft.
        let draft_independent = [&"invariant"];
        let mut expected: Vec<VerifierKind> =
            names.iter().chain(draft_independent).map(|name| named(name)).collect();
        expected.sort_by_key(|kind| VerifierKind::all().iter().position(|other| other == kind));
        assert_eq!(supported, expected, "{policy}");
        let depth = policy.build().unwrap().depth();
        for vocabulary in [2, 3] {
            // A peaked distribution allows too many draws to enumerate.
            let budgets = matches!(policy, PolicyKind::Budget(_));
            let pairs = pairs((vocabulary, depth, 0, case_count(8)), 13);
            let pairs = pairs.filter(|pair| !budgets || pair.draft.values().all(is_flat));
            for (number, pair) in pairs.enumerate() {
                for kind in supported.iter().filter(|kind| is_fast(kind) || RACED.contains(&number))
                {
                    run(kind, &policy, &pair);
                }
            }
        }
    }
}

/// Whether a verifier takes microseconds: a race takes hundreds, whatever the vocabulary.
fn is_fast(kind: &VerifierKind) -> bool {
    !matches!(kind.to_string().as_str(), "pooled" | "walk:race")
}

fn is_flat(probs: &Distribution) -> bool {
    probs.support_size() == 1 || probs.support().all(|(_, q)| q > 0.15 && probs.vocabulary() == 2)
}

/// Paths of different drafts, including drafts with disjoint supports.
#[test]
fn verifiers_are_exact_on_paths_of_several_drafts() {
    for (vocabulary, depth, drafts, count) in
        [(2, 1, 3, 40), (3, 2, 2, 30), (2, 3, 2, 20), (2, 2, 3, 12), (4, 2, 2, 6), (3, 1, 1, 10)]
    {
        let policy: PolicyKind = format!("distinct:{drafts},{depth}").parse().unwrap();
        let grown = policy.build().unwrap();
        let size = (vocabulary, depth, 0, drafts * case_count(count));
        let all: Vec<Pair> = pairs(size, 16).collect();
        for group in all.chunks_exact(drafts) {
            // The first pair's target with the drafts of all pairs.
            let tables: Vec<_> = group.iter().map(|pair| pair.draft.clone()).collect();
            let mut most = 0.0_f64;
            for kind in VerifierKind::all().iter().filter(|kind| supports(kind, &policy)) {
                let mut verifier = kind.build().unwrap();
                let target = &group[0].target;
                let found =
                    exact(verifier.as_mut(), grown.as_ref(), target, &tables, &mut |_| ()).unwrap();
                assert!(found.deviation < 1e-10, "{kind} {policy}: {found:?}\n{group:?}");
                most = most.max(found.block_efficiency);
            }
            assert!(most >= 1.0, "{policy}");
        }
        let fewer = all[0].draft.clone();
        let progress = &mut |_| ();
        let mut verifier = named("specinfer").build().unwrap();
        let found =
            exact(verifier.as_mut(), grown.as_ref(), &all[0].target, &vec![fewer], progress);
        assert_eq!(found.is_err(), drafts > 1, "{policy}");
    }
}

/// Smaller trees of policies whose default trees have too many draws to enumerate.
const SMALLER: [&str; 3] = ["auto:3", "budget:1.5,1.2", "stop-below:0.7,paths:2,2"];

/// Iterates over the registries: every verifier on every policy with default or smaller settings
/// that it reports to be exact for.
#[test]
fn every_registered_verifier_is_exact_on_every_registered_policy() {
    for policy in PolicyKind::all() {
        let name = policy.to_string();
        let name = name.split(':').next().unwrap();
        let policy = match policy.max_draws(2) <= 8.0 {
            true => policy,
            false => SMALLER
                .iter()
                .find(|smaller| smaller.starts_with(name))
                .expect(name)
                .parse()
                .unwrap(),
        };
        let depth = policy.build().unwrap().depth();
        let budget = matches!(policy, PolicyKind::Budget(_));
        let mut combinations = 0;
        let is_enumerable = |pair: &Pair| !budget || pair.draft.values().all(is_flat);
        for pair in pairs((2, depth.min(4), 0, case_count(64)), 23)
            .filter(is_enumerable)
            .take(case_count(4))
        {
            for kind in VerifierKind::all().into_iter().filter(|kind| supports(kind, &policy)) {
                run(&kind, &policy, &pair);
                combinations += 1;
            }
        }
        assert!(combinations > 0, "{policy}");
    }
}
