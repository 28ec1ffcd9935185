//! Delayed trees (Thomas et al. 2026): one path of L1 tokens, then K of L2 from its end, under all
//! verifiers.
//!
//! The paper's values are means over models, tasks, temperatures from 0.6 to 1, K up to 4 and L up
//! to 8, for paths from the root. Ours are shown as the same mean, and by tree.

use anyhow::Result;
use polydraft::PolicyKind;
use polydraft::policy::Delayed;

use super::lab::{Case, Lab, Sum};
use super::table::Table;
use crate::cut::CutArgs;

const VERIFIERS: [&str; 8] = [
    "block",
    "specinfer",
    "spectr",
    "greedy-block",
    "traversal",
    "walk:priority",
    "priority-block",
    "nested-priority",
];

pub fn measure(lab: &mut Lab) -> Result<()> {
    let temperatures: &[f64] = if lab.quick { &[1.0] } else { &[0.6, 0.8, 1.0] };
    let paths: &[usize] = if lab.quick { &[4] } else { &[2, 4] };
    let stems: &[usize] = if lab.quick { &[0, 2, 4] } else { &[0, 1, 2, 4] };
    let depths: &[usize] = if lab.quick { &[8] } else { &[4, 8] };
    let mut cases = Vec::new();
    for &temperature in temperatures {
        for &depth in depths {
            for &paths in paths {
                for &stem in stems.iter().filter(|stem| **stem < depth) {
                    let tree = match stem {
                        0 => PolicyKind::paths(paths, depth),
                        _ => {
                            PolicyKind::Delayed(Delayed { first: stem, paths, then: depth - stem })
                        }
                    };
                    cases.push(Case::new(
                        row(temperature, stem, paths, depth),
                        tree,
                        lab.at(temperature, CutArgs::default()),
                        &VERIFIERS,
                    )?);
                }
            }
        }
    }
    let table = Table::of_columns(
        "trees",
        "Tokens per call of L1 tokens on one path, then K paths to depth L",
        3,
    );
    lab.efficiencies(0.95, table, &cases)?;
    if let Some(means) = lab.last().map(means) {
        lab.keep(means);
    }
    Ok(())
}

fn row(temperature: f64, stem: usize, paths: usize, depth: usize) -> String {
    format!("T = {temperature}, L1 = {stem}, K = {paths}, L = {depth}")
}

/// Returns means over all rows without a stem, and with the best stem of each row. The best stem is
/// chosen and measured on the same sequences, so with few sequences the mean is slightly too high.
fn means(table: &Table) -> Table {
    let mut means = Table::new("means", "Mean over temperatures, K and L", 3);
    for (name, delayed) in [("paths from the root", false), ("the best L1 for each", true)] {
        for verifier in VERIFIERS {
            let own = || table.entries.iter().filter(|entry| entry.column == verifier);
            let mut sum = Sum::default();
            for root in own().filter(|entry| entry.row.contains("L1 = 0,")) {
                let alike = |row: &str| without_stem(row) == without_stem(&root.row);
                let best = own().filter(|entry| alike(&entry.row)).map(|entry| entry.ours.value);
                sum.add(if delayed { best.fold(0.0, f64::max) } else { root.ours.value });
            }
            if sum.mean().is_finite() {
                means.add(name, verifier, sum.mean(), None);
            }
        }
    }
    means
}

fn without_stem(row: &str) -> String {
    row.split(", ").filter(|part| !part.starts_with("L1")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_stems_of_the_same_setting() {
        let mut table = Table::new("trees", "", 3);
        for (temperature, stem, value) in
            [(1.0, 0, 2.0), (1.0, 2, 3.0), (0.6, 0, 4.0), (0.6, 2, 3.5)]
        {
            table.add(row(temperature, stem, 4, 8), "block", value, None);
        }
        let values: Vec<f64> = means(&table).entries.iter().map(|entry| entry.ours.value).collect();
        assert_eq!(values, [3.0, 3.5]);
    }
}
