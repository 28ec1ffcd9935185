//! Traces are read as recorded, and verifiers give the same results on them as in a live
//! measurement.

use polydraft::PolicyKind;
use polydraft::conformance::tree::{drafts, exact};
use polydraft_reference::comparison::{Comparison, Sample, exact_for};
use polydraft_reference::trace::{Header, Recording, Replay, Shard, Trace, in_rounds, replay};

use crate::common::{header, pair, positions, record, seed, verifiers};

const TREES: [&str; 9] = [
    "paths:8,3",
    "paths:1,4",
    "delayed:1,3,2",
    "3,2",
    "3,2/without-replacement",
    "2,1/top-k",
    "2,2/hub",
    "budget:2,1.5",
    "stop-below:0.5,paths:3,3",
];

#[test]
fn drafts_and_distributions_are_the_same_to_the_last_bit() {
    for tree in TREES {
        for vocabulary in [2, 7] {
            let folder = tempfile::tempdir().unwrap();
            let header = header(tree, vocabulary, 1.0);
            record(folder.path(), &header);
            let trace = Trace::open(folder.path()).unwrap();
            assert_eq!((trace.header(), trace.len(), trace.positions()), (&header, 3, 18));
            for prompt in 0..3 {
                let shard = trace.shard(prompt).unwrap();
                assert_eq!(
                    (shard.prompt(), shard.left_out()),
                    (&crate::common::PROMPTS[prompt][..], 0.0)
                );
                for (number, text) in shard.sequences().iter().enumerate() {
                    assert_eq!(text.seed, seed(prompt, number as u32));
                    let mut next = text.positions.clone();
                    positions(&header, prompt, number as u32, &mut |at, draft, target| {
                        let read = shard.position(next.next().unwrap()).unwrap();
                        assert_eq!(
                            (read.at, read.draft.tree(), read.draft.form()),
                            (at, draft.tree(), draft.form())
                        );
                        for node in 0..draft.tree().len() {
                            assert_eq!(
                                read.draft.distribution(node),
                                draft.distribution(node),
                                "{tree}"
                            );
                            assert_eq!(read.draft.draws(node), draft.draws(node));
                            assert_eq!(
                                read.draft.has_fresh_draws(node),
                                draft.has_fresh_draws(node)
                            );
                            assert_eq!(&read.target[node], target.target(node).unwrap());
                        }
                    });
                    assert!(next.next().is_none());
                }
            }
        }
    }
}

fn replayed(trace: &Trace, one: &Replay) -> Vec<Sample> {
    let read =
        |number| replay(&trace.shard(number).unwrap(), std::slice::from_ref(one), number).unwrap();
    in_rounds(&(0..trace.len()).map(|number| read(number).swap_remove(0)).collect::<Vec<_>>())
}

/// Results are bitwise equal to those of verifiers on the same live drafts, also for subsamples.
#[test]
fn verifiers_give_the_same_results_as_live() {
    for (tree, requested, paths) in TREES.map(|tree| (tree, tree, None)).into_iter().chain([
        ("paths:8,3", "paths:3,3", Some(3)),
        ("stop-below:0.5,paths:4,3", "stop-below:0.5,paths:2,3", Some(2)),
    ]) {
        let folder = tempfile::tempdir().unwrap();
        let header = header(tree, 3, 1.0);
        record(folder.path(), &header);
        let requested: PolicyKind = requested.parse().unwrap();
        let one = Replay::new(&header.tree, &requested, &verifiers()).unwrap();
        let form = requested.build().unwrap().form();
        assert_eq!(one.verifiers(), exact_for(&verifiers(), &form).unwrap());
        let live = |prompt: usize, text: u32| {
            let seed = seed(prompt, text);
            let mut comparison = Comparison::new(one.verifiers(), &form, paths, seed).unwrap();
            positions(&header, prompt, text, &mut |_, draft, target| {
                comparison.look(draft, target).unwrap()
            });
            comparison.sample(prompt).unwrap()
        };
        let expected: Vec<Sample> = (0..2)
            .flat_map(|text| (0..3).map(move |prompt| (prompt, text)))
            .map(|(p, t)| live(p, t))
            .collect();
        assert_eq!(replayed(&Trace::open(folder.path()).unwrap(), &one), expected, "{tree}");
    }
}

/// The mean over drafts extracted from the recorded tree equals the value of the smaller tree
/// itself.
#[test]
fn subsampled_draft_has_the_distribution_of_the_smaller_tree() {
    const SEEDS: u64 = 24;
    let mut checked = 0;
    for (tree, requested) in [
        ("paths:4,2", "paths:2,2"),
        ("paths:3,2", "paths:2,1"),
        ("paths:3,2", "2,1"),
        ("paths:3,2", "stop-below:0.8,paths:2,2"),
        ("delayed:1,3,1", "delayed:1,2,1"),
        ("3,2", "2,1"),
        ("3,2", "paths:2,2"),
        ("3,1/without-replacement", "2,1/without-replacement"),
        ("3,1/top-k", "2,1/top-k"),
        ("stop-below:0.6,paths:3,2", "stop-below:0.8,paths:2,2"),
    ] {
        let requested: PolicyKind = requested.parse().unwrap();
        let vocabulary = if tree.contains('/') { 3 } else { 2 };
        let header = Header { sequences: 1, ..header(tree, vocabulary, 1.0) };
        let pair = pair(&header, 0);
        let names = ["nested-priority", "traversal", "specinfer", "block", "walk:naive"];
        let verifiers = names.map(|name| polydraft_reference::verifier(name).unwrap());
        let one = Replay::new(&header.tree, &requested, &verifiers).unwrap();
        let policy = header.tree.build().unwrap();
        let mut sums = vec![Vec::new(); one.verifiers().len()];
        for seed in 0..SEEDS {
            let mut means = vec![0.0; sums.len()];
            for (number, (probability, draft)) in
                drafts(policy.as_ref(), &pair.draft).unwrap().into_iter().enumerate()
            {
                let target =
                    polydraft::conformance::tree::NodeTargets::new(draft.tree(), &pair.target);
                let mut recording = Recording::new(&header, &[0]);
                recording.begin(seed.wrapping_mul(1_000_003) + number as u64);
                recording.position(0, &draft, &target).unwrap();
                recording.end(&[0]);
                let shard =
                    Shard::read("x", &recording.file(0, "", &"".into()).unwrap(), vocabulary)
                        .unwrap();
                let samples = replay(&shard, std::slice::from_ref(&one), 0).unwrap();
                let tokens = &samples[0][0].as_ref().unwrap().tokens;
                means
                    .iter_mut()
                    .zip(tokens)
                    .for_each(|(mean, tokens)| *mean += probability * tokens);
            }
            sums.iter_mut().zip(means).for_each(|(all, mean)| all.push(mean));
        }
        for (kind, found) in one.verifiers().iter().zip(sums) {
            // For a single-path verifier, each path is evaluated on its own.
            let own = match kind.build().unwrap().supports(&requested.build().unwrap().form()) {
                Ok(()) => requested.clone(),
                Err(_) => PolicyKind::chain(requested.build().unwrap().depth()),
            };
            if matches!(requested, PolicyKind::StopBelow(_)) && own != requested {
                continue;
            }
            let (mut verifier, policy) = (kind.build().unwrap(), own.build().unwrap());
            let truth =
                exact(verifier.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ());
            let truth = truth.unwrap().block_efficiency;
            let mean = found.iter().sum::<f64>() / SEEDS as f64;
            let squares: f64 = found.iter().map(|one| (one - mean).powi(2)).sum();
            let error = (squares / (SEEDS * (SEEDS - 1)) as f64).sqrt();
            assert!(
                (mean - truth).abs() < 5.0 * error + 1e-9,
                "{tree} {requested} {kind}: {mean} {truth} {error}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 30, "{checked}");
}

/// A truncated distribution changes results little, and the omitted mass is reported.
#[test]
fn cut_distributions_are_near() {
    let (exact, cut) = (header("paths:3,2", 6, 1.0), header("paths:3,2", 6, 0.9));
    let mean = |header: &Header| {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), header);
        let trace = Trace::open(folder.path()).unwrap();
        let one = Replay::new(&header.tree, &header.tree, &verifiers()).unwrap();
        let samples = replayed(&trace, &one);
        let left_out =
            (0..3).map(|number| trace.shard(number).unwrap().left_out()).fold(0.0, f64::max);
        (
            samples.iter().map(|sample| sample.tokens[0]).sum::<f64>() / samples.len() as f64,
            left_out,
        )
    };
    let ((exact, nothing), (cut, left_out)) = (mean(&exact), mean(&cut));
    assert_eq!(nothing, 0.0);
    assert!(left_out > 0.0 && left_out <= 0.1, "{left_out}");
    assert!(exact != cut && (exact - cut).abs() < 0.2, "{exact} {cut}");
}
