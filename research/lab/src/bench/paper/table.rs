//! Tables of our values by row and column, next to the paper's.

use std::io::Write;

use anyhow::Result;
use polydraft_cli::provenance::MadeBy;
use polydraft_reference::comparison::{self, Sample};
use serde::{Deserialize, Serialize};

use super::Report;
use super::order::{Compares, Order, Verdict, short};
use super::theirs::{Source, Value};
use crate::plot::{Best, Dot, Dots, Panel, WIDTH};

/// Our value at a row and a column, with the paper's values.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    pub row: String,
    pub column: String,
    pub ours: Value,
    /// Our value minus that of the row's first column, if both were measured on the same sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub less_first: Option<Value>,
    /// One value per source of the table; `None` if the source has no value here.
    pub theirs: Vec<Option<Value>>,
    /// Values by sequence, if our value is a mean over sequences.
    #[serde(skip)]
    pub series: Vec<Sample>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Table {
    /// Name for file names, one word.
    pub name: String,
    pub title: String,
    pub decimals: usize,
    pub entries: Vec<Entry>,
    /// Sources of the paper's values, with their models.
    pub theirs: Vec<Source>,
    #[serde(skip)]
    pub compares: Compares,
    /// Orders of the paper's values, compared with our differences.
    #[serde(default)]
    pub orders: Vec<Order>,
    /// Notes for readers of the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

impl Table {
    pub fn new(name: &str, title: &str, decimals: usize) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            decimals,
            entries: Vec::new(),
            theirs: Vec::new(),
            compares: Compares::Nothing,
            orders: Vec::new(),
            remark: None,
        }
    }

    /// Creates a table in which the columns of a row are compared.
    pub fn of_columns(name: &str, title: &str, decimals: usize) -> Self {
        Self { compares: Compares::Columns, ..Self::new(name, title, decimals) }
    }

    /// Creates a table in which the columns of a row are compared, and each row with the next.
    pub fn of_rows(name: &str, title: &str, decimals: usize) -> Self {
        Self { compares: Compares::Rows, ..Self::new(name, title, decimals) }
    }

    /// Adds the mean over sequences.
    pub fn add_series(
        &mut self,
        row: impl Into<String>,
        column: impl Into<String>,
        series: Vec<Sample>,
    ) {
        let (value, error) = comparison::mean(&series, |sample| sample.tokens[0]);
        self.add(row, column, value, Some(error));
        if let Some(entry) = self.entries.last_mut() {
            entry.series = series;
        }
    }

    pub fn add(
        &mut self,
        row: impl Into<String>,
        column: impl Into<String>,
        value: f64,
        error: Option<f64>,
    ) {
        let ours = Value { value, error: error.filter(|error| error.is_finite()) };
        self.entries.push(Entry {
            row: row.into(),
            column: column.into(),
            ours,
            less_first: None,
            theirs: Vec::new(),
            series: Vec::new(),
        });
    }

    /// Returns the entry at a row and a column.
    pub fn entry(&self, row: &str, column: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.row == row && entry.column == column)
    }

    /// Adds the values of `sources` to the entries. Sources without a value or an order for this
    /// table are dropped.
    pub fn add_sources(&mut self, sources: Vec<Source>) {
        for source in sources {
            let value_of = |entry: &Entry| source.figure(&entry.row, &entry.column);
            let mut claims = source.claims.iter();
            let has = |row: &str, column: &str| self.entry(row, column).is_some();
            if self.entries.iter().any(|entry| value_of(entry).is_some())
                || claims.any(|claim| has(&claim.0, &claim.1) && has(&claim.2, &claim.3))
            {
                self.entries.iter_mut().for_each(|entry| {
                    let theirs = value_of(entry);
                    entry.theirs.push(theirs);
                });
                self.theirs.push(source);
            }
        }
    }

    fn names(&self, value_of: impl Fn(&Entry) -> &String) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for entry in &self.entries {
            if !names.contains(value_of(entry)) {
                names.push(value_of(entry).clone());
            }
        }
        names
    }

    /// Returns the criterion for the best value of a row: the lowest for solve times; none for
    /// decoding times and shares.
    fn best(&self) -> Best {
        match self.name.as_str() {
            "times" => Best::Lowest,
            "time" => Best::None,
            _ => Best::Highest,
        }
    }

    /// Returns a chart of our values, one panel per row.
    pub fn chart(&self) -> Dots {
        let (rows, columns) = (self.names(|entry| &entry.row), self.names(|entry| &entry.column));
        let dot = |row: &String, column: &String| {
            let entry = self.entry(row, column)?;
            let Value { value, error } = entry.ours;
            Some(Dot { value, error, limit: matches!(column.as_str(), "bound" | "optimal") })
        };
        let panel = |row: &String| Panel {
            title: row.clone(),
            dots: columns.iter().map(|column| dot(row, column)).collect(),
        };
        Dots {
            width: WIDTH,
            title: self.title.clone(),
            notes: Vec::new(),
            x_label: self.title.clone(),
            panels: rows.iter().map(panel).collect(),
            best: self.best(),
            columns: rows.len().min(3),
            rows: columns.clone(),
            decimals: self.decimals,
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "\n{}", self.title)?;
        let width = |names: &[String], least: usize| {
            names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(least)
        };
        let rows = width(&self.names(|entry| &entry.row), 3);
        let columns = width(&self.names(|entry| &entry.column), 6);
        let differs = self.entries.iter().any(|entry| entry.less_first.is_some());
        write!(out, "{:<rows$}  {:<columns$} {:>16}", "", "", "ours")?;
        if differs {
            write!(out, " {:>18}", "less first of row")?;
        }
        for &index in &self.figures() {
            write!(out, " {:>9}", format!("theirs {}", letter(index)))?;
        }
        writeln!(out)?;
        let mut last = "";
        for entry in &self.entries {
            let row = if entry.row == last { "" } else { entry.row.as_str() };
            last = &entry.row;
            let decimals = self.decimals;
            write!(
                out,
                "{row:<rows$}  {:<columns$} {:>8.decimals$}{:<9}",
                entry.column,
                entry.ours.value,
                self.within(entry.ours)
            )?;
            if differs {
                let less = entry.less_first.map_or(String::new(), |less| {
                    format!("{:>+8.decimals$}{:<9}", less.value, self.within(less))
                });
                write!(out, " {less:<18}")?;
            }
            let value_of = |index: &usize| entry.theirs[*index].map(|theirs| short(theirs.value));
            let figure =
                |index| format!(" {:>8}", value_of(index).unwrap_or_else(|| "-".to_owned()));
            let theirs: String = self.figures().iter().map(figure).collect();
            writeln!(out, "{theirs}")?;
        }
        if let Some(remark) = &self.remark {
            writeln!(out, "{remark}")?;
        }
        for (index, Source { source, models, .. }) in self.theirs.iter().enumerate() {
            writeln!(out, "theirs {}, on their models: {source}; {models}", letter(index))?;
        }
        self.print_orders(out)
    }

    /// Returns the sources that have values in this table, rather than only stated orders.
    pub fn figures(&self) -> Vec<usize> {
        let has = |index: &usize| self.entries.iter().any(|entry| entry.theirs[*index].is_some());
        (0..self.theirs.len()).filter(has).collect()
    }

    /// Formats an error with the table's decimals.
    fn within(&self, value: Value) -> String {
        let decimals = self.decimals;
        let error = value.error.filter(|error| *error > 0.0);
        error.map_or(String::new(), |error| format!(" ± {error:.decimals$}"))
    }

    /// Prints how many of the paper's orders we reproduce, and which ones we do not.
    fn print_orders(&self, out: &mut impl Write) -> Result<()> {
        for (index, _) in self.theirs.iter().enumerate() {
            let own = || self.orders.iter().filter(|order| order.source == index);
            let count = |verdict| own().filter(|order| order.verdict == verdict).count();
            if own().next().is_none() {
                continue;
            }
            writeln!(
                out,
                "orders of {}: {} of {} reproduced, {} contradicted, {} undecided",
                letter(index),
                count(Verdict::Reproduced),
                own().count(),
                count(Verdict::Contradicted),
                count(Verdict::Undecided)
            )?;
            for order in own().filter(|order| order.verdict != Verdict::Reproduced) {
                let Order { more, less, ours, verdict, .. } = order;
                let decimals = self.decimals;
                // A row or column that both values share is printed once.
                let (position, more, less) = match more.0 == less.0 {
                    true => (&more.0, &more.1, &less.1),
                    false => (&more.1, &more.0, &less.0),
                };
                writeln!(
                    out,
                    "  {}: {position}: {more} over {less} by {}, ours by {:.decimals$}{}",
                    verdict.name(),
                    order.by(),
                    ours.value,
                    self.within(*ours)
                )?;
            }
        }
        Ok(())
    }
}

/// Returns the letter that refers to a source.
pub fn letter(index: usize) -> char {
    char::from(b'a' + (index % 26) as u8)
}

pub fn print(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let Report { made_by: MadeBy { machine, .. }, target, draft, prompts, tables, .. } = report;
    writeln!(out, "{machine}\n{target} with {draft}, {prompts} prompts")?;
    tables.iter().try_for_each(|table| table.print(&mut out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_time_is_the_shortest() {
        for (name, best) in [("times", Some(0.1)), ("time", None), ("within", Some(3.0))] {
            let mut table = Table::new(name, "", 1);
            table.add("(10, 2)", "max-flow", 3.0, None);
            table.add("(10, 2)", "priority", 0.1, None);
            let chart = table.chart();
            assert_eq!(chart.panels[0].best(chart.best).map(|dot| dot.value), best, "{name}");
        }
    }

    #[test]
    fn bounds_are_not_the_best() {
        for limit in ["bound", "optimal"] {
            let mut table = Table::new("efficiency", "", 1);
            table.add("K = 2", "ours", 2.5, None);
            table.add("K = 2", limit, 3.0, None);
            assert_eq!(
                table.chart().panels[0].best(Best::Highest).map(|dot| dot.value),
                Some(2.5),
                "{limit}"
            );
        }
    }

    #[test]
    fn shows_published_values_beside_ours() {
        let mut table = Table::new("efficiency", "Tokens per call", 2);
        table.add("K = 2, L = 4", "spectr", 2.5, Some(0.01));
        table.add("K = 2, L = 4", "ours", 2.7, None);
        let sources = super::super::theirs::sources("spectr", "efficiency");
        assert!(sources.len() >= 3);
        table.add_sources(sources);
        let figures: Vec<Option<f64>> = table.entries[0]
            .theirs
            .iter()
            .map(|theirs| theirs.map(|theirs| theirs.value))
            .collect();
        assert_eq!(figures, [Some(2.07), Some(2.43), Some(2.96)], "{table:?}");
        assert!(table.entries[1].theirs.iter().all(Option::is_none));
        let mut out = Vec::new();
        table.print(&mut out).expect("printed");
        let text = String::from_utf8(out).expect("text");
        assert!(
            text.contains("2.50 ± 0.01")
                && text.contains("2.43")
                && text.contains("on their models"),
            "{text}"
        );
    }
}
