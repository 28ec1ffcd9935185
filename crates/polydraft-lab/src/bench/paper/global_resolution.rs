//! Global Resolution (Thomas and Pal 2025), tables 1 to 4 and figure 1: the time of solvers, how
//! often they succeed, the best acceptance within a time, and the walk.
//!
//! Their drafts are i.i.d. from the draft's k likeliest tokens, their walks have paths of eight
//! tokens with k = 100. Times are of this machine.

use anyhow::Result;
use polydraft::{PolicyKind, Sampling};

use super::lab::{Case, Lab, at};
use super::table::Table;
use crate::bench::solve_time::{Column, Dataset, Row, RowReport, Work};

pub fn measure(lab: &mut Lab) -> Result<()> {
    let rows = if lab.quick {
        "10:2,10:3,100:2"
    } else {
        "10:2,10:3,10:4,10:5,100:2,100:3,1000:2,V:2,V:4"
    };
    let rows: Vec<Row> = rows.split(',').filter_map(|row| row.parse().ok()).collect();
    let columns = Column::all();
    columns.iter().try_for_each(Column::check)?;
    // A cell's share, had every one of them no end.
    let begun = std::time::Instant::now();
    let share =
        lab.end(0.5).duration_since(begun).as_secs_f64() / (rows.len() * columns.len()) as f64;
    let work = Work { rows, budget: 2.0 * share, seed: lab.seed };
    let count = if lab.quick { 12 } else { 20 };
    let rows = lab.solvers(count, &work, &columns)?;
    let data = Dataset::new("pair", 0, count, rows);
    tables(&data).into_iter().for_each(|table| lab.keep(table));
    walks(lab)
}

fn tables(data: &Dataset) -> [Table; 4] {
    let mut times = Table::new("times", "Milliseconds per token, where it succeeds", 4);
    let mut success = Table::new("success", "Attempts that succeed", 2);
    let mut within = Table::new("within", "Best acceptance within a time per token", 4);
    let mut optimum = Table::new(
        "optimum",
        "Largest acceptance of n i.i.d. drafts from the k likeliest tokens",
        4,
    );
    for RowReport { row, optimum: best, cells, .. } in &data.rows {
        optimum.add(row, "optimal", *best, None);
        for cell in cells {
            let solver = solver(&cell.solver);
            if let Some(ms) = cell.milliseconds.filter(|_| !cell.lower_bound) {
                times.add(row, solver, ms, None);
            }
            if let Some(part) = cell.success() {
                success.add(row, solver, part, None);
            }
        }
    }
    for limit in &data.within {
        if let Some(acceptance) = limit.acceptance {
            within.add(
                format!("{} ms", limit.milliseconds),
                solver(&limit.solver),
                acceptance,
                None,
            );
        }
    }
    [times, success, within, optimum]
}

/// A solver's name, without the backend that solves its program.
fn solver(name: &str) -> &str {
    if name.starts_with("linear program") { "linear program" } else { name }
}

fn walks(lab: &mut Lab) -> Result<()> {
    let mut cases = Vec::new();
    for paths in if lab.quick { 2..=2 } else { 2..=4 } {
        let names = ["walk:global-resolution", "walk:priority", "nested-priority"];
        let tree = PolicyKind::paths(paths, 8);
        let case = Case::new(format!("K = {paths}, L = 8"), tree, at(1.0), &names)?;
        cases.push(Case { draft: Sampling { top_k: Some(100), ..at(1.0) }, ..case });
    }
    let title = "Tokens per call, T = 1, drafts from the 100 likeliest tokens";
    lab.efficiencies(0.4, Table::new("efficiency", title, 2), &cases)
}
