//! Records of `bench paper`.

use anyhow::Result;

use super::page::{Cell, Section, number};
use super::record::Record;
use crate::bench::paper::{Entry, Order, Report, Source, Table, letter};
use crate::plot::{Dots, Panel};

/// Maximum number of panels in a chart; the table contains all of them.
const DRAWN: usize = 6;

pub fn section(record: &Record) -> Result<Section> {
    let report: Report = record.read()?;
    let name = serde_json::to_value(report.paper)?;
    let mut section =
        Section::new(record).titled(format!("bench paper {}", name.as_str().unwrap_or_default()));
    section.fact(format!("{} with {}, {} prompts", report.target, report.draft, report.prompts));
    for table in &report.tables {
        let all = table.chart();
        for panel in
            all.panels.iter().filter(|panel| panel.dots.iter().flatten().count() > 1).take(DRAWN)
        {
            let own: Vec<bool> = panel.dots.iter().map(Option::is_some).collect();
            let rows =
                all.rows.iter().zip(&own).filter(|(_, own)| **own).map(|(name, _)| name.clone());
            let dots = panel.dots.iter().filter(|dot| dot.is_some()).copied();
            let chart = Dots {
                width: 640,
                rows: rows.collect(),
                title: String::new(),
                x_label: String::new(),
                panels: vec![Panel { title: String::new(), dots: dots.collect() }],
                columns: 1,
                ..all.clone()
            };
            section.figure(&format!("{}: {}", table.title, panel.title), "", &chart)?;
        }
        let theirs: Vec<String> =
            table.figures().iter().map(|&i| format!("theirs {}", letter(i))).collect();
        let differs = table.entries.iter().any(|entry| entry.less_first.is_some());
        let less = differs.then_some("less first of row");
        let head: Vec<&str> = ["", "", "ours"]
            .into_iter()
            .chain(less)
            .chain(theirs.iter().map(String::as_str))
            .collect();
        let rows: Vec<Vec<Cell>> =
            table.entries.iter().map(|entry| row(table, entry, differs)).collect();
        section.table(&table.title, &sources(table), &head, &rows);
        if !table.orders.is_empty() {
            let rows: Vec<Vec<Cell>> =
                table.orders.iter().map(|order| ordered(table, order)).collect();
            let head = ["", "more", "less", "theirs", "ours", "at two standard errors"];
            section.table("Orders of theirs", "Differences, on the same sequences", &head, &rows);
        }
    }
    Ok(section)
}

fn row(table: &Table, entry: &Entry, differs: bool) -> Vec<Cell> {
    let Entry { row, column, ours, less_first, theirs, .. } = entry;
    let mut cells = vec![
        Cell::words(row),
        Cell::words(column),
        Cell::Best(number(ours.value, table.decimals, ours.error)),
    ];
    if differs {
        let less = less_first.map(|less| number(less.value, table.decimals, less.error));
        cells.push(Cell::Figure(less.unwrap_or_default()));
    }
    let figures = table.figures().into_iter().map(|index| theirs[index].map(|own| own.value));
    cells.extend(figures.map(|own| Cell::maybe(own, table.decimals)));
    cells
}

fn ordered(table: &Table, order: &Order) -> Vec<Cell> {
    let name = |(row, column): &(String, String)| format!("{row}, {column}");
    vec![
        Cell::words(letter(order.source).to_string()),
        Cell::words(name(&order.more)),
        Cell::words(name(&order.less)),
        match order.theirs {
            Some(theirs) => Cell::number(theirs, table.decimals, None),
            None => Cell::words(order.by()),
        },
        Cell::number(order.ours.value, table.decimals, order.ours.error),
        Cell::words(order.verdict.name()),
    ]
}

/// Returns the sources of the paper's values.
fn sources(table: &Table) -> String {
    let value_of = |(index, Source { source, models, .. }): (usize, &Source)| {
        format!("theirs {}, on their models: {source}; {models}", letter(index))
    };
    table.theirs.iter().enumerate().map(value_of).collect::<Vec<_>>().join(". ")
}
