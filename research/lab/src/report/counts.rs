//! Records of `bench acceptance` and `generate`: acceptance rates of drafts by their rank at a
//! node.

use anyhow::Result;
use serde::Deserialize;

use super::page::{Cell, Section};
use super::record::{Kind, Record};
use crate::plot::{Curve, Curves, Datum};

#[derive(Deserialize)]
struct Acceptance {
    verifier: Option<String>,
    acceptance: Vec<f64>,
    #[serde(default)]
    error: Vec<f64>,
    positions: Option<usize>,
}

#[derive(Deserialize)]
struct Text {
    tokens: Vec<serde_json::Value>,
    seed: u64,
    stats: Stats,
}

#[derive(Deserialize)]
struct Stats {
    block_efficiency: f64,
    nodes_per_call: f64,
    accepted_by_position: Vec<f64>,
    accepted_by_draft: Vec<f64>,
    time_ms: Times,
    tokens_per_second: f64,
}

#[derive(Deserialize)]
struct Times {
    draft: f64,
    target: f64,
    verify: f64,
    total: f64,
}

pub fn section(record: &Record) -> Result<Section> {
    if record.kind == Kind::Generate { text(record) } else { acceptance(record) }
}

fn acceptance(record: &Record) -> Result<Section> {
    let Acceptance { verifier, acceptance, error, positions } = record.read()?;
    let mut section = Section::new(record);
    verifier.into_iter().for_each(|verifier| section.fact(verifier));
    positions.into_iter().for_each(|positions| section.fact(format!("{positions} positions")));
    let sum: f64 = acceptance.iter().sum();
    section.tile(format!("{:.1} %", 100.0 * sum), "of the positions accept a draft");
    section.figure(
        "Acceptance by draft",
        "How often the first, second, .. distinct draft at a node is the one accepted",
        &chart("draft", &acceptance, &error),
    )?;
    let row = |(index, rate): (usize, &f64)| {
        vec![Cell::words(index + 1), Cell::number(*rate, 4, error.get(index).copied())]
    };
    section.table(
        "Acceptance by draft",
        "",
        &["draft", "accepted"],
        &acceptance.iter().enumerate().map(row).collect::<Vec<_>>(),
    );
    Ok(section)
}

fn text(record: &Record) -> Result<Section> {
    let Text { tokens, seed, stats } = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!("{} tokens, seed {seed}", tokens.len()));
    section.tile(format!("{:.2}", stats.block_efficiency), "tokens per call of the target");
    section.tile(format!("{:.1}", stats.nodes_per_call), "distinct tokens drafted per call");
    section.tile(format!("{:.0}", stats.tokens_per_second), "tokens per second");
    for (name, rates) in
        [("position", &stats.accepted_by_position), ("draft", &stats.accepted_by_draft)]
    {
        if !rates.is_empty() {
            section.figure(&format!("Acceptance by {name}"), "", &chart(name, rates, &[]))?;
        }
    }
    let Times { draft, target, verify, total } = stats.time_ms;
    section.table(
        "Where the time went",
        "Draft, target, verifier",
        &["milliseconds", "shares"],
        &[vec![
            Cell::number(total, 1, None),
            Cell::Shares([draft, target, verify].map(|t| t / total).to_vec()),
        ]],
    );
    Ok(section)
}

fn chart(place: &str, rates: &[f64], errors: &[f64]) -> Curves {
    let point = |(index, &y): (usize, &f64)| {
        Datum::at((index + 1) as f64, y).within(errors.get(index).copied())
    };
    let accepted = Curve::joined("accepted", rates.iter().enumerate().map(point).collect());
    Curves::new(place, "accepted", vec![accepted]).with_x(&[1.0]).with_y(&[0.0])
}
