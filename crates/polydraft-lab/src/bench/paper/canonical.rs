//! The canonical decomposition (Khisti et al. 2025), tables 1, 2 and 4 and figures 3 and 8:
//! importance-weighted selection by the number of drafts, the truncation of its program, its
//! alphabet, and draft temperatures.
//!
//! Their paths have five tokens. Two drafts of different temperatures are measured at nodes,
//! because both draws of a node here come from one distribution in a tree.

use anyhow::Result;
use polydraft::{Drafting, Draws, PolicyKind, Sampling};
use polydraft_reference::RuleKind;

use super::lab::{Case, Lab, Node, at, importance};
use super::table::Table;

const DEPTH: usize = 5;
/// Rules for identically distributed drafts.
const DRAFT_TEMPERATURE: f64 = 1.2;

pub fn measure(lab: &mut Lab) -> Result<()> {
    let drafts: &[usize] = if lab.quick { &[2, 3] } else { &[2, 3, 4] };
    let mut nodes = Vec::new();
    for &count in drafts {
        let rules: [(&str, Option<RuleKind>); 4] = [
            ("optimal", None),
            ("importance", Some(importance(5, Some(40)).1)),
            ("k-seq", Some("k-seq".parse()?)),
            ("recursive", Some("recursive".parse()?)),
        ];
        for (column, rule) in rules {
            let draws = Draws::iid(count);
            let (row, column) = (format!("n = {count}"), column.to_owned());
            nodes.push(Node {
                row,
                column,
                rule,
                draws,
                target: at(1.0),
                drafts: vec![at(1.0)],
                rank: None,
            });
        }
    }
    lab.acceptances(
        0.1,
        Table::new("acceptance", "Acceptance of n drafts at a node, T = 1", 4),
        &nodes,
    )?;
    truncation(lab)?;
    temperatures(lab)?;
    by_paths(lab)
}

/// Two drafts, the second hotter.
fn distinct(row: String, column: &str, rule: RuleKind, hot: f64) -> Node {
    Node {
        row,
        column: column.to_owned(),
        rule: Some(rule),
        draws: Draws { scheme: Drafting::Distinct, count: 2 },
        target: at(1.0),
        drafts: vec![at(DRAFT_TEMPERATURE), at(hot)],
        rank: None,
    }
}

/// On the same drafts, which differ in their temperatures in the paper: 1.2 and 2.
fn truncation(lab: &mut Lab) -> Result<()> {
    let settings: &[(usize, usize)] = match lab.quick {
        true => &[(10, 5), (40, 5)],
        false => &[(10, 5), (20, 5), (40, 5), (50, 5), (200, 5), (40, 2), (40, 10), (40, 15)],
    };
    let named = |&(alphabet, s): &(usize, usize)| {
        (format!("alphabet {alphabet}, s = {s}"), importance(s, Some(alphabet)).0)
    };
    let case = Case {
        row: format!("K = 2, L = {DEPTH}"),
        tree: PolicyKind::paths(2, DEPTH),
        target: at(1.0),
        draft: at(DRAFT_TEMPERATURE),
        verifiers: settings.iter().map(named).collect(),
    };
    let title = format!(
        "Tokens per call by alphabet and truncation s, draft temperature {DRAFT_TEMPERATURE}"
    );
    lab.efficiencies(0.2, Table::new("truncation", &title, 3), &[case])
}

fn temperatures(lab: &mut Lab) -> Result<()> {
    let hot: &[f64] = if lab.quick { &[1.2, 2.0] } else { &[1.2, 1.4, 1.6, 2.0, 2.4] };
    let mut nodes = Vec::new();
    for &hot in hot {
        let row = || format!("T = 1, drafts 1.2 and {hot}");
        nodes.push(distinct(row(), "importance", importance(5, Some(40)).1, hot));
        nodes.push(distinct(row(), "recursive", "recursive".parse()?, hot));
        let one: Sampling = at(DRAFT_TEMPERATURE);
        let rule = Some("single".parse()?);
        let (draws, column) = (Draws::iid(1), "single".to_owned());
        nodes.push(Node {
            row: row(),
            column,
            rule,
            draws,
            target: at(1.0),
            drafts: vec![one],
            rank: None,
        });
    }
    let title = "Acceptance of two drafts of different temperatures";
    lab.acceptances(0.15, Table::new("temperatures", title, 4), &nodes)
}

fn by_paths(lab: &mut Lab) -> Result<()> {
    let mut cases = Vec::new();
    for paths in if lab.quick { 2..=3 } else { 2..=6 } {
        let names = ["walk:importance", "specinfer", "spectr", "walk:priority", "nested-priority"];
        let tree = PolicyKind::paths(paths, DEPTH);
        let case = Case::new(format!("K = {paths}, L = {DEPTH}"), tree, at(1.0), &names)?;
        cases.push(Case { draft: at(DRAFT_TEMPERATURE), ..case });
    }
    let title = format!("Tokens per call, T = 1, draft temperature {DRAFT_TEMPERATURE}");
    lab.efficiencies(0.45, Table::new("efficiency", &title, 2), &cases)
}
