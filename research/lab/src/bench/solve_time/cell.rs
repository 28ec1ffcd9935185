//! Results of a solver on a row, and the sums of its attempts.

use serde::{Deserialize, Serialize};

use super::solvers::{Attempt, Column};
use crate::bench::median;

/// Results of a solver on a row.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub solver: String,
    /// Mean time in milliseconds per emitted token, over positions. If `lower_bound`, the true mean
    /// is larger. `None` if the solver was not started.
    pub milliseconds: Option<f64>,
    pub lower_bound: bool,
    /// Mean time in milliseconds of all attempts, including failed ones.
    milliseconds_with_failures: Option<f64>,
    /// Fraction of completed attempts that emitted a token, mean over positions.
    success: Option<f64>,
    /// Mean acceptance over solved positions.
    pub acceptance: Option<f64>,
    /// Mean optimal acceptance over the same positions.
    optimum_there: Option<f64>,
    /// Mean acceptance over all positions. Positions that the solver did not reach are assumed to
    /// lose as much as the others; positions where it gave up lose nothing, because another solver
    /// takes over.
    acceptance_with_failures: Option<f64>,
    /// Number of positions that the solver reached.
    positions: usize,
    /// Reason why the solver was not started.
    too_large: Option<String>,
    #[serde(skip)]
    tally: Tally,
    /// Whether this solver is a fallback for another one that gives up. In a finished row, only if
    /// it has an answer at every position.
    #[serde(skip)]
    takes_over: bool,
}

/// Sums over positions.
#[derive(Default)]
struct Tally {
    /// Seconds of all attempts.
    spent: f64,
    /// Whether an attempt reached the time limit.
    unfinished: bool,
    /// Seconds of attempts that did not give up, and of all attempts.
    token: Mean,
    attempt: Mean,
    /// Fraction of attempts that emitted a token.
    success: Mean,
    /// Acceptance at solved positions, and the optimum at the same positions.
    solved: Mean,
    optimum: Mean,
}

/// A mean over the positions that have a value.
#[derive(Default)]
struct Mean {
    count: usize,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Attempts with the same outcome at a position. Each counts with their median time, to exclude
/// outliers.
struct Alike {
    count: usize,
    seconds: f64,
}

impl Alike {
    fn new(times: Vec<f64>) -> Self {
        let count = times.len();
        Self { count, seconds: if count == 0 { 0.0 } else { median(times.into_iter()) } }
    }

    /// Returns the mean time of the attempts in seconds, if there are any.
    fn mean(kinds: &[&Self]) -> Option<f64> {
        let count: usize = kinds.iter().map(|kind| kind.count).sum();
        let sum: f64 = kinds.iter().map(|kind| kind.count as f64 * kind.seconds).sum();
        (count > 0).then(|| sum / count as f64)
    }
}

impl Cell {
    pub fn new(column: &Column) -> Self {
        Self {
            solver: column.name(),
            takes_over: column.takes_over(),
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

    /// Returns the seconds used so far.
    pub fn spent(&self) -> f64 {
        self.tally.spent
    }

    /// Whether further attempts are pointless.
    pub fn is_closed(&self) -> bool {
        self.tally.unfinished || self.too_large.is_some()
    }

    /// Adds the attempts at a position. If there are several, the first one is a warm-up.
    pub fn add(&mut self, attempts: Vec<Attempt>, acceptance: Option<f64>, optimum: f64) {
        let warm_up = usize::from(attempts.len() > 1);
        self.positions += 1;
        self.tally.spent += attempts.iter().map(Attempt::seconds).sum::<f64>();
        let (mut done, mut gave_up, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        for attempt in attempts.into_iter().skip(warm_up) {
            match attempt {
                Attempt::Done(seconds) => done.push(seconds),
                Attempt::GaveUp(seconds) => gave_up.push(seconds),
                Attempt::Unfinished(seconds) => unfinished.push(seconds),
                Attempt::TooLarge(reason) => self.too_large = Some(reason),
            }
        }
        let [done, gave_up, unfinished] = [done, gave_up, unfinished].map(Alike::new);
        let tally = &mut self.tally;
        tally.unfinished |= unfinished.count > 0;
        for (mean, kinds) in [
            (&mut tally.token, &[&done, &unfinished][..]),
            (&mut tally.attempt, &[&done, &gave_up, &unfinished]),
        ] {
            Alike::mean(kinds).into_iter().for_each(|seconds| mean.add(seconds));
        }
        let ended = done.count + gave_up.count;
        if ended > 0 {
            tally.success.add(done.count as f64 / ended as f64);
        }
        if let Some(acceptance) = acceptance {
            tally.solved.add(acceptance);
            tally.optimum.add(optimum);
        }
    }

    /// Computes the results. `optimum` is the mean optimal acceptance over all `positions`
    /// positions.
    fn finish(&mut self, optimum: f64, positions: usize) {
        let Tally { unfinished, token, attempt, success, solved, optimum: there, .. } = &self.tally;
        let ms = |mean: &Mean| mean.get().map(|seconds| 1e3 * seconds);
        self.lower_bound = *unfinished;
        self.milliseconds = ms(token);
        self.milliseconds_with_failures = ms(attempt);
        self.success = success.get();
        self.acceptance = solved.get();
        self.optimum_there = there.get();
        self.acceptance_with_failures = (self.positions > 0)
            .then(|| optimum - (there.sum - solved.sum) / self.positions as f64);
        let has_all = self.positions == positions && !self.is_closed() && self.success == Some(1.0);
        self.takes_over &= has_all;
    }

    /// Returns the fraction of completed attempts that emitted a token, mean over positions.
    pub fn success(&self) -> Option<f64> {
        self.success
    }

    /// Returns the number of solved positions.
    pub fn solved(&self) -> usize {
        self.tally.solved.count
    }

    /// Formats the time for the table.
    pub fn time(&self) -> String {
        let bound = if self.lower_bound { ">" } else { "" };
        let success = self.success.filter(|success| *success < 1.0);
        let success =
            success.map_or(String::new(), |success| format!(" ({:.0} %)", 100.0 * success));
        match self.milliseconds {
            Some(ms) => format!("{bound}{}{success}", milliseconds(ms)),
            None if self.too_large.is_some() => "too large".to_owned(),
            None if self.success == Some(0.0) => "- (0 %)".to_owned(),
            None => "-".to_owned(),
        }
    }
}

/// Formats a time with three significant digits.
fn milliseconds(ms: f64) -> String {
    let digits = (2.0 - ms.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{ms:.digits$}")
}

#[derive(Serialize, Deserialize)]
pub struct RowReport {
    pub row: String,
    /// Number of likeliest draft tokens; `None` for all.
    k: Option<usize>,
    n: usize,
    /// Mean optimal acceptance over all positions.
    pub optimum: f64,
    pub cells: Vec<Cell>,
}

impl RowReport {
    pub fn new(
        row: String,
        k: Option<usize>,
        n: usize,
        optima: &[f64],
        mut cells: Vec<Cell>,
    ) -> Self {
        let optimum = optima.iter().sum::<f64>() / optima.len().max(1) as f64;
        cells.iter_mut().for_each(|cell| cell.finish(optimum, optima.len()));
        Self { row, k, n, optimum, cells }
    }

    /// Returns time and acceptance of a solver over all positions. Where the solver gives up, the
    /// fastest fallback solver is added, as in the published comparison. Fallbacks must have an
    /// answer at every position.
    pub fn overall(&self, column: usize) -> Option<(f64, f64)> {
        let cell = &self.cells[column];
        let time = cell.milliseconds_with_failures.filter(|_| !cell.lower_bound)?;
        let acceptance = cell.acceptance_with_failures?;
        if cell.success == Some(1.0) {
            return Some((time, acceptance));
        }
        let others = self.cells.iter().filter(|other| other.takes_over);
        let other = others.filter_map(|other| other.milliseconds).reduce(f64::min)?;
        let failures = 1.0 - cell.success.unwrap_or(0.0);
        Some((time + failures * other, acceptance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: Vec<Cell>) -> RowReport {
        RowReport::new("(10, 2)".to_owned(), Some(10), 2, &[0.5, 0.7], cells)
    }

    /// A position counts once, whether its attempts are fast, and so repeated, or slow.
    #[test]
    fn positions_have_equal_weight() {
        let mut cell = Cell::new(&Column::GlobalResolution(1e-3));
        let quick = [9.0, 1.0, 1.0, 3.0].map(Attempt::Done).to_vec();
        cell.add([quick, vec![Attempt::GaveUp(7.0)]].concat(), Some(0.4), 0.5);
        cell.add(vec![Attempt::Done(5.0)], None, 0.7);
        cell.add(vec![Attempt::GaveUp(2.0)], None, 0.7);
        assert_eq!(cell.spent(), 28.0);
        let RowReport { cells, .. } = row(vec![cell]);
        // Medians 1 and 5; 3/4 of 1 with 1/4 of 7, 5 and 2; parts 3/4, 1 and 0.
        assert_eq!(cells[0].milliseconds, Some(3000.0));
        assert_eq!(cells[0].milliseconds_with_failures, Some((2.5 + 5.0 + 2.0) / 3.0 * 1e3));
        assert_eq!(cells[0].success(), Some(1.75 / 3.0));
    }

    /// Where Global Resolution gives up, an exact solver takes over: not another variant of Global
    /// Resolution, nor a solver that failed at or did not reach some position.
    #[test]
    fn only_exact_solvers_take_over() {
        let columns = [
            Column::MaxFlow,
            Column::GlobalResolution(1e-3),
            Column::GlobalResolution(1e-4),
            Column::Priority(polydraft::coupling::priority::Form::Exact),
        ];
        let overall = |exact: [Option<Attempt>; 2]| {
            let mut cells = columns.each_ref().map(Cell::new);
            for exact in exact {
                let attempts = [
                    exact,
                    Some(Attempt::Done(1.0)),
                    Some(Attempt::GaveUp(2.0)),
                    Some(Attempt::Done(0.5)),
                ];
                for (cell, attempt) in cells.iter_mut().zip(attempts) {
                    attempt.into_iter().for_each(|attempt| cell.add(vec![attempt], Some(0.5), 0.5));
                }
            }
            let row = row(cells.into());
            [1, 2].map(|column| row.overall(column).map(|(time, _)| time))
        };
        let done = || Some(Attempt::Done(4.0));
        assert_eq!(overall([done(), done()]), [Some(1000.0), Some(6000.0)]);
        for missing in
            [None, Some(Attempt::TooLarge(String::new())), Some(Attempt::Unfinished(4.0))]
        {
            assert_eq!(overall([done(), missing]), [Some(1000.0), None]);
        }
    }
}
