//! The record, and its charts.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use polydraft_cli::output::note;
use polydraft_cli::provenance::MadeBy;
use serde::{Deserialize, Serialize};

use super::cell::RowReport;
use super::dataset::Dataset;
use super::table;
use crate::plot::{Chart, Drawing, Series, Value};

#[derive(Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub made_by: MadeBy,
    /// Time limit in seconds per cell.
    pub budget: f64,
    seed: u64,
    pub datasets: Vec<Dataset>,
}

impl Report {
    pub fn new(budget: f64, seed: u64, datasets: Vec<Dataset>) -> Self {
        Self { made_by: MadeBy::current(), budget, seed, datasets }
    }

    pub fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}, one thread; {} s a cell; answers checked",
            self.made_by.machine, self.budget
        )?;
        self.datasets.iter().try_for_each(|dataset| table::print(dataset, &mut out))
    }

    /// Writes a chart to `path`-NAME.svg for each dataset.
    pub fn plot(&self, path: &Path) -> Result<()> {
        for dataset in &self.datasets {
            let mut name = path.as_os_str().to_owned();
            name.push(format!("-{}.svg", dataset.name));
            chart(dataset, &self.made_by.machine).write(name.as_ref())?;
            note(format_args!("wrote {}", Path::new(&name).display()));
        }
        Ok(())
    }
}

/// Returns a chart of milliseconds by row, with a series per solver.
pub fn chart(data: &Dataset, machine: &str) -> Chart {
    let solvers = data.rows.first().map_or(0, |row| row.cells.len());
    let series = (0..solvers).map(|column| {
        let value = |row: &RowReport| {
            // A record from a file may have rows of other lengths.
            let cell = row.cells.get(column)?;
            cell.milliseconds.map(|y| Value { y, bound: cell.lower_bound })
        };
        let name = data.rows[0].cells[column].solver.clone();
        Series { name, values: data.rows.iter().map(value).collect() }
    });
    Chart {
        title: "Milliseconds per token to find the best rule for n drafts".to_owned(),
        subtitle: format!("{}; hollow: lower bound; {machine}", data.title()),
        x_label: "(k, n): n i.i.d. drafts from the k likeliest tokens of the draft".to_owned(),
        y_label: "milliseconds per token, where it succeeds".to_owned(),
        categories: data.rows.iter().map(|row| row.row.clone()).collect(),
        series: series.collect(),
    }
}
