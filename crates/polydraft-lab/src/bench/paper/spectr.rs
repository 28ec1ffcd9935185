//! SpecTr (Sun et al. 2023), tables 1 and 4: block efficiency of walks with K-SEQ.

use anyhow::Result;
use polydraft::PolicyKind;

use super::lab::{Case, Lab, at};
use super::table::Table;

pub fn measure(lab: &mut Lab) -> Result<()> {
    let mut cases = Vec::new();
    for depth in [4, 8] {
        for paths in [1, 2, 4, 8] {
            if lab.quick
                && (depth, paths) != (4, 1)
                && !matches!((depth, paths), (4, 2 | 4) | (8, 1 | 4))
            {
                continue;
            }
            let verifiers: &[&str] = match paths {
                1 => &["token", "block"],
                _ => &["spectr", "walk:priority", "nested-priority"],
            };
            let row = format!("K = {paths}, L = {depth}");
            cases.push(Case::new(row, PolicyKind::paths(paths, depth), at(1.0), verifiers)?);
        }
    }
    lab.efficiencies(0.95, Table::new("efficiency", "Tokens per call, T = 1", 2), &cases)
}
