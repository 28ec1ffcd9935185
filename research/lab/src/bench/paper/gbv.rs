//! Greedy multi-path block verification (Thomas and Pal 2026), tables 1, 3 and 5 to 7: tokens per
//! call by paths, depth and temperature, compared with other verifiers; the time of each phase; and
//! the distance from the upper bound.
//!
//! With one path it equals block verification. Table `time` (its appendix I) includes the size of
//! the KV cache for the longest prompt, its output and a tree, computed from the bytes per token.

use anyhow::Result;
use polydraft::PolicyKind;

use super::bound::bound;
use super::lab::{Case, Lab};
use super::table::Table;
use crate::bench::decode::{self, Way};
use crate::cut::CutArgs;

const OTHERS: [&str; 4] = ["greedy-block", "spectr", "specinfer", "traversal"];

pub fn measure(lab: &mut Lab) -> Result<()> {
    let both = ["greedy-block", "nested-priority"];
    let most = if lab.quick { 3 } else { 4 };
    let value_of = |lab: &Lab, row: String, paths, depth, temperature, names: &[&str]| {
        let sampling = lab.at(temperature, CutArgs::default());
        Case::new(row, PolicyKind::paths(paths, depth), sampling, names)
    };
    let mut cases = Vec::new();
    for paths in 1..=most {
        cases.push(value_of(lab, format!("K = {paths}"), paths, 8, 1.0, &both)?);
    }
    let share = if lab.quick { 0.3 } else { 0.2 };
    lab.efficiencies(share, Table::of_rows("paths", "Tokens per call, L = 8, T = 1", 3), &cases)?;
    let mut cases = Vec::new();
    let names = [&OTHERS[..], &["walk:priority", "nested-priority"]].concat();
    for temperature in [1.0, 0.2] {
        for paths in if lab.quick { 2..=2 } else { 2..=3 } {
            let row = format!("T = {temperature}, K = {paths}");
            cases.push(value_of(lab, row, paths, 8, temperature, &names)?);
        }
    }
    let title = "Tokens per call of several paths, L = 8";
    lab.efficiencies(0.25, Table::of_columns("methods", title, 3), &cases)?;
    if !lab.quick {
        let mut cases = Vec::new();
        for temperature in [0.2, 0.4, 0.6, 0.8, 1.0] {
            for paths in [1, 3] {
                let row = format!("T = {temperature}, K = {paths}");
                cases.push(value_of(lab, row, paths, 8, temperature, &both)?);
            }
        }
        let title = "Tokens per call by temperature, L = 8";
        lab.efficiencies(0.2, Table::of_rows("temperatures", title, 3), &cases)?;
        let mut cases = Vec::new();
        for depth in [8, 16, 24] {
            for paths in 1..=4 {
                let row = format!("L = {depth}, K = {paths}");
                cases.push(value_of(lab, row, paths, depth, 1.0, &both)?);
            }
        }
        let title = "Tokens per call by depth, T = 1";
        lab.efficiencies(0.2, Table::of_rows("depths", title, 3), &cases)?;
    }
    times(lab)?;
    if !lab.is_interrupted() {
        lab.note("the bound");
        let models = if lab.quick { 2 } else { 6 };
        let table = bound(models, lab.seed, &|| lab.tick())?;
        lab.keep(table);
    }
    Ok(())
}

/// Measures the time of draft, target and verifier.
fn times(lab: &mut Lab) -> Result<()> {
    if lab.is_interrupted() {
        return Ok(());
    }
    lab.note("where the time goes");
    let sampling = lab.at(1.0, CutArgs::default());
    let mut ways = vec![Way::plain(sampling)];
    let paths = if lab.quick { 1..=2 } else { 1..=4 };
    for paths in paths.clone() {
        ways.push(decode::way(&"greedy-block".parse()?, PolicyKind::paths(paths, 8), sampling)?);
    }
    let tokens = if lab.quick { 48 } else { 96 };
    lab.times(0.15, &mut ways, tokens)?;
    let mut table = Table::new("time", "Where the time of greedy-block goes, L = 8, T = 1", 1);
    table.remark = Some(
        "theirs on the KV cache, without numbers by K: it stays within a narrow band, the tree \
         grows with K"
            .to_owned(),
    );
    let longest = lab.prompts.iter().map(Vec::len).max().unwrap_or(0) + tokens as usize;
    let bytes = lab.models.engine.token_bytes() as f64;
    for (paths, way) in paths.zip(&ways[1..]) {
        let row = decode::row(way, &ways[0].rounds, None);
        if row.tokens_per_second.is_finite() {
            let name = || format!("K = {paths}");
            table.add(name(), "ms per token", 1e3 / row.tokens_per_second, None);
            table.add(name(), "draft, % of time", 100.0 * row.draft_share, None);
            table.add(name(), "target, % of time", 100.0 * row.target_share, None);
            table.add(name(), "distinct tokens drafted", row.nodes_per_call, None);
            let kilobytes = bytes * (longest as f64 + row.nodes_per_call) / 1e3;
            table.add(name(), "KV cache, kB", kilobytes, None);
        }
    }
    lab.keep(table);
    Ok(())
}
