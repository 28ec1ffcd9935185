//! The chart of a comparison: which verifier emits the most tokens per call on the same drafts.

use std::path::PathBuf;

use crate::args::RecordArgs;
use anyhow::Result;

use super::report::{Compared, Report, print};
use crate::plot::{self, Best, DISTINGUISHABLE, Dot, Dots, Panel, WIDTH};

/// Draws a report to files, and prints it as a table or as JSON.
pub fn show(report: &Report, plots: &[PathBuf], record: &RecordArgs) -> Result<()> {
    plot::write(plots, || chart(report))?;
    record.print(report, print)
}

/// Returns a chart with a panel per tree and sampling setting, and a row per verifier, best average
/// first.
pub fn chart(report: &Report) -> Dots {
    let rows = sorted(&report.results);
    let panels = report.results.iter().map(|result| Panel {
        title: title(result),
        dots: rows.iter().map(|name| dot(result, name)).collect(),
    });
    let positions: usize = report.results.iter().map(|result| result.positions).sum();
    Dots {
        width: WIDTH,
        title: "Tokens per call of the target on the same drafts, by verifier".to_owned(),
        notes: vec![
            format!(
                "{} prompts, {positions} positions in all; decisions enumerated; bars: standard \
                 error of the difference to \
                 the highest",
                report.origin.prompts
            ),
            format!(
                "Filled: the highest, and what is less than {DISTINGUISHABLE} such errors below it"
            ),
        ],
        x_label: "tokens per call of the target (block efficiency)".to_owned(),
        panels: panels.collect(),
        best: Best::Highest,
        columns: report.results.len().min(2),
        rows,
        decimals: 3,
    }
}

pub fn title(result: &Compared) -> String {
    let cut = if result.top_p < 1.0 { format!(", top-p {}", result.top_p) } else { String::new() };
    format!("{}, T = {}{cut}", result.tree, result.temperature)
}

/// Returns the verifiers' names, best average first.
fn sorted(results: &[Compared]) -> Vec<String> {
    let mut names: Vec<(String, f64, f64)> = Vec::new();
    for row in results.iter().flat_map(|result| &result.verifiers) {
        match names.iter_mut().find(|(name, ..)| *name == row.verifier) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + row.block_efficiency, *count + 1.0),
            None => names.push((row.verifier.clone(), row.block_efficiency, 1.0)),
        }
    }
    names.sort_by(|a, b| (b.1 / b.2).total_cmp(&(a.1 / a.2)));
    names.into_iter().map(|(name, ..)| name).collect()
}

/// Returns a verifier's tokens per call, with the standard error of the difference to the panel's
/// best.
fn dot(result: &Compared, name: &str) -> Option<Dot> {
    let own = result.verifiers.iter().find(|row| row.verifier == name)?;
    let best =
        result.verifiers.iter().max_by(|a, b| a.block_efficiency.total_cmp(&b.block_efficiency))?;
    let pair = |one: &str, other: &str| {
        let pair = result.pairs.iter().find(|pair| pair.verifier == one && pair.other == other)?;
        Some(pair.error)
    };
    let error = pair(name, &best.verifier).or_else(|| pair(&best.verifier, name));
    Some(Dot { value: own.block_efficiency, error: error.unwrap_or(Some(0.0)), limit: false })
}
