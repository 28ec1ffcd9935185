//! SpecTr (Sun et al. 2023), tables 1 to 4 and figures 4 to 6: block efficiency of walks with
//! K-SEQ, passes over several sequences (`latency`), and distributions with formulas (`simple`).

use anyhow::Result;
use polydraft::PolicyKind;

use super::lab::{Case, Lab};
use super::table::Table;
use crate::cut::CutArgs;

pub fn measure(lab: &mut Lab) -> Result<()> {
    let (mut cases, sampling) = (Vec::new(), lab.at(1.0, CutArgs::default()));
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
            let mut case = Case::new(row, PolicyKind::paths(paths, depth), sampling, verifiers)?;
            if paths == 1 {
                // K-SEQ with one draft, to compare the order by number of paths.
                case.verifiers.push(("spectr".to_owned(), "token".parse()?));
            }
            cases.push(case);
        }
    }
    lab.efficiencies(0.9, Table::of_rows("efficiency", "Tokens per call, T = 1", 2), &cases)?;
    super::latency::measure(lab)?;
    super::simple::measure(lab)
}
