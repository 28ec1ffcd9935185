//! Records of `bench speed`.

use anyhow::Result;
use polydraft::policy::{Pass, Passes};

use super::page::{Cell, Section};
use super::record::Record;
use crate::plot::{Curve, Curves, Datum};
use polydraft_cli::commands::bench::speed::{Report, Row};

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let title =
        format!("bench speed: {} with {}, T = {}", report.target, report.draft, report.temperature);
    let mut section = Section::new(record).titled(title);
    section.fact(format!("{} sequences per method", report.generations));
    let row = |tree: &str| report.results.iter().find(|row| row.tree == tree);
    for (tree, what) in
        [("auto", "the adaptive draft length"), (report.fastest.as_str(), "the fastest here")]
    {
        if let Some(row) = row(tree) {
            section.tile(
                format!("{:.2} ×", row.ratio),
                format!("plain decoding's speed with {tree}, {what}"),
            );
        }
    }
    section.text(&report.verdict);
    let plain = row("none").map_or(1.0, |row| row.tokens_per_second);
    let most = report.results.iter().map(|row| cost(row, plain)).fold(1.0, f64::max);
    let point = |row: &Row| Datum::at(cost(row, plain), row.tokens_per_second);
    let mut curves: Vec<Curve> =
        report.results.iter().map(|row| Curve::loose(row.tree.clone(), vec![point(row)])).collect();
    curves.push(Curve::guide("plain decoding's speed", [(1.0, plain), (most, plain)]));
    section.figure(
        "Tokens per second against the cost of a call",
        "Cost: seconds per call, in units of plain decoding's",
        &Curves::new("cost of a call, in passes of plain decoding", "tokens per second", curves)
            .with_x(&[1.0]),
    )?;
    let passes = |name: &str, passes: &Passes| {
        let point = |pass: &Pass| Datum::at(pass.tokens as f64, 1e3 * pass.seconds);
        Curve::joined(name, passes.0.iter().map(point).collect())
    };
    section.figure(
        "Cost of a forward pass",
        "Milliseconds, by tokens per forward pass",
        &Curves::new(
            "tokens per forward pass",
            "milliseconds",
            vec![passes("target", &report.costs.target), passes("draft", &report.costs.draft)],
        )
        .with_y(&[0.0]),
    )?;
    let line = |row: &Row| {
        vec![
            Cell::words(&row.tree),
            Cell::number(row.tokens_per_second, 1, None).best(row.tree == report.fastest),
            Cell::Figure(format!("{:.2} ×", row.ratio)),
            Cell::Figure(row.by_costs.map_or("-".to_owned(), |ratio| format!("{ratio:.2} ×"))),
            Cell::number(row.block_efficiency, 2, None),
            Cell::number(row.nodes_per_call, 1, None),
            Cell::Shares(vec![row.draft_share, 1.0 - row.draft_share]),
        ]
    };
    section.table(
        "Methods, in turn",
        "Time: draft, all else",
        &["tree", "tokens/s", "of plain", "by costs", "tokens per call", "nodes", "time"],
        &report.results.iter().map(line).collect::<Vec<_>>(),
    );
    Ok(section)
}

/// Returns the seconds per call, relative to plain decoding.
fn cost(row: &Row, plain: f64) -> f64 {
    row.block_efficiency * plain / row.tokens_per_second
}
