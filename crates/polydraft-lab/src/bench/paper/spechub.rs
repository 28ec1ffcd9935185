//! SpecHub (Sun et al. 2024), tables 1 to 3 and 5 to 6: acceptance of the first and the second
//! draft, and trees.
//!
//! Their tree 2^d has d levels with the root among them: 2^2 is one level of two drafts. Binary
//! Sequoia trees are the best of so many drafted tokens with two children at most, by the
//! acceptances that are measured first; here they are for draws without replacement, so the columns
//! for other draws have no figure of ours.

use anyhow::Result;
use polydraft::policy::Fixed;
use polydraft::{Drafting, Draws, PolicyKind, Topology};
use polydraft_reference::RuleKind;
use polydraft_runtime::supports;

use super::lab::{Case, Lab, Node, acceptance_at, at};
use super::table::Table;

/// Columns: their name, the rule, the walk with it, and how tokens are drawn.
const WAYS: [(&str, &str, &str, Drafting); 3] = [
    ("RRS", "recursive", "specinfer", Drafting::Iid),
    ("RRSw", "recursive", "specinfer", Drafting::WithoutReplacement),
    ("SpecHub", "hub", "walk:hub", Drafting::Hub),
];

pub fn measure(lab: &mut Lab) -> Result<()> {
    let temperatures: &[f64] = if lab.quick { &[1.0] } else { &[0.3, 0.6, 1.0] };
    let mut nodes = Vec::new();
    for &temperature in temperatures {
        for (rank, name) in ["first", "second"].into_iter().enumerate() {
            for (column, rule, _, scheme) in WAYS.into_iter().chain([OURS]) {
                nodes.push(node(temperature, rank, name, column, rule, scheme)?);
            }
        }
    }
    lab.acceptances(
        0.25,
        Table::new("acceptance", "Acceptance of two drafts at a node", 4),
        &nodes,
    )?;
    for &temperature in temperatures.iter().filter(|temperature| **temperature > 0.3) {
        trees(lab, temperature)?;
    }
    Ok(())
}

/// The best rule for two i.i.d. draws.
const OURS: (&str, &str, &str, Drafting) =
    ("priority, iid", "priority", "walk:priority", Drafting::Iid);

fn node(
    t: f64,
    rank: usize,
    name: &str,
    column: &str,
    rule: &str,
    scheme: Drafting,
) -> Result<Node> {
    Ok(Node {
        row: format!("T = {t}, {name} draft"),
        column: column.to_owned(),
        rule: Some(rule.parse()?),
        draws: Draws { scheme, count: 2 },
        target: at(t),
        drafts: vec![at(t)],
        rank: Some(rank),
    })
}

fn trees(lab: &mut Lab, temperature: f64) -> Result<()> {
    let depths = if lab.quick { 2..=4 } else { 2..=5 };
    let mut shapes: Vec<(String, Shape)> =
        depths.map(|d| (format!("2^{d}"), Shape::Levels(vec![2; d - 1]))).collect();
    if !lab.quick {
        shapes.extend([2, 3].map(|d| (format!("3^{d}"), Shape::Levels(vec![3; d - 1]))));
    }
    let acceptance = second_best(lab, temperature)?;
    for nodes in if lab.quick { &[8_usize][..] } else { &[4, 8, 16, 32] } {
        let parents = Topology::sequoia(&acceptance, *nodes, *nodes)?.parents();
        shapes.push((format!("biSeq{nodes}"), Shape::Fixed(parents)));
    }
    let mut cases = Vec::new();
    for (row, shape) in &shapes {
        for (column, _, walk, scheme) in WAYS.into_iter().chain([TRAVERSAL, OURS, NESTED]) {
            let two = !row.starts_with('3');
            // SpecHub has two drafts.
            let fits = two || scheme != Drafting::Hub;
            let tree = shape.tree(scheme);
            if fits && supports::<RuleKind>(&walk.parse()?, &tree) {
                let mut case = Case::new(row.clone(), tree, at(temperature), &[walk])?;
                case.verifiers[0].0 = column.to_owned();
                cases.push(case);
            }
        }
    }
    let title = format!("Tokens per call of trees, T = {temperature}");
    let share = if lab.quick { 0.65 } else { 0.35 };
    lab.efficiencies(share, Table::new(&format!("trees-{temperature}"), &title, 3), &cases)
}

const TRAVERSAL: (&str, &str, &str, Drafting) =
    ("traversal, w/o replacement", "recursive", "traversal", Drafting::WithoutReplacement);
const NESTED: (&str, &str, &str, Drafting) =
    ("nested-priority, iid", "priority", "nested-priority", Drafting::Iid);

enum Shape {
    Levels(Vec<usize>),
    Fixed(Vec<usize>),
}

impl Shape {
    fn tree(&self, drafting: Drafting) -> PolicyKind {
        match self {
            Self::Levels(counts) => PolicyKind::levels(counts, drafting),
            Self::Fixed(parents) => PolicyKind::Fixed(Fixed { parents: parents.clone(), drafting }),
        }
    }
}

/// How often the first and the second draft are accepted without replacement.
fn second_best(lab: &mut Lab, temperature: f64) -> Result<Vec<f64>> {
    let seed = lab.seed;
    let pairs = lab.pairs(48)?;
    let mut both = Vec::new();
    for rank in 0..2 {
        let node = node(temperature, rank, "", "", "recursive", Drafting::WithoutReplacement)?;
        let mut sum = 0.0;
        for (number, pair) in pairs.iter().enumerate() {
            sum += acceptance_at(&node, pair, seed ^ number as u64)?;
        }
        both.push(sum / pairs.len() as f64);
    }
    Ok(both)
}
