//! Pooled layers by linear programs: exact for every way of drawing, and what the fast form loses.

use polydraft::conformance::case_count;
use polydraft::conformance::tree::{Exact, Pair, exact, random_pair};
use polydraft::{PolicyKind, Verifier, VerifierKind};
use polydraft_reference::pooled::PooledProgram;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn run(verifier: &mut dyn Verifier, policy: &PolicyKind, pair: &Pair) -> Exact {
    let policy = policy.build().unwrap();
    exact(verifier, policy.as_ref(), &pair.target, &pair.draft, &mut |_| ()).unwrap()
}

/// Solvers do not take coefficients of such different sizes.
fn is_solvable(pair: &Pair) -> bool {
    let mut all = pair.target.values().chain(pair.draft.values());
    all.all(|probs| probs.support().all(|(_, p)| p > 1e-9))
}

#[test]
fn programs_are_exact_for_every_way_of_drawing() {
    for tree in [
        "paths:2,2",
        "levels:2,1/iid",
        "levels:2,2/without-replacement",
        "levels:2,1/hub",
        "levels:2,1/greedy",
        "levels:2,1/top-k",
        "distinct:2,2",
        "fixed:0,0,1",
    ] {
        let policy: PolicyKind = tree.parse().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(41);
        let pairs = (0..).map(|index| {
            random_pair(2 + index % 2, 2, [0.0, 0.5][index / 2 % 2], index % 3 == 2, &mut rng)
                .unwrap()
        });
        for pair in pairs.filter(is_solvable).take(case_count(4)) {
            let found = run(&mut PooledProgram::default(), &policy, &pair);
            assert!(found.deviation < 1e-10, "{tree}: {}", found.deviation);
        }
    }
}

/// Of all flows that pass on as much as possible, those of the race are not behind: they spread
/// over the nodes, where a program's are corners.
#[test]
fn races_lose_little_against_programs() {
    for (tree, count) in [
        ("levels:2,1/without-replacement", 8),
        ("levels:2,2/without-replacement", 2),
        ("paths:2,2", 6),
    ] {
        let policy: PolicyKind = tree.parse().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(42);
        let pairs =
            (0..).map(|index| random_pair(3, 2, [0.0, 0.5][index % 2], false, &mut rng).unwrap());
        let gains: Vec<f64> = pairs
            .filter(is_solvable)
            .take(count)
            .map(|pair| {
                let mut fast = "pooled".parse::<VerifierKind>().unwrap().build().unwrap();
                let [fast, program] =
                    [fast.as_mut(), &mut PooledProgram::default() as &mut dyn Verifier]
                        .map(|verifier| run(verifier, &policy, &pair).block_efficiency);
                fast - program
            })
            .collect();
        let mean = gains.iter().sum::<f64>() / gains.len() as f64;
        println!("{tree}: the race has {mean:.4} tokens more in the mean, {gains:.4?}");
        assert!(mean > -2e-3, "{tree}: {mean} in the mean, {gains:?}");
    }
}
