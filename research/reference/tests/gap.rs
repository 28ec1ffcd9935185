//! Locates the tokens that `nested-priority` loses against the bound for any verifier
//! (docs/theory.md, section 8).

use polydraft::VerifierKind;
use polydraft::conformance::tree::{ContextDistributions, Pair, exact, random_pair};
use polydraft::coupling::priority::shares::{Entry, Highest, Layout, Shares};
use polydraft::coupling::priority::{self, Choice};
use polydraft::verify::nested_priority::Settings;
use polydraft::{Distribution, PolicyKind, Token};
use polydraft_reference::paths::{First, Limits, PathProblem, multi_path_optimum_given};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Distribution of the first token that `nested-priority` selects (theorem 6).
fn selected(target: &Distribution, draft: &Distribution, count: usize) -> Vec<f64> {
    let mut tokens: Vec<(Token, Entry)> = draft
        .support()
        .map(|(token, length)| (token, Entry { length, demand: target.probability(token) }))
        .collect();
    let ratio = |entry: &Entry| entry.demand / entry.length;
    tokens.sort_by(|a, b| ratio(&a.1).total_cmp(&ratio(&b.1)));
    let entries: Vec<Entry> = tokens.iter().map(|token| token.1).collect();
    let mut shares = Shares::default();
    shares.share(&Highest::new(count), &entries, Choice::Balanced, Layout::Spread);
    let mut probs = vec![0.0; draft.vocabulary()];
    tokens
        .iter()
        .zip(shares.masses())
        .for_each(|((token, _), mass)| probs[*token as usize] = *mass);
    probs
}

/// Tokens per call, from the bound downwards: each step adds one property of the verifier.
#[derive(Debug, Default, Clone, Copy)]
struct Ladder {
    bound: f64,
    /// The first token is accepted as often as possible.
    accepted: f64,
    /// The first token also has the verifier's selection distribution, instead of an equally good
    /// one.
    selected: f64,
    /// The verifier without proportional sharing.
    complete: f64,
    /// The verifier with default settings.
    nested: f64,
    /// Variants: interval shares instead of spread shares; a new segment at every node; node by
    /// node.
    intervals: f64,
    anew: f64,
    walk: f64,
}

fn ladder(pair: &Pair, vocabulary: usize, depth: usize, paths: usize) -> Ladder {
    let target = |text: &[Token]| pair.target.distribution(text).cloned();
    let draft = |text: &[Token]| pair.draft.distribution(text).cloned();
    let problem = PathProblem { vocabulary, depth, paths, target: &target, draft: &draft };
    let best = |first| multi_path_optimum_given(&problem, first, &Limits::default()).unwrap();
    let probs = selected(&pair.target[&vec![]], &pair.draft[&vec![]], paths);
    let policy = PolicyKind::paths(paths, depth).build().unwrap();
    let tokens = |kind: VerifierKind| {
        let mut verifier = kind.build().unwrap();
        exact(verifier.as_mut(), policy.as_ref(), &pair.target, &pair.draft, &mut |_| ())
            .unwrap()
            .block_efficiency
    };
    let nested = |layout, proportional_below| {
        let sharing = priority::Settings { layout, ..Default::default() };
        tokens(VerifierKind::NestedPriority(Settings { sharing, proportional_below }))
    };
    Ladder {
        bound: best(First::Free),
        accepted: best(First::Accepted),
        selected: best(First::Selected(&probs)),
        complete: nested(Layout::Spread, 0.0),
        nested: nested(Layout::Spread, 1e-3),
        intervals: nested(Layout::Intervals, 0.0),
        anew: tokens("priority-block".parse().unwrap()),
        walk: tokens("walk:priority".parse().unwrap()),
    }
}

/// Run with `-- --nocapture` to print the table.
#[test]
fn where_the_rest_lies() {
    let mut rng = ChaCha8Rng::seed_from_u64(33);
    println!("V,L,K    bound | lost: greed  choice  shares  proportional | intervals anew walk");
    let (mut sum, mut pairs) = ([0.0; 7], 0.0);
    for (vocabulary, depth, paths, count) in
        [(2, 2, 2, 24), (3, 2, 2, 24), (2, 2, 3, 24), (2, 3, 2, 24), (3, 2, 3, 6)]
    {
        let mut lost = [0.0; 7];
        let mut bound = 0.0;
        for index in 0..count {
            let pair = random_pair(vocabulary, depth, [0.0, 0.4, 0.8][index % 3], false, &mut rng)
                .unwrap();
            let found = ladder(&pair, vocabulary, depth, paths);
            let Ladder { accepted, selected, complete, nested, intervals, anew, walk, .. } = found;
            let steps = [
                found.bound - accepted,
                accepted - selected,
                selected - complete,
                complete - nested,
                complete - intervals,
                complete - anew,
                complete - walk,
            ];
            // Each step is an additional condition; solver results are accurate to 1e-6.
            for (index, step) in steps[..3].iter().enumerate() {
                assert!(*step > -1e-6, "step {index}: {found:?}\n{pair:?}");
            }
            assert!(steps[3] > -1e-9, "{found:?}");
            lost.iter_mut().zip(steps).for_each(|(lost, step)| *lost += step);
            bound += found.bound;
        }
        let row: Vec<String> =
            lost.iter().map(|lost| format!("{:8.5}", lost / count as f64)).collect();
        println!("{vocabulary},{depth},{paths}  {:7.4} | {}", bound / count as f64, row.join(" "));
        sum.iter_mut().zip(lost).for_each(|(sum, lost)| *sum += lost);
        pairs += count as f64;
    }
    let row: Vec<String> = sum.iter().map(|lost| format!("{:8.5}", lost / pairs)).collect();
    println!("mean            | {}", row.join(" "));
    // Most of the loss is in the shares, which do not take the following tokens into account.
    assert!(sum[2] > sum[0] && sum[2] > sum[1] && sum[3] < 1e-4 * sum[2].max(1e-3), "{sum:?}");
}

/// With one level nothing is lost, whatever the condition on the first token.
#[test]
fn with_one_level_all_are_equal() {
    let mut rng = ChaCha8Rng::seed_from_u64(34);
    for (vocabulary, paths) in [(2, 2), (3, 2), (4, 3)] {
        for _ in 0..8 {
            let pair = random_pair(vocabulary, 1, 0.3, false, &mut rng).unwrap();
            let found = ladder(&pair, vocabulary, 1, paths);
            for tokens in [found.accepted, found.selected, found.complete, found.anew, found.walk] {
                assert!((tokens - found.bound).abs() < 1e-7, "{found:?}");
            }
        }
    }
}

/// `draft` without some tokens: none, one of the vocabulary, the least likely one at each node, or
/// any at half of the nodes.
fn lacking(pair: &Pair, how: usize, rng: &mut ChaCha8Rng) -> Pair {
    let size = pair.draft[&vec![]].vocabulary();
    let always = rng.next_u32() as usize % size;
    let mut draft: Vec<_> = pair.draft.clone().into_iter().collect();
    draft.sort_by(|a, b| a.0.cmp(&b.0));
    for (_, probs) in &mut draft {
        let mut values = probs.to_vec();
        match how {
            1 => values[always] = 0.0,
            2 => {
                let least = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
                let token = (0..size).min_by(least).unwrap();
                values[token] = 0.0;
            }
            3 if rng.next_u32().is_multiple_of(2) => values[rng.next_u32() as usize % size] = 0.0,
            _ => {}
        }
        let sum: f64 = values.iter().sum();
        *probs = Distribution::new(values.into_iter().map(|value| value / sum).collect()).unwrap();
    }
    Pair { target: pair.target.clone(), draft: draft.into_iter().collect() }
}

/// Compares the masses with the largest acceptance by their effect on following tokens. Run with
/// `-- --nocapture` to print the table.
#[test]
fn which_masses() {
    let mut rng = ChaCha8Rng::seed_from_u64(35);
    let choices = [Choice::Balanced, Choice::Target, Choice::Draft];
    let mut all = [0.0; 3];
    println!("below the bound: balanced, target, draft");
    for how in 0..4 {
        for (vocabulary, depth, paths, count) in
            [(3, 2, 2, 60), (4, 2, 2, 30), (3, 2, 3, 12), (2, 3, 2, 30)]
        {
            let (mut sums, mut pairs) = ([0.0; 3], 0.0);
            for index in 0..count {
                let agreement = [0.0, 0.4, 0.8][index % 3];
                let pair = random_pair(vocabulary, depth, agreement, false, &mut rng).unwrap();
                let pair = lacking(&pair, how, &mut rng);
                let target = |text: &[Token]| pair.target.distribution(text).cloned();
                let draft = |text: &[Token]| pair.draft.distribution(text).cloned();
                let problem =
                    PathProblem { vocabulary, depth, paths, target: &target, draft: &draft };
                let bound =
                    multi_path_optimum_given(&problem, First::Free, &Limits::default()).unwrap();
                let policy = PolicyKind::paths(paths, depth).build().unwrap();
                for (sum, choice) in sums.iter_mut().zip(choices) {
                    let sharing = priority::Settings { choice, ..Default::default() };
                    let kind =
                        VerifierKind::NestedPriority(Settings { sharing, ..Settings::default() });
                    let mut verifier = kind.build().unwrap();
                    let (target, draft) = (&pair.target, &pair.draft);
                    let found =
                        exact(verifier.as_mut(), policy.as_ref(), target, draft, &mut |_| ())
                            .unwrap();
                    assert!(found.deviation < 1e-10 && found.block_efficiency < bound + 1e-6);
                    *sum += bound - found.block_efficiency;
                }
                pairs += 1.0;
            }
            let row: Vec<String> = sums.iter().map(|sum| format!("{:.5}", sum / pairs)).collect();
            println!("lacking {how}: {vocabulary},{depth},{paths}  {}", row.join(" "));
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum / pairs);
        }
    }
    assert!(all[0] < all[1] && all[0] < all[2], "{all:?}");
}
