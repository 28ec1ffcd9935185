//! The one statistical test: do counts agree with a distribution that is known?
//!
//! Problem: where distributions cannot be enumerated, what was emitted is counted and compared with
//! what should have been.
//! Source: the G-test (log-likelihood ratio) against a known distribution; cells expected fewer
//! than five times are pooled.
//! Complexity: one pass over the cells. Deviations: none.

use statrs::distribution::{ChiSquared, ContinuousCDF};

/// Cells must be expected this often for the statistic to have its distribution.
pub const EXPECTED: f64 = 5.0;

/// The statistic of a G-test, which adds up over independent experiments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GTest {
    /// 2 Σ observed·ln(observed/expected).
    pub statistic: f64,
    /// Cells compared.
    pub cells: usize,
    /// Cells that can vary: all but one for each experiment.
    pub freedom: usize,
}

impl GTest {
    /// Compares cells of (probability, count), which are all that can happen.
    pub fn new(cells: impl IntoIterator<Item = (f64, u64)>) -> Self {
        let cells: Vec<_> = cells.into_iter().collect();
        let runs = cells.iter().map(|(_, count)| count).sum::<u64>() as f64;
        let mut test = Self::default();
        let mut rare = (0.0, 0);
        for (probability, count) in cells {
            if probability * runs < EXPECTED {
                rare = (rare.0 + probability, rare.1 + count);
            } else {
                test.add_cell(probability, count, runs);
            }
        }
        // The rare ones may be rare together; seen at all they must not be forgotten.
        if rare.0 * runs > 1e-9 || rare.1 > 0 {
            test.add_cell(rare.0, rare.1, runs);
        }
        test.freedom = test.cells.saturating_sub(1);
        test
    }

    fn add_cell(&mut self, probability: f64, count: u64, runs: f64) {
        self.cells += 1;
        if count > 0 {
            self.statistic +=
                2.0 * count as f64 * (count as f64 / (probability * runs).max(1e-300)).ln();
        }
    }

    /// Both tests together.
    pub fn and(self, other: Self) -> Self {
        Self {
            statistic: self.statistic + other.statistic,
            cells: self.cells + other.cells,
            freedom: self.freedom + other.freedom,
        }
    }

    /// The probability that the distribution itself deviates at least as much; 1 if there is
    /// nothing to compare.
    pub fn p_value(&self) -> f64 {
        match ChiSquared::new(self.freedom as f64) {
            Ok(probs) if self.freedom > 0 => probs.sf(self.statistic.max(0.0)),
            _ => 1.0,
        }
    }
}
