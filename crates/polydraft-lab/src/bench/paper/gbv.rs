//! Greedy multi-path block verification (Thomas and Pal 2026), tables 1, 3 and 5 to 7: tokens per
//! call by paths, depths and temperatures, beside other verifiers, where the time goes, and how far
//! all are from the bound.
//!
//! With one path it is block verification. The bound is that of any lossless verifier of the same
//! paths, by linear programming on random models given as tables; there everything is enumerated,
//! and exact.

use anyhow::Result;
use polydraft::conformance::tree::{exact, random_pair};
use polydraft::{Distribution, PolicyKind, Token};
use polydraft_reference::VerifierKind;
use polydraft_reference::comparison::Sample;
use polydraft_reference::paths::{Limits, PathProblem, multi_path_optimum};
use polydraft_runtime::seeded;

use super::lab::{Case, Lab};
use super::table::Table;
use crate::bench::decode::{self, Way};
use crate::cut::CutArgs;

const OTHERS: [&str; 4] = ["greedy-block", "spectr", "specinfer", "traversal"];

pub fn measure(lab: &mut Lab) -> Result<()> {
    let both = ["greedy-block", "nested-priority"];
    let most = if lab.quick { 3 } else { 4 };
    let of = |lab: &Lab, row: String, paths, depth, temperature, names: &[&str]| {
        let sampling = lab.at(temperature, CutArgs::default());
        Case::new(row, PolicyKind::paths(paths, depth), sampling, names)
    };
    let mut cases = Vec::new();
    for paths in 1..=most {
        cases.push(of(lab, format!("K = {paths}"), paths, 8, 1.0, &both)?);
    }
    let share = if lab.quick { 0.3 } else { 0.2 };
    lab.efficiencies(share, Table::of_rows("paths", "Tokens per call, L = 8, T = 1", 3), &cases)?;
    let mut cases = Vec::new();
    let names = [&OTHERS[..], &["walk:priority", "nested-priority"]].concat();
    for temperature in [1.0, 0.2] {
        for paths in if lab.quick { 2..=2 } else { 2..=3 } {
            let row = format!("T = {temperature}, K = {paths}");
            cases.push(of(lab, row, paths, 8, temperature, &names)?);
        }
    }
    let title = "Tokens per call of several paths, L = 8";
    lab.efficiencies(0.25, Table::of_columns("methods", title, 3), &cases)?;
    if !lab.quick {
        let mut cases = Vec::new();
        for temperature in [0.2, 0.4, 0.6, 0.8, 1.0] {
            for paths in [1, 3] {
                let row = format!("T = {temperature}, K = {paths}");
                cases.push(of(lab, row, paths, 8, temperature, &both)?);
            }
        }
        let title = "Tokens per call by temperature, L = 8";
        lab.efficiencies(0.2, Table::of_rows("temperatures", title, 3), &cases)?;
        let mut cases = Vec::new();
        for depth in [8, 16, 24] {
            for paths in 1..=4 {
                let row = format!("L = {depth}, K = {paths}");
                cases.push(of(lab, row, paths, depth, 1.0, &both)?);
            }
        }
        let title = "Tokens per call by depth, T = 1";
        lab.efficiencies(0.2, Table::of_rows("depths", title, 3), &cases)?;
    }
    times(lab)?;
    if !lab.asked() {
        lab.tell("the bound");
        let models = if lab.quick { 2 } else { 6 };
        let table = bound(models, lab.seed, &|| lab.tick())?;
        lab.keep(table);
    }
    Ok(())
}

/// The times of draft, target and verifier in a decode.
fn times(lab: &mut Lab) -> Result<()> {
    if lab.asked() {
        return Ok(());
    }
    lab.tell("where the time goes");
    let sampling = lab.at(1.0, CutArgs::default());
    let mut ways = vec![Way::plain(sampling)];
    let paths = if lab.quick { 1..=2 } else { 1..=4 };
    for paths in paths.clone() {
        ways.push(decode::way(&"greedy-block".parse()?, PolicyKind::paths(paths, 8), sampling)?);
    }
    lab.times(0.15, &mut ways, if lab.quick { 48 } else { 96 })?;
    let mut table = Table::new("time", "Where the time of greedy-block goes, L = 8, T = 1", 1);
    for (paths, way) in paths.zip(&ways[1..]) {
        let row = decode::row(way, &ways[0].rounds, None);
        if row.tokens_per_second.is_finite() {
            let name = || format!("K = {paths}");
            table.add(name(), "ms per token", 1e3 / row.tokens_per_second, None);
            table.add(name(), "draft, % of time", 100.0 * row.draft_share, None);
            table.add(name(), "target, % of time", 100.0 * row.target_share, None);
            table.add(name(), "distinct tokens drafted", row.nodes_per_call, None);
        }
    }
    lab.keep(table);
    Ok(())
}

/// Exact tokens per call below the bound, on random models of tiny vocabularies.
fn bound(models: usize, seed: u64, goes_on: &dyn Fn() -> bool) -> Result<Table> {
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
        // By random model: the same ones for all columns.
        let mut series: Vec<Vec<Sample>> = vec![Vec::new(); names.len() + 1];
        let value = |model, value| Sample {
            prompt: model,
            positions: 1,
            drafts: 1,
            nodes: paths * depth,
            tokens: vec![value],
        };
        let mut random = seeded(seed);
        for index in 0..models {
            // From draft and target that are unrelated to such that agree.
            let agreement = 0.8 * index as f64 / (models - 1).max(1) as f64;
            let pair = random_pair(vocabulary, depth, agreement, false, &mut random)?;
            for (name, series) in names.iter().zip(&mut series) {
                let mut verifier = name.parse::<VerifierKind>()?.build()?;
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
            let probs =
                |distributions: &std::collections::HashMap<Vec<Token>, Distribution>,
                 text: &[Token]| { Ok(distributions[text].clone()) };
            let problem = PathProblem {
                vocabulary,
                depth,
                paths,
                target: &|text| probs(&pair.target, text),
                draft: &|text| probs(&pair.draft, text),
            };
            let best = multi_path_optimum(&problem, &Limits::default())?;
            series[names.len()].push(value(index, best));
            if !goes_on() {
                break;
            }
        }
        let row = format!("V = {vocabulary}, L = {depth}, K = {paths}");
        // The bound first: the others are less it.
        series.rotate_right(1);
        for (name, series) in [&"bound"].into_iter().chain(&names).zip(series) {
            table.add_series(&row, *name, series);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No verifier is above the bound, nested priorities are next to it, and one path's is that of
    /// block verification.
    #[test]
    fn the_bound_bounds() {
        let table = bound(3, 1, &|| true).expect("a table");
        let of = |row: &str, column: &str| {
            let entry =
                table.entries.iter().find(|entry| entry.row == row && entry.column == column);
            entry.expect("an entry").ours.value
        };
        for row in ["V = 3, L = 2, K = 2", "V = 2, L = 3, K = 2", "V = 2, L = 2, K = 3"] {
            let best = of(row, "bound");
            for entry in table.entries.iter().filter(|entry| entry.row == row) {
                assert!(entry.ours.value <= best + 1e-9, "{row}: {entry:?}");
            }
            assert!(
                of(row, "nested-priority") > best - 0.02 && of(row, "block") < best - 0.02,
                "{row}: {table:?}"
            );
        }
    }
}
