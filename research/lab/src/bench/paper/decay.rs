//! SpecHub (Sun et al. 2024), figure 7: gain of each of ten drafts at a node with recursive
//! rejection.
//!
//! Recursive rejection examines one draft after the other, so the first n of ten drafts are
//! accepted as often as n drafts alone, and the gain of the n-th is the difference. No values can
//! be read off the figure.

use anyhow::Result;
use polydraft::{Drafting, Draws};
use polydraft_reference::comparison::Sample;

use super::lab::{Lab, Node};
use super::table::Table;
use crate::cut::CutArgs;

const DRAFTS: usize = 10;

pub fn measure(lab: &mut Lab) -> Result<()> {
    let sampling = lab.at(1.0, CutArgs::default());
    let mut nodes = Vec::new();
    for count in 1..=if lab.quick { 3 } else { DRAFTS } {
        for (column, rule, scheme) in [
            ("RRS", Some("recursive"), Drafting::Iid),
            ("RRSw", Some("recursive"), Drafting::WithoutReplacement),
            ("OTM", None, Drafting::Iid),
        ] {
            nodes.push(Node {
                row: row(count),
                column: column.to_owned(),
                rule: rule.map(polydraft_reference::rule).transpose()?,
                draws: Draws { scheme, count },
                target: sampling,
                drafts: vec![sampling],
                rank: None,
            });
        }
    }
    let title = "Acceptance of n drafts at a node, T = 1";
    lab.acceptances(0.12, Table::of_columns("drafts", title, 4), &nodes)?;
    if let Some(table) = lab.last().filter(|table| table.name == "drafts") {
        let each = each(table);
        lab.keep(each);
    }
    Ok(())
}

fn row(count: usize) -> String {
    format!("n = {count}")
}

/// Returns the gain of each draft over those before it, for each sequence.
fn each(drafts: &Table) -> Table {
    let title = "How often the n-th draft is accepted, T = 1";
    let mut table = Table::of_columns("decay", title, 4);
    for count in 1..=DRAFTS {
        for column in ["RRS", "RRSw"] {
            let Some(own) = drafts.entry(&row(count), column) else { continue };
            let fewer = drafts.entry(&row(count - 1), column);
            let less = |(position, sample): (usize, &Sample)| {
                let before = fewer.map_or(0.0, |fewer| fewer.series[position].tokens[0]);
                Sample { tokens: vec![sample.tokens[0] - before], ..sample.clone() }
            };
            let series = own.series.iter().enumerate().map(less).collect();
            table.add_series(row(count), column, series);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_draft_adds_the_difference() {
        let mut drafts = Table::of_columns("drafts", "", 4);
        let samples = |values: [f64; 2]| {
            let one = |(prompt, value): (usize, f64)| Sample {
                prompt,
                positions: 1,
                drafts: 1,
                nodes: 0,
                tokens: vec![value],
            };
            values.into_iter().enumerate().map(one).collect::<Vec<_>>()
        };
        drafts.add_series("n = 1", "RRS", samples([0.5, 0.7]));
        drafts.add_series("n = 2", "RRS", samples([0.6, 0.8]));
        let table = each(&drafts);
        let value_of = |row: &str| table.entry(row, "RRS").expect("an entry").ours;
        assert!((value_of("n = 1").value - 0.6).abs() < 1e-12);
        // Equal for both sequences, so the error is 0.
        assert!((value_of("n = 2").value - 0.1).abs() < 1e-12);
        assert!(value_of("n = 2").error.expect("an error") < 1e-12);
    }
}
