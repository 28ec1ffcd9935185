//! Records of bench/table.py: `bench speed` for combinations of types, drafts, prompts and
//! temperatures.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::page::{Cell, Section};
use super::record::Record;
use polydraft_cli::commands::bench::speed::Report;

#[derive(Deserialize)]
struct Table {
    cells: Vec<Measured>,
}

/// One run of `bench speed`.
#[derive(Deserialize)]
struct Measured {
    temperature: f64,
    /// Output of the program, or its error message.
    speed: Value,
    /// Other settings; the results of one row share them.
    #[serde(flatten)]
    setting: Map<String, Value>,
}

/// Settings that are shown in a row.
const SETTING: [&str; 4] = ["target", "dtype", "draft", "text"];

/// Maximum number of cells; each may need its own row and its own temperature.
const MOST: usize = 512;

pub fn section(record: &Record) -> Result<Section> {
    let table: Table = record.read()?;
    ensure!(table.cells.len() <= MOST, "expected at most {MOST} cells, got {}", table.cells.len());
    let mut section = Section::new(record)
        .titled("bench/table.py: --tree auto beside plain decoding and fixed trees");
    let mut temperatures: Vec<f64> = table.cells.iter().map(|cell| cell.temperature).collect();
    temperatures.sort_by(f64::total_cmp);
    temperatures.dedup();
    let mut head = Vec::from(SETTING.map(str::to_owned));
    for t in &temperatures {
        head.extend([format!("T = {t}: tokens/s"), "of plain".to_owned(), "by costs".to_owned()]);
    }
    let mut rows: Vec<(&Map<String, Value>, Vec<Cell>)> = Vec::new();
    for Measured { temperature, speed, setting } in &table.cells {
        section.made(serde_json::from_value(speed.clone()).unwrap_or_default());
        let row = rows.iter().position(|(other, _)| *other == setting).unwrap_or(rows.len());
        if row == rows.len() {
            // Old records have the target only in the program's output.
            let named = |name: &str| named(setting.get(name).or_else(|| speed.get(name)));
            let mut cells = Vec::from(SETTING.map(named));
            cells.resize_with(head.len(), nothing);
            rows.push((setting, cells));
        }
        let column =
            SETTING.len() + 3 * temperatures.iter().position(|t| t == temperature).unwrap_or(0);
        rows[row].1.splice(column..column + 3, figures(speed)?);
    }
    let rows: Vec<Vec<Cell>> = rows.into_iter().map(|(_, cells)| cells).collect();
    section.table(
        "Speed of --tree auto",
        "Tokens per second, plain → auto. Then its ratio to plain decoding by wall-clock time, and \
         by the costs of forward passes, which have no noise of the machine; in brackets the same \
         of fixed trees, each text with the tree that was fastest in the others",
        &head.iter().map(String::as_str).collect::<Vec<_>>(),
        &rows,
    );
    Ok(section)
}

fn nothing() -> Cell {
    Cell::maybe(None, 0)
}

/// Formats a model's path as its file name, and other values as they are.
fn named(value: Option<&Value>) -> Cell {
    let value = value.and_then(Value::as_str).unwrap_or("–");
    Cell::words(Path::new(value).file_name().map_or(value.into(), |name| name.to_string_lossy()))
}

fn figures(speed: &Value) -> Result<[Cell; 3]> {
    if let Some(why) = speed.get("refused") {
        let why = why.as_str().unwrap_or_default();
        return Ok([Cell::words(format!("refused: {why}")), nothing(), nothing()]);
    }
    let report: Report = serde_json::from_value(speed.clone())?;
    let row = |tree: &str| report.results.iter().find(|row| row.tree == tree);
    let speed = |tree: &str| {
        row(tree).map_or("–".to_owned(), |row| format!("{:.0}", row.tokens_per_second))
    };
    let ratios = |auto: Option<f64>, tried: Option<f64>| {
        let [auto, tried] = [auto, tried]
            .map(|ratio| ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")));
        Cell::Figure(format!("{auto} ({tried})"))
    };
    let auto = row("auto");
    Ok([
        Cell::Figure(format!("{} → {}", speed("none"), speed("auto"))),
        ratios(auto.map(|row| row.ratio), report.tried_before).best(true),
        ratios(auto.and_then(|row| row.by_costs), report.tried_before_by_costs),
    ])
}
