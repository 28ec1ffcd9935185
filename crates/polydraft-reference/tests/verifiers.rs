//! Tree verifiers against what any verifier can reach.

use polydraft::conformance::tree::{ContextLaws, Pair, exact, random_pair};
use polydraft::coupling::priority::{self, shares::Layout};
use polydraft::verify::nested_priority::Settings;
use polydraft::{Shape, VerifierKind};
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn bound(pair: &Pair, vocabulary: usize, depth: usize, paths: usize) -> f64 {
    let target = |text: &[u32]| pair.target.law(text).cloned();
    let draft = |text: &[u32]| pair.draft.law(text).cloned();
    let problem = PathProblem { vocabulary, depth, paths, target: &target, draft: &draft };
    multi_path_optimum(&problem, &Limits::default()).unwrap()
}

#[test]
fn no_verifier_is_above_the_linear_program_and_nested_priority_is_close() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let (mut gap, mut intervals_gap, mut walk_gap, mut cases) = (0.0, 0.0, 0.0, 0_u32);
    for (vocabulary, depth, paths, count) in
        [(2, 1, 2, 12), (3, 1, 3, 6), (2, 2, 1, 12), (2, 2, 2, 18), (3, 2, 2, 12), (2, 3, 2, 9), (2, 2, 3, 9)]
    {
        for index in 0..count {
            let agreement = [0.0, 0.4, 0.8][index % 3];
            let pair = random_pair(vocabulary, depth, agreement, index % 2 == 1, &mut rng).unwrap();
            let bound = bound(&pair, vocabulary, depth, paths);
            let shape = Shape::Paths { paths, depth };
            for kind in VerifierKind::all() {
                let Ok(mut verifier) = kind.build(&shape) else { continue };
                let found = exact(verifier.as_mut(), &shape, &pair.target, &pair.draft, &mut |_| ()).unwrap();
                assert!(found.block_efficiency <= bound + 1e-9, "{kind} {found:?} {bound}\n{pair:?}");
                match kind.to_string().as_str() {
                    "nested-priority" => gap += bound - found.block_efficiency,
                    "walk:priority" => walk_gap += bound - found.block_efficiency,
                    // No method for a single path is better.
                    "block" => assert!(found.block_efficiency >= bound - 1e-8, "{found:?} {bound}"),
                    _ => {}
                }
            }
            let sharing = priority::Settings { layout: Layout::Intervals, ..Default::default() };
            let settings = Settings { sharing, ..Settings::default() };
            let mut intervals = VerifierKind::NestedPriority(settings).build(&shape).unwrap();
            let found = exact(intervals.as_mut(), &shape, &pair.target, &pair.draft, &mut |_| ()).unwrap();
            intervals_gap += bound - found.block_efficiency;
            cases += 1;
        }
    }
    let mean = |sum: f64| sum / f64::from(cases);
    println!(
        "{cases} cases, tokens per call below the bound: nested-priority {:.4}, with intervals {:.4}, walk:priority {:.4}",
        mean(gap),
        mean(intervals_gap),
        mean(walk_gap)
    );
    // Spreading shares closes much of the gap that intervals leave.
    assert!(gap < 0.7 * intervals_gap && intervals_gap < walk_gap, "{gap} {intervals_gap} {walk_gap}");
}
