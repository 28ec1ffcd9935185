//! The canonical decomposition (Khisti et al. 2025), tables 1 to 4, theorem 2 and figures 3, 4, 8
//! and 9: importance-weighted selection by the number of drafts, the truncation of its program, its
//! alphabet, and the temperatures of drafts and target.
//!
//! Their paths have five tokens. They sample from the 50 likeliest tokens, but acceptance rates
//! (table 2) use top-p 0.5. Both numbers are missing in our copy of the paper, and were chosen to
//! fit its values. Without them the paper's order is reversed, because the alphabet of 40 tokens
//! omits too much: see `--top-k 100000 --top-p 1`.

use anyhow::Result;
use polydraft::coupling::registry::WalkRule;
use polydraft::policy::Distinct;
use polydraft::{Drafting, Draws, PolicyKind, acceptance};
use polydraft_reference::rule;

use super::lab::{Case, Lab, Node, Sum, importance};
use super::table::Table;
use crate::cut::CutArgs;

const DEPTH: usize = 5;
/// Temperature of identical drafts, and of the first of two drafts.
const DRAFT_TEMPERATURE: f64 = 1.2;
const TOP_K: CutArgs = CutArgs { top_k: Some(50), top_p: None };
const TOP_P: CutArgs = CutArgs { top_k: None, top_p: Some(0.5) };

/// Temperatures of the target, and of both drafts.
const FIGURE_4: [(f64, f64); 5] = [(0.2, 1.0), (0.4, 1.0), (0.6, 1.0), (0.8, 1.0), (1.0, 1.0)];
const FIGURE_8: [(f64, f64); 5] = [(1.0, 1.2), (1.0, 1.4), (1.0, 1.6), (1.0, 2.0), (1.0, 2.4)];

pub fn measure(lab: &mut Lab) -> Result<()> {
    acceptances(lab)?;
    enough(lab)?;
    truncation(lab)?;
    temperatures(lab)?;
    by_target(lab)?;
    by_paths(lab)?;
    truncated(lab)
}

/// Measures theorem 2: whether some rule always accepts one of two i.i.d. drafts.
fn enough(lab: &mut Lab) -> Result<()> {
    if lab.is_interrupted() {
        return Ok(());
    }
    let title = "Positions at which some rule always accepts one of two drafts (theorem 2)";
    let mut table = Table::new("enough", title, 4);
    for (row, cut) in
        [("top-p 0.5", TOP_P), ("top-k 50", TOP_K), ("all tokens", CutArgs::default())]
    {
        let sampling = lab.at(1.0, cut);
        let mut sum = Sum::default();
        for pair in lab.pairs(sampling, if lab.quick { 24 } else { 240 })? {
            let (target, draft) = (pair.target(&sampling)?, pair.draft(&sampling)?);
            sum.add(f64::from(u8::from(acceptance::two_drafts_suffice(&target, &draft))));
        }
        table.add(row, "part of positions", sum.mean(), None);
    }
    lab.keep(table);
    Ok(())
}

/// Measures table 3, whose values are missing in our copy of the paper: identical drafts at
/// temperature 1 from few tokens. Adds drafts from all tokens, which the paper does not have.
fn truncated(lab: &mut Lab) -> Result<()> {
    if lab.quick {
        return Ok(());
    }
    let five = CutArgs { top_k: Some(5), top_p: None };
    let mut cases = Vec::new();
    for (name, cut) in [("top-k 5", five), ("top-p 0.5", TOP_P), ("all tokens", CutArgs::default())]
    {
        for paths in 2..=3 {
            let names = ["walk:importance", "spectr", "specinfer", "nested-priority"];
            let tree = PolicyKind::paths(paths, DEPTH);
            cases.push(Case::new(format!("{name}, K = {paths}"), tree, lab.at(1.0, cut), &names)?);
        }
    }
    let title = "Tokens per call from few tokens and from all, T = 1, L = 5";
    let mut table = Table::of_columns("truncated", title, 3);
    table.remark = Some(
        "from all tokens importance weighting is the last: its alphabet of 40 leaves out too \
         much; the paper's order is that of its sampling"
            .to_owned(),
    );
    lab.efficiencies(0.12, table, &cases)
}

fn acceptances(lab: &mut Lab) -> Result<()> {
    let sampling = lab.at(1.0, TOP_P);
    let mut nodes = Vec::new();
    for count in if lab.quick { 2..=3 } else { 2..=4 } {
        let rules: [(&str, Option<WalkRule>); 4] = [
            ("optimal", None),
            ("importance", Some(importance(5, Some(40)).1)),
            ("k-seq", Some(rule("k-seq")?)),
            ("recursive", Some(rule("recursive")?)),
        ];
        for (column, rule) in rules {
            nodes.push(Node {
                row: format!("n = {count}"),
                column: column.to_owned(),
                rule,
                draws: Draws::iid(count),
                target: sampling,
                drafts: vec![sampling],
                rank: None,
            });
        }
    }
    let title = "Acceptance of n drafts at a node, T = 1, top-p 0.5";
    lab.acceptances(0.13, Table::of_columns("acceptance", title, 4), &nodes)
}

/// Measures table 1: drafts with temperatures 1.2 and 2.
fn truncation(lab: &mut Lab) -> Result<()> {
    let settings: &[(usize, usize)] = match lab.quick {
        true => &[(10, 5), (40, 5)],
        false => &[(10, 5), (20, 5), (40, 5), (50, 5), (200, 5), (40, 2), (40, 10), (40, 15)],
    };
    let named = |&(alphabet, s): &(usize, usize)| {
        (format!("alphabet {alphabet}, s = {s}"), importance(s, Some(alphabet)).0)
    };
    let draft = lab.at(DRAFT_TEMPERATURE, TOP_K);
    let case = Case {
        row: format!("K = 2, L = {DEPTH}"),
        tree: PolicyKind::Distinct(Distinct { drafts: 2, depth: DEPTH }),
        target: lab.at(1.0, TOP_K),
        draft,
        each: vec![draft, lab.at(2.0, TOP_K)],
        verifiers: settings.iter().map(named).collect(),
    };
    let title = format!(
        "Tokens per call by alphabet and truncation s, top-k 50, drafts of temperatures \
         {DRAFT_TEMPERATURE} and 2"
    );
    lab.efficiencies(0.1, Table::of_columns("truncation", &title, 3), &[case])
}

/// Measures two drafts; the second one has the same or a higher temperature.
fn temperatures(lab: &mut Lab) -> Result<()> {
    let hot: &[f64] = if lab.quick { &[1.2, 2.0] } else { &[1.2, 1.4, 1.6, 2.0, 2.4] };
    let two = Draws { scheme: Drafting::Distinct, count: 2 };
    let mut nodes = Vec::new();
    for &hot in hot {
        let both = [lab.at(DRAFT_TEMPERATURE, TOP_K), lab.at(hot, TOP_K)];
        for (column, rule, draws) in [
            ("importance", importance(5, Some(40)).1, two),
            ("recursive", rule("recursive")?, two),
            ("single", rule("single")?, Draws::iid(1)),
        ] {
            nodes.push(Node {
                row: format!("T = 1, drafts {DRAFT_TEMPERATURE} and {hot}"),
                column: column.to_owned(),
                rule: Some(rule),
                draws,
                target: lab.at(1.0, TOP_K),
                drafts: both[..if draws.count == 1 { 1 } else { 2 }].to_vec(),
                rank: None,
            });
        }
    }
    let title = "Acceptance of two drafts of different temperatures, top-k 50";
    lab.acceptances(0.1, Table::of_columns("temperatures", title, 4), &nodes)?;
    several(lab)
}

/// Measures figures 3 and 9: walks with one path of each draft, for two drafts (the second one has
/// the same or a higher temperature) and for three.
fn several(lab: &mut Lab) -> Result<()> {
    let hot: &[f64] = if lab.quick { &[2.0] } else { &[1.2, 1.6, 2.0, 2.4] };
    let (target, draft) = (lab.at(1.0, TOP_K), lab.at(DRAFT_TEMPERATURE, TOP_K));
    let mut cases = Vec::new();
    let names = ["walk:importance", "specinfer"];
    let mut all: Vec<Vec<f64>> = hot.iter().map(|&hot| vec![DRAFT_TEMPERATURE, hot]).collect();
    if !lab.quick {
        all.extend(hot.iter().map(|&hot| vec![hot, DRAFT_TEMPERATURE, 1.4]));
    }
    for temperatures in all {
        let named: Vec<String> = temperatures.iter().map(f64::to_string).collect();
        let row = format!("drafts {}", named.join(" and "));
        let tree = PolicyKind::Distinct(Distinct { drafts: temperatures.len(), depth: DEPTH });
        let each: Vec<_> = temperatures.iter().map(|&own| lab.at(own, TOP_K)).collect();
        let case = Case::new(&row, tree, target, &names)?;
        cases.push(Case { draft, each, ..case });
        // A single draft at the first temperature.
        let alone = Case::new(row, PolicyKind::chain(DEPTH), target, &["token"])?;
        cases.push(Case { draft, ..alone });
    }
    let title = "Tokens per call with a path of each draft, T = 1, L = 5, top-k 50";
    lab.efficiencies(0.15, Table::of_columns("several", title, 3), &cases)
}

/// Measures figures 4 and 8: two identical drafts, by the target's and by the drafts' temperature.
/// The temperatures of figure 4 are missing in our copy of the paper.
fn by_target(lab: &mut Lab) -> Result<()> {
    if lab.quick {
        return Ok(());
    }
    for (name, value_of, pairs) in [
        ("target-temperatures", "the target's temperature, drafts at 1", FIGURE_4),
        ("draft-temperatures", "the drafts' temperature, target at 1", FIGURE_8),
    ] {
        let mut cases = Vec::new();
        for (target, draft) in pairs {
            let row = format!("target {target}, drafts {draft}");
            let names = ["walk:importance", "spectr", "specinfer"];
            let (target, draft) = (lab.at(target, TOP_K), lab.at(draft, TOP_K));
            let case = Case::new(&row, PolicyKind::paths(2, DEPTH), target, &names)?;
            cases.push(Case { draft, ..case });
            let alone = Case::new(row, PolicyKind::paths(1, DEPTH), target, &["token"])?;
            cases.push(Case { draft, ..alone });
        }
        let title = format!("Tokens per call by {value_of}, K = 2, L = 5, top-k 50");
        lab.efficiencies(0.1, Table::of_columns(name, &title, 3), &cases)?;
    }
    Ok(())
}

fn by_paths(lab: &mut Lab) -> Result<()> {
    let mut cases = Vec::new();
    for paths in if lab.quick { 2..=3 } else { 2..=6 } {
        let names = ["walk:importance", "specinfer", "spectr", "walk:priority", "nested-priority"];
        let (row, tree) = (format!("K = {paths}, L = {DEPTH}"), PolicyKind::paths(paths, DEPTH));
        let case = Case::new(row, tree, lab.at(1.0, TOP_K), &names)?;
        cases.push(Case { draft: lab.at(DRAFT_TEMPERATURE, TOP_K), ..case });
    }
    let title = format!("Tokens per call, T = 1, top-k 50, draft temperature {DRAFT_TEMPERATURE}");
    lab.efficiencies(0.2, Table::of_rows("efficiency", &title, 2), &cases)
}
