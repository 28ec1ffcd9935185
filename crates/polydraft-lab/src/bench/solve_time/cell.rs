//! A solver on a row: what its attempts add up to.

use serde::{Deserialize, Serialize};

use super::solvers::Attempt;
use crate::bench::median;

/// A solver on a row.
#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub solver: String,
    /// Mean milliseconds per emitted token; a lower bound of it where `lower_bound`; none if it was not begun.
    pub milliseconds: Option<f64>,
    pub lower_bound: bool,
    /// Mean milliseconds of all attempts, those that gave up included.
    milliseconds_with_failures: Option<f64>,
    /// Attempts that ended with a token, of those that ended.
    success: Option<f64>,
    /// Mean acceptance over the positions that it solved.
    pub acceptance: Option<f64>,
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

    /// Attempts that ended with a token, of those that ended.
    pub fn success(&self) -> Option<f64> {
        self.success
    }

    /// Positions that it solved.
    pub fn solved(&self) -> usize {
        self.tally.solved.0
    }

    fn is_complete(&self) -> bool {
        self.success == Some(1.0) && !self.lower_bound
    }

    /// The time as a table has it.
    pub fn time(&self) -> String {
        let bound = if self.lower_bound { ">" } else { "" };
        let success = self.success.filter(|success| *success < 1.0);
        let success = success.map_or(String::new(), |success| format!(" ({:.0} %)", 100.0 * success));
        match self.milliseconds {
            Some(ms) => format!("{bound}{}{success}", milliseconds(ms)),
            None if self.too_large.is_some() => "too large".to_owned(),
            None if self.success == Some(0.0) => "- (0 %)".to_owned(),
            None => "-".to_owned(),
        }
    }
}

/// Three digits that count.
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
    pub fn new(row: String, k: Option<usize>, n: usize, optima: &[f64], mut cells: Vec<Cell>) -> Self {
        let optimum = optima.iter().sum::<f64>() / optima.len().max(1) as f64;
        cells.iter_mut().for_each(|cell| cell.finish(optimum));
        Self { row, k, n, optimum, cells }
    }

    /// Time and acceptance of a solver over all positions. Where it gives up, the fastest of the solvers before it that
    /// never does takes over, as in the published comparison.
    pub fn overall(&self, column: usize) -> Option<(f64, f64)> {
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
