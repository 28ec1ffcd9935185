//! Records of `certify`, combined: the p-values of a lossless verifier are uniformly distributed.

use anyhow::Result;
use serde::Deserialize;

use super::page::{Cell, Section};
use super::record::Record;
use crate::plot::{Curve, Curves, Datum};

#[derive(Deserialize)]
struct Report {
    verdict: String,
    verifier: String,
    tree: String,
    runs: u32,
    cells: usize,
    statistic: f64,
    freedom: usize,
    p_value: f64,
    greedy_equal: usize,
    greedy_ties: usize,
    greedy_different: usize,
}

/// Minimum number of p-values for which the maximum distance from the diagonal is meaningful.
const ENOUGH: usize = 8;

pub fn section(records: &[&Record]) -> Result<Section> {
    let reports = records.iter().map(|record| record.read()).collect::<Result<Vec<Report>>>()?;
    let mut section = Section::new(records[0]).merged();
    let passed = reports.iter().filter(|report| report.verdict == "pass").count();
    section.tile(format!("{passed} of {}", reports.len()), "runs passed");
    let sum = |value_of: fn(&Report) -> usize| reports.iter().map(value_of).sum::<usize>();
    let outputs = sum(|r| r.greedy_equal + r.greedy_ties + r.greedy_different);
    section.tile(
        format!("{} of {outputs}", sum(|r| r.greedy_equal)),
        format!(
            "outputs at temperature 0 equal plain decoding's, {} differ at ties",
            sum(|r| r.greedy_ties)
        ),
    );
    // Without degrees of freedom nothing was tested, and there is no p-value.
    let mut values: Vec<f64> =
        reports.iter().filter(|report| report.freedom > 0).map(|report| report.p_value).collect();
    values.sort_by(f64::total_cmp);
    if values.len() > 1 {
        let count = values.len() as f64;
        let expected = |index: usize| (index as f64 + 0.5) / count;
        let points = values.iter().enumerate().map(|(i, &y)| Datum::at(expected(i), y));
        let distance =
            values.iter().enumerate().map(|(i, p)| (p - expected(i)).abs()).fold(0.0, f64::max);
        // Kolmogorov's distance, and the limit that one run in twenty exceeds.
        let (distance, limit) =
            (distance + 0.5 / count, 1.358 / (count.sqrt() + 0.12 + 0.11 / count.sqrt()));
        if values.len() >= ENOUGH {
            let limit = format!(
                "largest distance of the p-values from uniform; one set in twenty of {count} has \
                 more than {limit:.2}"
            );
            section.tile(format!("{distance:.2}"), limit);
        }
        section.figure(
            "Calibration: p-values in order, against where uniform ones lie",
            "A lossless verifier's lie along the line; a wrong one's at 0",
            &Curves::new(
                "expected",
                "p-value",
                vec![
                    Curve::loose("runs", points.collect()),
                    Curve::guide("uniform", [(0.0, 0.0), (1.0, 1.0)]),
                ],
            )
            .with_x(&[0.0, 1.0])
            .with_y(&[0.0, 1.0]),
        )?;
    }
    let line = |(record, report): (&&Record, &Report)| {
        vec![
            Cell::words(&report.verdict),
            Cell::words(format!("{}, {}", report.verifier, report.tree)),
            Cell::words(report.runs),
            Cell::words(report.cells),
            Cell::Figure(format!("{:.1} ({})", report.statistic, report.freedom)),
            Cell::number(report.p_value, 4, None),
            Cell::words(record.origin().command.unwrap_or_else(|| "not recorded".to_owned())),
        ]
    };
    section.table(
        "Runs",
        "G: statistic of the test, in brackets its degrees of freedom",
        &["verdict", "verifier", "runs", "cells", "G", "p-value", "command"],
        &records.iter().zip(&reports).map(line).collect::<Vec<_>>(),
    );
    Ok(section)
}
