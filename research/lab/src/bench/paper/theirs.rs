//! Values of the papers' tables, with their sources, from `theirs.json`. The file contains numbers
//! only, no text of the papers.

use serde::{Deserialize, Serialize};

const ALL: &str = include_str!("theirs.json");

/// A measured value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Value {
    pub value: f64,
    /// Standard error, if the value is an estimate.
    pub error: Option<f64>,
}

/// A table of a paper.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    /// Authors, year, number of the table.
    pub source: String,
    /// Models that the paper measured.
    pub models: String,
    /// Row, column, value, and its error if published.
    #[serde(skip_serializing, default)]
    figures: Vec<(String, String, f64, Option<f64>)>,
    /// Orders that the paper's text states without readable values.
    #[serde(skip_serializing, default)]
    pub claims: Vec<Claim>,
}

/// Row and column of the larger value, and of the smaller one.
pub type Claim = (String, String, String, String);

impl Source {
    /// Returns the paper's value for a row and a column of our table.
    pub fn figure(&self, row: &str, column: &str) -> Option<Value> {
        let figure = self.figures.iter().find(|figure| figure.0 == row && figure.1 == column)?;
        Some(Value { value: figure.2, error: figure.3 })
    }
}

#[derive(Deserialize)]
struct Stored {
    paper: String,
    table: String,
    source: String,
    models: String,
    /// Columns, and rows with a value per column; null if the paper has none.
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<f64>>)>,
    /// Errors in the shape of the values, if published.
    #[serde(default)]
    errors: Vec<Vec<Option<f64>>>,
    #[serde(default)]
    claims: Vec<Claim>,
}

/// Returns the tables of a paper that have values for one of our tables.
pub fn sources(paper: &str, table: &str) -> Vec<Source> {
    let all: Vec<Stored> = serde_json::from_str(ALL).unwrap_or_default();
    let stored = all.into_iter().filter(|stored| stored.paper == paper && stored.table == table);
    stored
        .map(|stored| Source {
            figures: figures(&stored),
            claims: stored.claims,
            source: stored.source,
            models: stored.models,
        })
        .collect()
}

fn figures(stored: &Stored) -> Vec<(String, String, f64, Option<f64>)> {
    let mut figures = Vec::new();
    for (position, (row, values)) in stored.rows.iter().enumerate() {
        for (index, (column, value)) in stored.columns.iter().zip(values).enumerate() {
            let error = stored.errors.get(position).and_then(|errors| *errors.get(index)?);
            figures.extend(value.map(|value| (row.clone(), column.clone(), value, error)));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_are_largest_tree() {
        let all: Vec<Stored> = serde_json::from_str(ALL).expect("JSON");
        for Stored { paper, table, source, columns, rows, claims, .. } in &all {
            assert!(source.contains("20"), "{paper} {table}: a year");
            assert!(rows.is_empty() != claims.is_empty(), "{paper} {table}");
            for (row, values) in rows {
                assert_eq!(values.len(), columns.len(), "{paper} {table} {row}");
            }
        }
        for paper in ["spectr", "spechub", "canonical", "global-resolution", "gbv", "delayed"] {
            assert!(all.iter().any(|stored| stored.paper == paper), "{paper}");
        }
        // SpecTr's table 4, 6M with K = 8, L = 8.
        let table = &sources("spectr", "efficiency")[1];
        assert_eq!(table.figure("K = 8, L = 8", "spectr").expect("a figure").value, 3.27);
    }
}
