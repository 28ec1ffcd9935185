//! Global Resolution (Thomas and Pal 2025), tables 1 to 4 and figures 1 to 5: the time of solvers,
//! how often they succeed, also by temperature, the best acceptance within a time, acceptances by
//! drafts, and the walk.
//!
//! As in the paper, drafts are i.i.d. from the draft's k likeliest tokens. Walks have paths of
//! eight tokens with k = 100, and draw from the target if there is no solution (appendix R). That
//! walk is not lossless. It is measured next to the repaired one, and a table shows its distance
//! from the target. Times are of this machine.

use std::time::Instant;

use anyhow::Result;
use polydraft::VerifierKind;
use polydraft::coupling::RuleSettings;
use polydraft::{Drafting, Draws, PolicyKind, Problem, Proposal, couple};
use polydraft_reference::ReferenceKind;
use polydraft_reference::global_resolution::{self, Mode};

use super::lab::{Case, Lab, Node, Sum};
use super::table::Table;
use crate::bench::solve_time::{Column, Dataset, Row, RowReport, Work};
use crate::cut::CutArgs;

pub fn measure(lab: &mut Lab) -> Result<()> {
    let rows = if lab.quick {
        "10:2,10:3,100:2"
    } else {
        "10:2,10:3,10:4,10:5,100:2,100:3,1000:2,V:2,V:4"
    };
    let rows: Vec<Row> = rows.split(',').filter_map(|row| row.parse().ok()).collect();
    let columns = Column::all();
    columns.iter().try_for_each(Column::check)?;
    // The time of a cell if no cell ended early.
    let begun = Instant::now();
    let share =
        lab.end(0.3).duration_since(begun).as_secs_f64() / (rows.len() * columns.len()) as f64;
    let work = Work {
        rows,
        budget: 2.0 * share,
        seed: lab.seed,
        sampling: lab.at(1.0, CutArgs::default()),
    };
    let count = if lab.quick { 12 } else { 20 };
    let rows = lab.solvers(count, &work, &columns)?;
    let data = Dataset::new("pair", 0, count, rows);
    tables(&data).into_iter().for_each(|table| lab.keep(table));
    optima(lab)?;
    published(lab)?;
    super::failures::measure(lab, 0.1, &as_published())?;
    walks(lab)
}

/// Figures 1 to 4: the largest acceptance of n i.i.d. and of n greedy drafts from the draft's k
/// likeliest tokens, by formula, at target temperatures.
fn optima(lab: &mut Lab) -> Result<()> {
    let (temperatures, tops, counts): (&[f64], &[Option<usize>], &[usize]) = match lab.quick {
        true => (&[1.0], &[Some(10), None], &[2, 3]),
        false => (
            &[1.0, 0.2, 0.4, 0.6, 0.8],
            &[Some(10), Some(100), Some(1000), None],
            &[1, 2, 3, 4, 5, 6, 8, 10],
        ),
    };
    let mut nodes = Vec::new();
    for &temperature in temperatures {
        for &top_k in tops {
            for &count in counts {
                let name = top_k.map_or("V".to_owned(), |top_k| top_k.to_string());
                for scheme in [Drafting::Iid, Drafting::Greedy] {
                    nodes.push(Node {
                        row: format!("T = {temperature}, k = {name}, n = {count}"),
                        column: scheme.to_string(),
                        rule: None,
                        draws: Draws { scheme, count },
                        target: lab.at(temperature, CutArgs::default()),
                        drafts: vec![lab.at(1.0, CutArgs { top_k, top_p: None })],
                        rank: None,
                    });
                }
            }
        }
    }
    let title = "Largest acceptance of n drafts from the k likeliest tokens";
    lab.acceptances(0.15, Table::of_columns("optimum", title, 4), &nodes)
}

/// Returns the published settings, with τ = 1e-3.
fn as_published() -> global_resolution::Settings {
    global_resolution::Settings {
        mode: Mode::PublishedWalk,
        // Time limit of a node in a walk.
        seconds: 2.0,
        ..Default::default()
    }
}

/// Measures how often Global Resolution as published draws from the target, and the distance of its
/// distribution from the target's, over all tuples of drafts, at the same positions for all rows.
fn published(lab: &mut Lab) -> Result<()> {
    if lab.is_interrupted() {
        return Ok(());
    }
    let rows: &[(usize, usize)] =
        if lab.quick { &[(10, 2)] } else { &[(10, 2), (10, 3), (100, 2), (100, 3), (100, 4)] };
    let title = "Global Resolution as published at a node, τ = 1e-3";
    let mut table = Table::new("published", title, 4);
    let end = lab.end(0.1);
    let (target, count) = (lab.at(1.0, CutArgs::default()), if lab.quick { 6 } else { 24 });
    lab.pairs(target, count)?;
    lab.note(title);
    for &(top_k, drafts) in rows {
        let (mut draws, mut off) = (Sum::default(), Sum::default());
        let draft = lab.at(1.0, CutArgs { top_k: Some(top_k), top_p: None });
        for pair in lab.pairs(target, count)? {
            let (target, draft) = (pair.target(&target)?, pair.draft(&draft)?);
            let problem = Problem::new(&target, Proposal::iid(&draft, drafts)?)?;
            let mut resolver = as_published().resolver()?;
            resolver.prepare(&problem)?;
            draws.add(resolver.unsolved());
            if problem.proposal.tuple_bound() <= ENUMERATED {
                off.add(deviation(&problem)?);
            }
            if Instant::now() >= end && off.mean().is_finite() {
                break;
            }
        }
        let row = format!("({top_k}, {drafts})");
        table.add(&row, "draws from the target", draws.mean(), None);
        if off.mean().is_finite() {
            table.add(&row, "L1 from the target", off.mean(), None);
        }
    }
    lab.keep(table);
    Ok(())
}

/// Maximum number of enumerated tuples.
const ENUMERATED: f64 = 20_000.0;

/// Returns the L1 distance of the emitted distribution from the target's.
fn deviation(problem: &Problem) -> Result<f64> {
    let mut rule = as_published().build()?;
    let mut coupling = couple(rule.as_mut(), *problem)?;
    let mut emitted = vec![0.0; problem.target.vocabulary()];
    for (probability, drafts) in problem.proposal.tuples() {
        let given = coupling.distribution(&drafts)?;
        let both = emitted.iter_mut().zip(&given.probabilities);
        both.for_each(|(emitted, given)| *emitted += probability * given);
    }
    let off =
        (0..).zip(&emitted).map(|(token, got)| (got - problem.target.probability(token)).abs());
    Ok(off.sum())
}

fn tables(data: &Dataset) -> [Table; 3] {
    let mut times = Table::new("times", "Milliseconds per token, where it succeeds", 4);
    let mut success = Table::new("success", "Attempts that succeed", 2);
    let mut within = Table::new("within", "Best acceptance within a time per token", 4);
    for RowReport { row, cells, .. } in &data.rows {
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
    [times, success, within]
}

/// Removes the backend from a solver's name.
fn solver(name: &str) -> &str {
    if name.starts_with("linear program") { "linear program" } else { name }
}

fn walks(lab: &mut Lab) -> Result<()> {
    let mut cases = Vec::new();
    for paths in if lab.quick { 2..=2 } else { 2..=4 } {
        let names = ["walk:global-resolution", "walk:priority", "nested-priority"];
        let tree = PolicyKind::paths(paths, 8);
        let target = lab.at(1.0, CutArgs::default());
        let case = Case::new(format!("K = {paths}, L = 8"), tree, target, &names)?;
        let draft = lab.at(1.0, CutArgs { top_k: Some(100), top_p: None });
        let mut case = Case { draft, ..case };
        let rule = ReferenceKind::GlobalResolution(as_published());
        let own = VerifierKind::walk(rule);
        case.verifiers.insert(0, ("as published".to_owned(), own));
        cases.push(case);
    }
    let title = "Tokens per call, T = 1, drafts from the 100 likeliest tokens";
    lab.efficiencies(0.35, Table::of_rows("efficiency", title, 2), &cases)
}
