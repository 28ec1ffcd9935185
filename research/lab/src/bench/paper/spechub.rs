//! SpecHub (Sun et al. 2024), tables 1 to 7 and figures 6 and 7: acceptance of the first and second
//! draft, of up to ten drafts (`decay`), on random distributions (`toy`), and tokens per call of
//! trees.
//!
//! The paper's tree 2^d has d levels including the root: 2^2 is one level of two drafts. Binary
//! Sequoia trees are optimal for their number of tokens with at most two children per node. They
//! are computed for each drafting scheme from its own acceptance rates, which are measured first.

use anyhow::Result;
use polydraft::policy::Fixed;
use polydraft::{Drafting, Draws, PolicyKind, Topology};

use super::lab::{Case, Lab, Node, acceptance_at};
use super::table::Table;
use crate::cut::CutArgs;

/// A drafting scheme of two tokens, with the walks and verifiers that are exact for it.
struct Way {
    column: &'static str,
    rule: &'static str,
    drafting: Drafting,
    verifiers: &'static [(&'static str, &'static str)],
}

const WAYS: [Way; 3] = [
    Way {
        column: "RRS",
        rule: "recursive",
        drafting: Drafting::Iid,
        verifiers: &[
            ("RRS", "specinfer"),
            ("priority, iid", "walk:priority"),
            ("nested-priority, iid", "nested-priority"),
        ],
    },
    Way {
        column: "RRSw",
        rule: "recursive",
        drafting: Drafting::WithoutReplacement,
        verifiers: &[("RRSw", "specinfer"), ("traversal, w/o replacement", "traversal")],
    },
    Way {
        column: "SpecHub",
        rule: "hub",
        drafting: Drafting::Hub,
        verifiers: &[("SpecHub", "walk:hub")],
    },
];

pub fn measure(lab: &mut Lab) -> Result<()> {
    let temperatures: &[f64] = if lab.quick { &[1.0] } else { &[0.3, 0.6, 1.0] };
    let mut nodes = Vec::new();
    for &temperature in temperatures {
        for (rank, name) in [(Some(0), "first"), (Some(1), "second"), (None, "either")] {
            for way in &WAYS {
                nodes.push(node(lab, temperature, (rank, name), way)?);
            }
            if let Some(last) = nodes.last().filter(|_| rank.is_none()).cloned() {
                let (rule, column) =
                    (Some(polydraft_reference::rule("priority")?), "priority, iid".to_owned());
                nodes.push(Node { rule, draws: Draws::iid(2), column, ..last });
            }
        }
    }
    let title = "Acceptance of two drafts at a node";
    lab.acceptances(0.12, Table::of_columns("acceptance", title, 4), &nodes)?;
    super::decay::measure(lab)?;
    super::toy::measure(lab)?;
    for &temperature in temperatures.iter().filter(|temperature| **temperature > 0.3) {
        trees(lab, temperature)?;
    }
    by_temperature(lab)
}

/// Measures figure 6: a binary tree at several temperatures.
fn by_temperature(lab: &mut Lab) -> Result<()> {
    if lab.quick {
        return Ok(());
    }
    let mut cases = Vec::new();
    for temperature in [0.2, 0.4, 0.6, 0.8, 1.0] {
        for way in &WAYS {
            let sampling = lab.at(temperature, CutArgs::default());
            let tree = PolicyKind::levels(&[2; 4], way.drafting);
            let mut case = Case::new(format!("T = {temperature}"), tree, sampling, &[])?;
            for (column, kind) in &way.verifiers[..1] {
                case.verifiers.push(((*column).to_owned(), polydraft_reference::verifier(kind)?));
            }
            cases.push(case);
        }
    }
    let title = "Tokens per call of 2^5 by temperature";
    lab.efficiencies(0.1, Table::of_columns("temperatures", title, 3), &cases)
}

fn node(
    lab: &Lab,
    temperature: f64,
    (rank, name): (Option<usize>, &str),
    way: &Way,
) -> Result<Node> {
    let sampling = lab.at(temperature, CutArgs::default());
    Ok(Node {
        row: format!("T = {temperature}, {name} draft"),
        column: way.column.to_owned(),
        rule: Some(polydraft_reference::rule(way.rule)?),
        draws: Draws { scheme: way.drafting, count: 2 },
        target: sampling,
        drafts: vec![sampling],
        rank,
    })
}

fn trees(lab: &mut Lab, temperature: f64) -> Result<()> {
    let sampling = lab.at(temperature, CutArgs::default());
    let mut cases: Vec<(usize, Case)> = Vec::new();
    for way in &WAYS {
        let levels =
            |count: usize, depth: usize| PolicyKind::levels(&vec![count; depth - 1], way.drafting);
        let mut shapes: Vec<(String, PolicyKind)> = Vec::new();
        for depth in 2..=if lab.quick { 4 } else { 5 } {
            shapes.push((format!("2^{depth}"), levels(2, depth)));
        }
        let two = second_best(lab, temperature, way)?;
        for nodes in if lab.quick { &[8_usize][..] } else { &[4, 8, 16, 32] } {
            let parents = Topology::sequoia(&two, *nodes, *nodes)?.parents();
            let tree = PolicyKind::Fixed(Fixed { parents, drafting: way.drafting });
            shapes.push((format!("biSeq{nodes}"), tree));
        }
        // SpecHub supports two drafts only.
        if !lab.quick && way.drafting != Drafting::Hub {
            shapes.extend([2, 3, 4].map(|depth| (format!("3^{depth}"), levels(3, depth))));
        }
        for (position, (row, tree)) in shapes.into_iter().enumerate() {
            let mut case = Case::new(row, tree, sampling, &[])?;
            for (column, kind) in way.verifiers {
                case.verifiers.push(((*column).to_owned(), polydraft_reference::verifier(kind)?));
            }
            cases.push((position, case));
        }
    }
    // Place the drafting schemes side by side.
    cases.sort_by_key(|(position, _)| *position);
    let cases: Vec<Case> = cases.into_iter().map(|(_, case)| case).collect();
    let title = format!("Tokens per call of trees, T = {temperature}");
    let share = if lab.quick { 0.65 } else { 0.32 };
    let name = format!("trees-{temperature}");
    lab.efficiencies(share, Table::of_columns(&name, &title, 3), &cases)
}

/// Returns how often the first and the second draft are accepted.
fn second_best(lab: &mut Lab, temperature: f64, way: &Way) -> Result<Vec<f64>> {
    let (seed, count) = (lab.seed, if lab.quick { 48 } else { 240 });
    let mut both = Vec::new();
    for rank in 0..2 {
        let node = node(lab, temperature, (Some(rank), ""), way)?;
        let pairs = lab.pairs(node.target, count)?;
        let mut sum = 0.0;
        for pair in pairs {
            sum += acceptance_at(&node, pair, seed)?;
        }
        both.push(sum / pairs.len() as f64);
    }
    Ok(both)
}
