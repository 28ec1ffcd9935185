//! Distance of multi-path verifiers from the upper bound (Thomas and Pal 2026, theorem 4.6 and
//! lemma 4.7), on random table models. All values are exact, by enumeration.
//!
//! The bound holds for all lossless verifiers of the same paths, and is computed by linear
//! programming. Lemma 4.7 is a lower bound for block verification of a selected path: 1 + L · r,
//! where r is the smallest ratio, over all prefixes, of the probability that the selected path has
//! this prefix to the prefix's target probability. (Every prefix is accepted with at least r times
//! its target probability. The formula is missing in our copy of the paper and is derived from its
//! proof.)

use std::collections::HashMap;

use anyhow::Result;
use polydraft::conformance::tree::{exact, random_pair};
use polydraft::{Distribution, PolicyKind, Token};
use polydraft_reference::comparison::Sample;
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use polydraft_runtime::seeded;

use super::table::Table;

/// Distributions by context.
type Model = HashMap<Vec<Token>, Distribution>;

/// Column of lemma 4.7, for the path that greedy-block selects.
const LEMMA: &str = "lemma 4.7, greedy-block";

/// Measures exact tokens per call and the upper bound, on random models with small vocabularies.
pub fn bound(models: usize, seed: u64, goes_on: &dyn Fn() -> bool) -> Result<Table> {
    let mut table =
        Table::of_columns("bound", "Exact tokens per call on random tables, and the bound", 4);
    let names = [
        "block",
        "greedy-block",
        "specinfer",
        "spectr",
        "traversal",
        "walk:priority",
        "nested-priority",
    ];
    for (vocabulary, depth, paths) in [(3, 2, 2), (2, 3, 2), (2, 2, 3)] {
        // By random model; all columns use the same models.
        let mut series: Vec<Vec<Sample>> = vec![Vec::new(); names.len() + 2];
        let value = |model, value| Sample {
            prompt: model,
            positions: 1,
            drafts: 1,
            nodes: paths * depth,
            tokens: vec![value],
        };
        let mut random = seeded(seed);
        for index in 0..models {
            // From unrelated models to models that agree in part.
            let agreement = 0.8 * index as f64 / (models - 1).max(1) as f64;
            let pair = random_pair(vocabulary, depth, agreement, false, &mut random)?;
            for (name, series) in names.iter().zip(&mut series) {
                let mut verifier = polydraft_reference::verifier(name)?.build()?;
                let policy =
                    PolicyKind::paths(if *name == "block" { 1 } else { paths }, depth).build()?;
                let found = exact(
                    verifier.as_mut(),
                    policy.as_ref(),
                    &pair.target,
                    &pair.draft,
                    &mut |_| (),
                )?;
                series.push(value(index, found.block_efficiency));
            }
            let probs = |distributions: &Model, text: &[Token]| Ok(distributions[text].clone());
            let problem = PathProblem {
                vocabulary,
                depth,
                paths,
                target: &|text| probs(&pair.target, text),
                draft: &|text| probs(&pair.draft, text),
            };
            let best = multi_path_optimum(&problem, &Limits::default())?;
            series[names.len()].push(value(index, cheap(&pair.target, &pair.draft, depth, paths)));
            series[names.len() + 1].push(value(index, best));
            if !goes_on() {
                break;
            }
        }
        let row = format!("V = {vocabulary}, L = {depth}, K = {paths}");
        // The bound becomes the first column, because the others are compared with the first.
        series.rotate_right(1);
        for (name, series) in [&"bound"].into_iter().chain(&names).chain([&LEMMA]).zip(series) {
            table.add_series(&row, *name, series);
        }
    }
    Ok(table)
}

/// Returns the lower bound of lemma 4.7 for the path that greedy-block selects from K.
fn cheap(target: &Model, draft: &Model, depth: usize, paths: usize) -> f64 {
    let complete = Prefix { text: Vec::new(), p: 1.0, start: 0.0, length: 1.0 };
    1.0 + depth as f64 * least(target, draft, &complete, (depth, paths))
}

/// A prefix with its target probability and its interval of ranks. The selected path has this
/// prefix if the maximum of K uniform numbers is in the interval.
struct Prefix {
    text: Vec<Token>,
    p: f64,
    start: f64,
    length: f64,
}

/// Returns the smallest ratio, over `prefix` and its continuations, of the probability on the
/// selected path to the target probability.
fn least(target: &Model, draft: &Model, prefix: &Prefix, (depth, paths): (usize, usize)) -> f64 {
    let Prefix { text, p, start, length } = prefix;
    if *p <= 0.0 {
        // Target probability 0 imposes no constraint.
        return f64::INFINITY;
    }
    let to_the_paths = |x: f64| x.powi(paths as i32);
    let ratio = (to_the_paths(start + length) - to_the_paths(*start)) / p;
    if text.len() == depth {
        return ratio;
    }
    let (target_next, draft_next) = (&target[text], &draft[text]);
    let tokens = 0..target_next.vocabulary() as Token;
    let mut ranked: Vec<(f64, Token)> = tokens
        .map(|token| (target_next.probability(token) / draft_next.probability(token), token))
        .collect();
    ranked.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut below, mut smallest) = (0.0, ratio);
    for (_, token) in ranked {
        let q = draft_next.probability(token);
        let next = Prefix {
            text: [&text[..], &[token]].concat(),
            p: p * target_next.probability(token),
            start: start + length * below,
            length: length * q,
        };
        smallest = smallest.min(least(target, draft, &next, (depth, paths)));
        below += q;
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No verifier exceeds the bound; nested-priority is close to it; the value for one path is
    /// that of block verification.
    #[test]
    fn the_bound_bounds() {
        let table = bound(3, 1, &|| true).expect("a table");
        let value_of =
            |row: &str, column: &str| table.entry(row, column).expect("an entry").ours.value;
        for row in ["V = 3, L = 2, K = 2", "V = 2, L = 3, K = 2", "V = 2, L = 2, K = 3"] {
            let best = value_of(row, "bound");
            let lemma = value_of(row, LEMMA);
            assert!(
                lemma > 1.0 && lemma <= value_of(row, "greedy-block") + 1e-9,
                "{row}: {table:?}"
            );
            for entry in table.entries.iter().filter(|entry| entry.row == row) {
                assert!(entry.ours.value <= best + 1e-9, "{row}: {entry:?}");
            }
            assert!(
                value_of(row, "nested-priority") > best - 0.02
                    && value_of(row, "block") < best - 0.02,
                "{row}: {table:?}"
            );
        }
    }

    /// With equal models, a single path is accepted in full. Of two paths, the better ranked one is
    /// selected, and the selected path does not have the target's distribution.
    #[test]
    fn the_lemma_is_sharp_for_equal_models() {
        let pair = random_pair(3, 2, 0.0, false, &mut seeded(3)).expect("a pair");
        let one = cheap(&pair.target, &pair.target, 2, 1);
        assert!((one - 3.0).abs() < 1e-9, "{one}");
        let two = cheap(&pair.target, &pair.target, 2, 2);
        assert!(two > 1.0 && two < 2.9, "{two}");
    }
}
