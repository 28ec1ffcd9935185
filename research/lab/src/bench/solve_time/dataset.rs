//! Rows of one kind of distributions, and comparisons derived from them: best acceptance within a
//! time, and speed ratios.

use serde::{Deserialize, Serialize};

use super::cell::RowReport;

/// Best acceptance of a solver within a time limit per token.
#[derive(Serialize, Deserialize)]
pub struct Within {
    pub milliseconds: f64,
    pub solver: String,
    pub acceptance: Option<f64>,
    pub row: Option<String>,
}

/// Speed of the fastest form of `priority` relative to Global Resolution, over the rows where the
/// latter has solutions.
#[derive(Serialize, Deserialize)]
pub struct Speedup {
    pub solver: String,
    pub least: f64,
    pub most: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Dataset {
    pub name: String,
    pub vocabulary: usize,
    pub positions: usize,
    pub rows: Vec<RowReport>,
    pub within: Vec<Within>,
    pub priority_faster_than: Vec<Speedup>,
}

/// Milliseconds per token.
pub const LIMITS: [f64; 3] = [1.0, 10.0, 100.0];

impl Dataset {
    pub fn new(name: &str, vocabulary: usize, positions: usize, rows: Vec<RowReport>) -> Self {
        let names: Vec<String> = rows
            .first()
            .map_or(Vec::new(), |row| row.cells.iter().map(|cell| cell.solver.clone()).collect());
        let mut within = Vec::new();
        for limit in LIMITS {
            for (column, solver) in names.iter().enumerate() {
                let solved = rows.iter().filter_map(|row| Some((row, row.overall(column)?)));
                let allowed = solved.filter(|(_, (time, _))| *time <= limit);
                let best = allowed.max_by(|a, b| a.1.1.total_cmp(&b.1.1));
                within.push(Within {
                    milliseconds: limit,
                    solver: solver.clone(),
                    acceptance: best.as_ref().map(|best| best.1.1),
                    row: best.map(|best| best.0.row.clone()),
                });
            }
        }
        let speedup = |column: &String| {
            let ratios = rows.iter().filter_map(|row| {
                let ms = |wanted: &dyn Fn(&str) -> bool| {
                    let cells =
                        row.cells.iter().filter(|cell| wanted(&cell.solver) && !cell.lower_bound);
                    cells.filter_map(|cell| cell.milliseconds).reduce(f64::min)
                };
                Some(ms(&|name| name == column)? / ms(&|name| name.starts_with("priority"))?)
            });
            let ratios: Vec<f64> = ratios.collect();
            let least = ratios.iter().copied().reduce(f64::min)?;
            let most = ratios.iter().copied().reduce(f64::max)?;
            Some(Speedup { solver: column.clone(), least, most })
        };
        let others = names.iter().filter(|name| !name.starts_with("priority"));
        let priority_faster_than = others.filter_map(speedup).collect();
        Self { name: name.to_owned(), vocabulary, positions, rows, within, priority_faster_than }
    }

    /// Returns the title of the dataset.
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "pair" => {
                format!("model pair, V = {}, {} positions", self.vocabulary, self.positions)
            }
            _ => format!(
                "synthetic distributions, V = {}, {} pairs",
                self.vocabulary, self.positions
            ),
        }
    }
}
