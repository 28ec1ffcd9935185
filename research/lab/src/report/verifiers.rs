//! Records of `bench verifiers`.

use anyhow::Result;

use super::page::{Cell, Section, number};
use super::record::Record;
use crate::bench::verifiers::{Compared, Report, chart};
use crate::plot::{Curve, Curves, Datum, Dots, Panel};

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!(
        "{} prompts, sequences of {} tokens",
        report.origin.prompts, report.origin.max_tokens
    ));
    report
        .origin
        .steps_of
        .iter()
        .for_each(|verifier| section.fact(format!("at the steps of {verifier}")));
    for result in &report.results {
        let ahead = result
            .verifiers
            .iter()
            .max_by(|a, b| a.block_efficiency.total_cmp(&b.block_efficiency));
        if let Some(best) = ahead {
            section.tile(
                format!("{:.3}", best.block_efficiency),
                format!("tokens per call at most, {} on {}", best.verifier, chart::title(result)),
            );
        }
    }
    let all = chart::chart(&report);
    for (panel, result) in all.panels.iter().zip(&report.results) {
        let chart = Dots {
            width: 640,
            title: String::new(),
            notes: Vec::new(),
            panels: vec![Panel { title: String::new(), ..panel.clone() }],
            columns: 1,
            ..all.clone()
        };
        section.figure(
            &format!("Tokens per call on the same drafts, {}", panel.title),
            &format!(
                "{} positions of {} sequences; bars: standard error of the difference to \
                 the highest",
                result.positions, result.outputs
            ),
            &chart,
        )?;
    }
    if report.results.len() > 1 {
        section.figure(
            "Tokens per call against nodes",
            "One point for each tree",
            &against_nodes(&report),
        )?;
    }
    for result in &report.results {
        let first = result.verifiers.first().map_or("", |row| row.verifier.as_str());
        section.table(
            &chart::title(result),
            &format!("{:.1} nodes per call", result.nodes_per_call),
            &["verifier", "tokens per call", &format!("less {first}")],
            &rows(result),
        );
    }
    Ok(section)
}

fn rows(result: &Compared) -> Vec<Vec<Cell>> {
    let best = result.verifiers.iter().map(|row| row.block_efficiency).fold(0.0, f64::max);
    let row = |(index, row): (usize, &crate::bench::verifiers::Row)| {
        let difference = match index {
            0 => String::new(),
            _ => signed(row.difference, row.difference_error),
        };
        vec![
            Cell::words(&row.verifier),
            Cell::number(row.block_efficiency, 4, row.block_efficiency_error)
                .best(row.block_efficiency == best),
            Cell::Figure(difference),
        ]
    };
    result.verifiers.iter().enumerate().map(row).collect()
}

/// Formats a difference with its sign.
fn signed(difference: f64, error: Option<f64>) -> String {
    let sign = if difference >= 0.0 { "+" } else { "" };
    format!("{sign}{}", number(difference, 4, error))
}

fn against_nodes(report: &Report) -> Curves {
    let mut names: Vec<&str> = Vec::new();
    for row in report.results.iter().flat_map(|result| &result.verifiers) {
        if !names.contains(&row.verifier.as_str()) {
            names.push(&row.verifier);
        }
    }
    let curve = |name: &&str| {
        let points = report.results.iter().filter_map(|result| {
            let row = result.verifiers.iter().find(|row| row.verifier == **name)?;
            Some(
                Datum::at(result.nodes_per_call, row.block_efficiency)
                    .within(row.block_efficiency_error),
            )
        });
        Curve::loose(*name, points.collect())
    };
    Curves::new("nodes per call", "tokens per call", names.iter().map(curve).collect())
}
