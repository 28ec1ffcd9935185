//! A solver on a row: the sums of its attempts.

use serde::{Deserialize, Serialize};

use super::solvers::{Attempt, Column};
use crate::bench::median;

/// A solver on a row.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub solver: String,
    /// Milliseconds per emitted token, the mean over positions; a lower bound of it where
    /// `lower_bound`; none if it was not begun.
    pub milliseconds: Option<f64>,
    pub lower_bound: bool,
    /// Milliseconds of all attempts, including those that gave up.
    milliseconds_with_failures: Option<f64>,
    /// Attempts that ended with a token, of those that ended, the mean over positions.
    success: Option<f64>,
    /// Mean acceptance over the positions that it solved.
    pub acceptance: Option<f64>,
    /// Mean of the best acceptance over the same positions.
    optimum_there: Option<f64>,
    /// Mean acceptance over all positions, if it loses as much where it got no turn, and nothing
    /// where it gave up because another solver takes over.
    acceptance_with_failures: Option<f64>,
    /// Positions that it got a turn at.
    positions: usize,
    /// Why it was not begun.
    too_large: Option<String>,
    #[serde(skip)]
    tally: Tally,
    /// Whether it takes over where another gives up; of a finished row, whether it could at every
    /// position.
    #[serde(skip)]
    takes_over: bool,
}

/// Sums over positions.
#[derive(Default)]
struct Tally {
    /// Seconds of all attempts.
    spent: f64,
    /// Whether the time was up at one.
    unfinished: bool,
    /// Seconds of attempts that did not give up, and of all.
    token: Mean,
    attempt: Mean,
    /// Parts of the attempts that ended with a token.
    success: Mean,
    /// Acceptance where it solved, and the optimum there.
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

/// Attempts of one kind at a position: the median of their times counts for each, to exclude
/// hiccups of the machine.
struct Alike {
    count: usize,
    seconds: f64,
}

impl Alike {
    fn new(times: Vec<f64>) -> Self {
        let count = times.len();
        Self { count, seconds: if count == 0 { 0.0 } else { median(times.into_iter()) } }
    }

    /// Seconds of an attempt of these kinds, if there are any.
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

    /// Seconds used so far.
    pub fn spent(&self) -> f64 {
        self.tally.spent
    }

    /// Whether there is no use in going on.
    pub fn is_closed(&self) -> bool {
        self.tally.unfinished || self.too_large.is_some()
    }

    /// The attempts at a position, of which the first warms up if there are several.
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

    /// `optimum` is the mean over all positions, of which there are so many.
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

    /// Attempts that ended with a token, of those that ended, the mean over positions.
    pub fn success(&self) -> Option<f64> {
        self.success
    }

    /// Positions that it solved.
    pub fn solved(&self) -> usize {
        self.tally.solved.count
    }

    /// The time as printed in the table.
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

/// Three significant digits.
fn milliseconds(ms: f64) -> String {
    let digits = (2.0 - ms.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{ms:.digits$}")
}

#[derive(Serialize, Deserialize)]
pub struct RowReport {
    pub row: String,
    /// Tokens of the draft that are left; none for all.
    k: Option<usize>,
    n: usize,
    /// Mean best acceptance over all positions.
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

    /// Time and acceptance of a solver over all positions. Where it gives up, the fastest of those
    /// that take over, as in the published comparison, and have an answer everywhere.
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

    /// A position at which an attempt is quick, so that it is repeated, counts as one at which it
    /// is slow.
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

    /// Where Global Resolution gives up an exact solver takes over, not another form of it; and
    /// none that has no answer somewhere, or had no turn.
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
