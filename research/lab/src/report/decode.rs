//! Records of `bench decode`.

use anyhow::Result;

use super::page::{Cell, Section};
use super::record::Record;
use crate::bench::decode::{Report, Row, chart};
use crate::plot::{Curve, Curves, Datum};

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!(
        "{} prompts, {} tokens each, {} rounds",
        report.prompts, report.max_tokens, report.rounds
    ));
    let speculative = || report.results.iter().filter(|row| row.verifier != "none");
    if let Some(best) =
        speculative().max_by(|a, b| a.block_efficiency.total_cmp(&b.block_efficiency))
    {
        section.tile(
            format!("{:.2}", best.block_efficiency),
            format!("tokens per call at most, {}", name(best)),
        );
    }
    if let Some(best) = speculative().max_by(|a, b| a.ratio.total_cmp(&b.ratio)) {
        section.tile(
            format!("{:.2} ×", best.ratio),
            format!("plain decoding's speed at most, {}", name(best)),
        );
    }
    if report.ties > 0 {
        section.tile(
            report.ties.to_string(),
            "outputs that differ at a tie within rounding, at temperature 0",
        );
    }
    for panel in panels(&report) {
        let title = panel.panels.first().map_or(String::new(), |panel| panel.title.clone());
        let caption = format!("Tokens per call of the target, {title}");
        section.figure(
            &caption,
            "Filled: the highest, and values that do not differ significantly",
            &panel,
        )?;
    }
    let temperatures = temperatures(&report);
    let expected = report.results.iter().any(|row| row.expected_tokens_per_second.is_some());
    let hollow = if expected { "; hollow: predicted by the measured costs of passes" } else { "" };
    let cost = format!("Cost: seconds per call, in units of plain decoding's{hollow}");
    for &temperature in &temperatures {
        let at = if temperatures.len() > 1 {
            format!(", temperature {temperature}")
        } else {
            String::new()
        };
        section.figure(
            &format!("Tokens per call against nodes{at}"),
            "Nodes: distinct tokens drafted per call. The line is one token more than there are \
             nodes: the bound of one path",
            &against_nodes(&report, temperature),
        )?;
        section.figure(
            &format!("Tokens per second against the cost of a call{at}"),
            &cost,
            &against_cost(&report, temperature),
        )?;
    }
    section.table(
        "All methods",
        "Time: draft (first), target, verifier",
        &["verifier", "tree", "T", "tokens per call", "nodes", "tokens/s", "of plain", "time"],
        &report.results.iter().map(|row| line(row, &report)).collect::<Vec<_>>(),
    );
    Ok(section)
}

/// Draws one chart per panel, so that each is readable on a small screen.
fn panels(report: &Report) -> Vec<crate::plot::Dots> {
    let all = chart::chart(report);
    let one = |panel: crate::plot::Panel| crate::plot::Dots {
        width: 640,
        title: String::new(),
        notes: Vec::new(),
        panels: vec![panel],
        columns: 1,
        ..all.clone()
    };
    all.panels.clone().into_iter().map(one).collect()
}

fn temperatures(report: &Report) -> Vec<f64> {
    let mut all: Vec<f64> = report.results.iter().map(|row| row.temperature).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

fn tree(row: &Row) -> String {
    match (row.paths, row.depth, &row.tree) {
        (Some(paths), Some(depth), _) => format!("{paths} × {depth}"),
        (_, _, Some(tree)) => tree.clone(),
        _ => String::new(),
    }
}

fn name(row: &Row) -> String {
    format!("{} {}", row.verifier, tree(row)).trim_end().to_owned()
}

/// Returns a curve per verifier, with the number of nodes as x.
fn curves(report: &Report, temperature: f64, value_of: impl Fn(&Row) -> Datum) -> Vec<Curve> {
    let rows = || {
        report.results.iter().filter(|row| row.temperature == temperature && row.verifier != "none")
    };
    let mut names: Vec<&str> = rows().map(|row| row.verifier.as_str()).collect();
    let mut seen = Vec::new();
    names.retain(|name| {
        !seen.contains(name) && {
            seen.push(*name);
            true
        }
    });
    let curve = |name: &str| {
        let mut points: Vec<Datum> =
            rows().filter(|row| row.verifier == name).map(&value_of).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Curve::joined(name, points)
    };
    names.into_iter().map(curve).collect()
}

fn against_nodes(report: &Report, temperature: f64) -> Curves {
    let mut curves = curves(report, temperature, |row| {
        Datum::at(row.nodes_per_call, row.block_efficiency).within(row.block_efficiency_error)
    });
    let most =
        curves.iter().flat_map(|curve| &curve.points).map(|point| point.y).fold(1.0, f64::max);
    curves.push(Curve::guide("bound", [(0.0, 1.0), (most - 0.9, most + 0.1)]));
    Curves::new("nodes per call", "tokens per call", curves).with_x(&[0.0]).with_y(&[1.0])
}

fn against_cost(report: &Report, temperature: f64) -> Curves {
    let plain =
        report.results.iter().find(|row| row.verifier == "none" && row.temperature == temperature);
    let speed = plain.map_or(1.0, |row| row.tokens_per_second);
    let cost = |row: &Row| row.block_efficiency * speed / row.tokens_per_second;
    let mut curves = curves(report, temperature, |row| Datum {
        expected: row.expected_tokens_per_second,
        ..Datum::at(cost(row), row.tokens_per_second)
    });
    let most =
        curves.iter().flat_map(|curve| &curve.points).map(|point| point.x).fold(1.0, f64::max);
    curves.push(Curve::guide("plain decoding", [(1.0, speed), (most, speed)]));
    Curves::new("cost of a call, in passes of plain decoding", "tokens per second", curves)
        .with_x(&[1.0])
}

fn line(row: &Row, report: &Report) -> Vec<Cell> {
    let alike = || report.results.iter().filter(|other| other.temperature == row.temperature);
    let best = |value_of: fn(&Row) -> f64| alike().all(|other| value_of(other) <= value_of(row));
    vec![
        Cell::words(&row.verifier),
        Cell::words(tree(row)),
        Cell::words(row.temperature),
        Cell::number(row.block_efficiency, 3, row.block_efficiency_error)
            .best(best(|row| row.block_efficiency)),
        Cell::number(row.nodes_per_call, 1, None),
        Cell::number(row.tokens_per_second, 0, None).best(best(|row| row.tokens_per_second)),
        Cell::Figure(format!("{:.2} ×", row.ratio)),
        Cell::Shares(vec![row.draft_share, row.target_share, row.verify_share]),
    ]
}
