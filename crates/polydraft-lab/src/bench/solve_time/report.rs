//! The tables, the record, and the charts.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::solvers::Attempt;
use crate::bench::median;
use crate::output::note;
use crate::plot::{Chart, Scale, Series, Value};

/// A solver on a row.
#[derive(Serialize)]
pub struct Cell {
    solver: String,
    /// Mean milliseconds per emitted token; a lower bound of it where `lower_bound`; none if it was not begun.
    milliseconds: Option<f64>,
    lower_bound: bool,
    /// Mean milliseconds of all attempts, those that gave up included.
    milliseconds_with_failures: Option<f64>,
    /// Attempts that ended with a token, of those that ended.
    success: Option<f64>,
    /// Mean acceptance over the positions that it solved.
    acceptance: Option<f64>,
    /// Mean of the best acceptance over the same positions.
    optimum_there: Option<f64>,
    /// Mean acceptance over all positions, if it loses as much where it got no turn, and nothing where it gave up because
    /// another solver takes over.
    acceptance_with_failures: Option<f64>,
    /// Positions that it got a turn at.
    positions: usize,
    /// Why it was not begun.
    too_large: Option<String>,
    #[serde(skip)]
    tally: Tally,
}

/// Sums over the attempts.
#[derive(Default)]
struct Tally {
    done: (usize, f64),
    gave_up: (usize, f64),
    unfinished: (usize, f64),
    /// Positions solved, their acceptance, the optimum there.
    solved: (usize, f64, f64),
}

impl Cell {
    pub fn new(solver: String) -> Self {
        Self {
            solver,
            milliseconds: None,
            lower_bound: false,
            milliseconds_with_failures: None,
            success: None,
            acceptance: None,
            optimum_there: None,
            acceptance_with_failures: None,
            positions: 0,
            too_large: None,
            tally: Tally::default(),
        }
    }

    /// Seconds used so far.
    pub fn spent(&self) -> f64 {
        let Tally { done, gave_up, unfinished, .. } = &self.tally;
        done.1 + gave_up.1 + unfinished.1
    }

    /// Whether there is no use in going on.
    pub fn is_closed(&self) -> bool {
        self.tally.unfinished.0 > 0 || self.too_large.is_some()
    }

    /// The attempts at a position, of which the first warms up if there are several. Each counts with the median time of
    /// those of its kind: the machine's hiccups are not the solver's.
    pub fn add(&mut self, attempts: Vec<Attempt>, acceptance: Option<f64>, optimum: f64) {
        let warm_up = usize::from(attempts.len() > 1);
        self.positions += 1;
        let (mut done, mut gave_up, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        for attempt in attempts.into_iter().skip(warm_up) {
            match attempt {
                Attempt::Done(seconds) => done.push(seconds),
                Attempt::GaveUp(seconds) => gave_up.push(seconds),
                Attempt::Unfinished(seconds) => unfinished.push(seconds),
                Attempt::TooLarge(reason) => self.too_large = Some(reason),
            }
        }
        let tally = &mut self.tally;
        for (sum, times) in
            [(&mut tally.done, done), (&mut tally.gave_up, gave_up), (&mut tally.unfinished, unfinished)]
        {
            if !times.is_empty() {
                sum.0 += times.len();
                sum.1 += times.len() as f64 * median(times.into_iter());
            }
        }
        if let Some(acceptance) = acceptance {
            tally.solved.0 += 1;
            tally.solved.1 += acceptance;
            tally.solved.2 += optimum;
        }
    }

    /// `optimum` is the mean over all positions.
    fn finish(&mut self, optimum: f64) {
        let Tally { done, gave_up, unfinished, solved } = &self.tally;
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        let ms = |sum: f64, count: usize| mean(1e3 * sum, count);
        self.lower_bound = unfinished.0 > 0;
        self.milliseconds = ms(done.1 + unfinished.1, done.0 + unfinished.0);
        self.milliseconds_with_failures = ms(self.spent(), done.0 + gave_up.0 + unfinished.0);
        self.success = mean(done.0 as f64, done.0 + gave_up.0);
        self.acceptance = mean(solved.1, solved.0);
        self.optimum_there = mean(solved.2, solved.0);
        self.acceptance_with_failures = mean(solved.2 - solved.1, self.positions).map(|loss| optimum - loss);
    }

    fn is_complete(&self) -> bool {
        self.success == Some(1.0) && !self.lower_bound
    }

    fn time(&self) -> String {
        let bound = if self.lower_bound { ">" } else { "" };
        let success = self.success.filter(|_| self.tally.gave_up.0 > 0);
        let success = success.map_or(String::new(), |success| format!(" ({:.0} %)", 100.0 * success));
        match self.milliseconds {
            Some(ms) => format!("{bound}{}{success}", milliseconds(ms)),
            None if self.too_large.is_some() => "too large".to_owned(),
            None if self.tally.gave_up.0 > 0 => "- (0 %)".to_owned(),
            None => "-".to_owned(),
        }
    }
}

/// Three digits that count.
fn milliseconds(ms: f64) -> String {
    let digits = (2.0 - ms.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{ms:.digits$}")
}

#[derive(Serialize)]
pub struct RowReport {
    row: String,
    /// Tokens of the draft that are left; none for all.
    k: Option<usize>,
    n: usize,
    /// Mean best acceptance over all positions.
    optimum: f64,
    cells: Vec<Cell>,
}

impl RowReport {
    pub fn new(row: String, k: Option<usize>, n: usize, optima: &[f64], mut cells: Vec<Cell>) -> Self {
        let optimum = optima.iter().sum::<f64>() / optima.len().max(1) as f64;
        cells.iter_mut().for_each(|cell| cell.finish(optimum));
        Self { row, k, n, optimum, cells }
    }

    /// Time and acceptance of a solver over all positions. Where it gives up, the fastest of the solvers before it that
    /// never does takes over, as in the published comparison.
    fn overall(&self, column: usize) -> Option<(f64, f64)> {
        let cell = &self.cells[column];
        let time = cell.milliseconds_with_failures.filter(|_| !cell.lower_bound)?;
        let acceptance = cell.acceptance_with_failures?;
        if cell.is_complete() {
            return Some((time, acceptance));
        }
        let others = self.cells[..column].iter().filter(|other| other.is_complete());
        let other = others.filter_map(|other| other.milliseconds).reduce(f64::min)?;
        let failures = 1.0 - cell.success.unwrap_or(0.0);
        Some((time + failures * other, acceptance))
    }
}

/// The best acceptance that a solver has within a time per token.
#[derive(Serialize)]
struct Within {
    milliseconds: f64,
    solver: String,
    acceptance: Option<f64>,
    row: Option<String>,
}

/// How many times faster the fastest form of `priority` is than Global Resolution, over the rows where that has
/// solutions.
#[derive(Serialize)]
struct Speedup {
    solver: String,
    least: f64,
    most: f64,
}

#[derive(Serialize)]
pub struct Dataset {
    name: &'static str,
    vocabulary: usize,
    positions: usize,
    rows: Vec<RowReport>,
    within: Vec<Within>,
    priority_faster_than: Vec<Speedup>,
}

const LIMITS: [f64; 3] = [1.0, 10.0, 100.0];

impl Dataset {
    pub fn new(name: &'static str, vocabulary: usize, positions: usize, rows: Vec<RowReport>) -> Self {
        let names: Vec<String> =
            rows.first().map_or(Vec::new(), |row| row.cells.iter().map(|cell| cell.solver.clone()).collect());
        let mut within = Vec::new();
        for limit in LIMITS {
            for (column, solver) in names.iter().enumerate() {
                let found = rows.iter().filter_map(|row| Some((row, row.overall(column)?)));
                let allowed = found.filter(|(_, (time, _))| *time <= limit);
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
                    let cells = row.cells.iter().filter(|cell| wanted(&cell.solver) && !cell.lower_bound);
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
        Self { name, vocabulary, positions, rows, within, priority_faster_than }
    }

    fn title(&self) -> String {
        match self.name {
            "pair" => format!("model pair, V = {}, {} positions of text", self.vocabulary, self.positions),
            _ => format!("synthetic laws, V = {}, {} pairs", self.vocabulary, self.positions),
        }
    }

    fn print(&self, out: &mut impl Write) -> Result<()> {
        let names: Vec<String> = self
            .rows
            .first()
            .map_or(Vec::new(), |row| row.cells.iter().map(|cell| short(&cell.solver)).collect());
        let header = |out: &mut dyn Write, first: &str, second: &str| -> Result<()> {
            write!(out, "{first:<10} {second:>9}")?;
            names.iter().try_for_each(|name| write!(out, " {name:>15}"))?;
            Ok(writeln!(out)?)
        };
        writeln!(
            out,
            "\n{}: milliseconds per token (> lower bound; in brackets: attempts that succeed)",
            self.title()
        )?;
        header(out, "(k, n)", "")?;
        for row in &self.rows {
            write!(out, "{:<10} {:>9}", row.row, "")?;
            row.cells.iter().try_for_each(|cell| write!(out, " {:>15}", cell.time()))?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "\nacceptance (* the mean over the positions that it got to and solved, where the optimum is another)"
        )?;
        header(out, "(k, n)", "optimum")?;
        for row in &self.rows {
            write!(out, "{:<10} {:>9.6}", row.row, row.optimum)?;
            for cell in &row.cells {
                let elsewhere = cell.tally.solved.0 < self.positions;
                let mark = if elsewhere { "*" } else { "" };
                let acceptance =
                    cell.acceptance.map_or("-".to_owned(), |acceptance| format!("{acceptance:.6}{mark}"));
                write!(out, " {acceptance:>15}")?;
            }
            writeln!(out)?;
        }
        writeln!(
            out,
            "\nbest acceptance within a time per token (where Global Resolution gives up, the fastest of the first three)"
        )?;
        header(out, "ms/token", "")?;
        for limit in LIMITS {
            write!(out, "{limit:<10} {:>9}", "")?;
            for best in self.within.iter().filter(|within| within.milliseconds == limit) {
                let text = match (best.acceptance, &best.row) {
                    (Some(acceptance), Some(row)) => format!("{acceptance:.4} {row}"),
                    _ => "-".to_owned(),
                };
                write!(out, " {text:>15}")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "\npriority, the faster of its forms, against")?;
        for speedup in &self.priority_faster_than {
            let Speedup { solver, least, most } = speedup;
            writeln!(out, "  {solver:<28} {least:>8.1} to {most:.1} times as fast")?;
        }
        Ok(())
    }

    fn chart(&self, machine: &str) -> Chart {
        let solvers = self.rows.first().map_or(0, |row| row.cells.len());
        let series = (0..solvers).map(|column| {
            let value = |row: &RowReport| {
                let cell = &row.cells[column];
                cell.milliseconds.map(|y| Value { y, error: None, bound: cell.lower_bound })
            };
            let name = self.rows[0].cells[column].solver.clone();
            Series { name, values: self.rows.iter().map(value).collect() }
        });
        Chart {
            title: "Milliseconds per token to find the best rule for n drafts".to_owned(),
            subtitle: format!("{}; hollow: lower bound; {machine}", self.title()),
            x_label: "(k, n): n i.i.d. drafts from the k likeliest tokens of the draft".to_owned(),
            y_label: "milliseconds per token, where it succeeds".to_owned(),
            scale: Scale::Log,
            categories: self.rows.iter().map(|row| row.row.clone()).collect(),
            series: series.collect(),
        }
    }
}

/// A name that fits a column.
fn short(name: &str) -> String {
    name.replace("linear program (", "LP (")
        .replace("Global Resolution, τ =", "GR")
        .replace("near-linear", "pooled")
}

#[derive(Serialize)]
pub struct Report {
    machine: String,
    version: &'static str,
    /// Seconds a cell.
    budget: f64,
    seed: u64,
    datasets: Vec<Dataset>,
}

impl Report {
    pub fn new(machine: String, budget: f64, seed: u64, datasets: Vec<Dataset>) -> Self {
        Self { machine, version: env!("CARGO_PKG_VERSION"), budget, seed, datasets }
    }

    pub fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}, one thread; {} s a cell; answers checked", self.machine, self.budget)?;
        self.datasets.iter().try_for_each(|dataset| dataset.print(&mut out))
    }

    /// Writes `path`-name.svg and .png for each dataset.
    pub fn plot(&self, path: &Path) -> Result<()> {
        for dataset in &self.datasets {
            for extension in ["svg", "png"] {
                let mut name = path.as_os_str().to_owned();
                name.push(format!("-{}.{extension}", dataset.name));
                dataset.chart(&self.machine).write(name.as_ref())?;
                note(format_args!("wrote {}", Path::new(&name).display()));
            }
        }
        Ok(())
    }
}
