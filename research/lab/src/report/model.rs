//! Records of `bench model`.

use anyhow::Result;
use serde::Deserialize;

use super::page::{Cell, Section};
use super::record::Record;
use crate::plot::{Curve, Curves, Datum};

#[derive(Deserialize)]
struct Report {
    parameters: u64,
    memory_bytes_per_second: f64,
    results: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    dtype: String,
    load_seconds: f64,
    weight_bytes: f64,
    tokens_per_second: f64,
    bytes_per_second: f64,
    bandwidth_share: f64,
    passes: Vec<Pass>,
    #[serde(default)]
    sequences: Vec<Merged>,
}

#[derive(Deserialize)]
struct Pass {
    nodes: usize,
    relative: f64,
}

#[derive(Deserialize)]
struct Merged {
    sequences: usize,
    relative: f64,
}

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!("{:.0} million parameters", report.parameters as f64 / 1e6));
    section.fact(format!("memory gives {:.1} GB/s", report.memory_bytes_per_second / 1e9));
    let chart = |y_label: &str, x_label: &str, value_of: &dyn Fn(&Row) -> Vec<(usize, f64)>| {
        let curve = |row: &Row| {
            let points = value_of(row).into_iter().map(|(x, y)| Datum::at(x as f64, y));
            Curve::joined(row.dtype.clone(), points.collect())
        };
        let curves = report.results.iter().map(curve).collect();
        Curves::new(x_label, y_label, curves).with_x(&[1.0]).with_y(&[1.0])
    };
    section.figure(
        "Cost of a forward pass",
        "Relative to one token per pass",
        &chart("cost", "tokens per forward pass", &|row| {
            row.passes.iter().map(|pass| (pass.nodes, pass.relative)).collect()
        }),
    )?;
    if report.results.iter().any(|row| !row.sequences.is_empty()) {
        section.figure(
            "Batched decoding",
            "Tokens per second, relative to batch size 1",
            &chart("tokens per second", "batch size", &|row| {
                row.sequences.iter().map(|merged| (merged.sequences, merged.relative)).collect()
            }),
        )?;
    }
    let line = |row: &Row| {
        vec![
            Cell::words(&row.dtype),
            Cell::number(row.load_seconds, 2, None),
            Cell::number(row.weight_bytes / 1e9, 2, None),
            Cell::number(row.tokens_per_second, 1, None),
            Cell::number(row.bytes_per_second / 1e9, 1, None),
            Cell::Figure(format!("{:.0} %", 100.0 * row.bandwidth_share)),
        ]
    };
    section.table(
        "By weight storage",
        "",
        &["dtype", "loading, s", "weights, GB", "tokens/s", "read, GB/s", "of memory's"],
        &report.results.iter().map(line).collect::<Vec<_>>(),
    );
    Ok(section)
}
