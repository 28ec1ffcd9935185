//! Records of `bench solve-time`.

use anyhow::Result;

use super::page::{Cell, Section};
use super::record::Record;
use crate::bench::solve_time::{Dataset, Report, chart};

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let mut section = Section::new(record);
    section.fact(format!("{} s a cell", report.budget));
    for data in &report.datasets {
        section.figure(
            &format!("Milliseconds per token: {}", data.title()),
            "Hollow, with an arrow: a lower bound",
            &chart(data, &report.made_by.machine),
        )?;
        let names: Vec<&str> = data
            .rows
            .first()
            .map_or(Vec::new(), |row| row.cells.iter().map(|c| c.solver.as_str()).collect());
        let head: Vec<&str> = ["(k, n)", "best acceptance"].into_iter().chain(names).collect();
        section.table(
            &format!("Milliseconds per token: {}", data.title()),
            "In brackets: attempts that succeed",
            &head,
            &rows(data),
        );
    }
    Ok(section)
}

fn rows(data: &Dataset) -> Vec<Vec<Cell>> {
    let row = |row: &crate::bench::solve_time::RowReport| {
        let fastest = row
            .cells
            .iter()
            .filter(|cell| !cell.lower_bound)
            .filter_map(|cell| cell.milliseconds)
            .fold(f64::INFINITY, f64::min);
        let mut cells = vec![Cell::words(&row.row), Cell::number(row.optimum, 4, None)];
        cells.extend(row.cells.iter().map(|cell| {
            Cell::Figure(cell.time()).best(!cell.lower_bound && cell.milliseconds == Some(fastest))
        }));
        cells
    };
    data.rows.iter().map(row).collect()
}
