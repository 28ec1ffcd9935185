//! Records of `efficiency`, combined: exact tokens per call, and the bound.

use anyhow::Result;
use polydraft::PolicyKind;
use serde::Deserialize;

use super::page::{Cell, Section};
use super::record::Record;
use crate::plot::{Curve, Curves, Datum};

#[derive(Deserialize, Clone)]
struct Row {
    verifier: String,
    /// `None` in records of path trees.
    tree: Option<String>,
    paths: Option<usize>,
    depth: Option<usize>,
    block_efficiency: f64,
    deviation: f64,
    bound: Option<f64>,
}

impl Row {
    /// Returns the tree as written on the command line.
    fn tree(&self) -> String {
        let paths = || format!("paths:{},{}", self.paths.unwrap_or(0), self.depth.unwrap_or(0));
        self.tree.clone().unwrap_or_else(paths)
    }

    /// Returns the maximum number of tokens drawn per call.
    fn nodes(&self) -> f64 {
        self.tree().parse::<PolicyKind>().map_or(0.0, |tree| tree.nodes())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Rows {
    Several(Vec<Row>),
    One(Row),
}

pub fn section(records: &[&Record]) -> Result<Section> {
    let mut section = Section::new(records[0]);
    if records.len() > 1 {
        section = section.merged();
        records
            .iter()
            .filter_map(|record| record.origin().command)
            .for_each(|command| section.text(&command));
    }
    let mut all = Vec::new();
    for record in records {
        match record.read()? {
            Rows::Several(rows) => all.extend(rows),
            Rows::One(row) => all.push(row),
        }
    }
    let worst = all.iter().map(|row| row.deviation).fold(0.0, f64::max);
    section.tile(format!("{worst:.1e}"), "largest deviation of an emitted distribution");
    let mut names: Vec<&str> = Vec::new();
    all.iter().for_each(|row| {
        if !names.contains(&row.verifier.as_str()) {
            names.push(&row.verifier);
        }
    });
    let curve = |name: &str, value_of: &dyn Fn(&Row) -> Option<f64>| {
        let points = all.iter().filter(|row| name == "bound" || row.verifier == name);
        let mut points: Vec<Datum> =
            points.filter_map(|row| Some(Datum::at(row.nodes(), value_of(row)?))).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x).then(a.y.total_cmp(&b.y)));
        points.dedup();
        Curve::loose(name, points)
    };
    let mut curves: Vec<Curve> =
        names.iter().map(|name| curve(name, &|row| Some(row.block_efficiency))).collect();
    curves.push(curve("bound", &|row| row.bound));
    curves.retain(|curve| !curve.points.is_empty());
    section.figure(
        "Exact tokens per call against drafted tokens",
        "Bound: the most that any lossless verifier can reach",
        &Curves::new("tokens drawn per call", "tokens per call", curves),
    )?;
    let line = |row: &Row| {
        let below = row.bound.map(|bound| bound - row.block_efficiency);
        vec![
            Cell::words(&row.verifier),
            Cell::words(row.tree()),
            Cell::number(row.block_efficiency, 6, None),
            Cell::maybe(below, 6),
            Cell::Figure(format!("{:.1e}", row.deviation)),
        ]
    };
    section.table(
        "By enumeration",
        "",
        &["verifier", "tree", "tokens per call", "below the bound", "deviation"],
        &all.iter().map(line).collect::<Vec<_>>(),
    );
    Ok(section)
}
