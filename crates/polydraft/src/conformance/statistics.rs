//! The G-test: do counts agree with a known distribution?
//!
//! Problem: where distributions cannot be enumerated, compare counts of what was emitted with the
//! expected distribution.
//! Source: the G-test (log-likelihood ratio) against a known distribution; cells with fewer than
//! five expected counts are pooled.
//! Complexity: one pass over the cells. Deviations: none.

/// Minimum expected count of a cell, for the statistic to have its distribution.
pub const MIN_EXPECTED: f64 = 5.0;

/// Statistic of a G-test, which adds up over independent experiments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GTest {
    /// 2 Σ observed·ln(observed/expected).
    pub statistic: f64,
    /// Number of cells compared.
    pub cells: usize,
    /// Degrees of freedom: all cells but one per experiment.
    pub degrees_of_freedom: usize,
}

impl GTest {
    /// Compares cells of (probability, count) that cover all outcomes.
    pub fn new(cells: impl IntoIterator<Item = (f64, u64)>) -> Self {
        let cells: Vec<_> = cells.into_iter().collect();
        let runs = cells.iter().map(|(_, count)| count).sum::<u64>() as f64;
        let mut test = Self::default();
        let mut rare = (0.0, 0);
        for (probability, count) in cells {
            if probability * runs < MIN_EXPECTED {
                rare = (rare.0 + probability, rare.1 + count);
            } else {
                test.add_cell(probability, count, runs);
            }
        }
        // Rare cells may not be rare together, and observed ones must count.
        if rare.0 * runs > 1e-9 || rare.1 > 0 {
            test.add_cell(rare.0, rare.1, runs);
        }
        test.degrees_of_freedom = test.cells.saturating_sub(1);
        test
    }

    fn add_cell(&mut self, probability: f64, count: u64, runs: f64) {
        self.cells += 1;
        if count > 0 {
            self.statistic +=
                2.0 * count as f64 * (count as f64 / (probability * runs).max(1e-300)).ln();
        }
    }

    /// Combines two independent tests.
    pub fn combined(self, other: Self) -> Self {
        Self {
            statistic: self.statistic + other.statistic,
            cells: self.cells + other.cells,
            degrees_of_freedom: self.degrees_of_freedom + other.degrees_of_freedom,
        }
    }

    /// The probability that counts from the distribution deviate at least as much; 1 if there is
    /// nothing to compare.
    pub fn p_value(&self) -> f64 {
        match self.degrees_of_freedom {
            0 => 1.0,
            freedom => chi_squared_above(freedom, self.statistic),
        }
    }
}

/// The probability that a chi-squared variable with `freedom` degrees of freedom exceeds `x`.
///
/// With y = x/2 it is Σ e^−y·y^s/Γ(s + 1) over s = 0, 1, .. below freedom/2, and for an odd freedom
/// erfc(√y) and that sum over s = 1/2, 3/2, .. (Abramowitz and Stegun, 26.4.4 and 26.4.5). All
/// terms are positive; each is computed from the previous one by its logarithm, as e^−y alone may
/// underflow.
fn chi_squared_above(freedom: usize, x: f64) -> f64 {
    let y = x / 2.0;
    if y <= 0.0 || y == f64::INFINITY {
        return f64::from(y <= 0.0);
    }
    let half = freedom as f64 / 2.0;
    // 2·√(y/π) is y^(1/2)/Γ(3/2).
    let (mut s, mut logarithm, mut sum) = match freedom % 2 {
        0 => (0.0, -y, 0.0),
        _ => (0.5, (2.0 * (y / std::f64::consts::PI).sqrt()).ln() - y, libm::erfc(y.sqrt())),
    };
    while s < half {
        sum += logarithm.exp();
        s += 1.0;
        logarithm += (y / s).ln();
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::chi_squared_above;

    #[test]
    fn chi_squared_tail_matches_tables() {
        // The 5 %, 1 % and 0.1 % points.
        for (freedom, points) in [
            (1, [3.841_458_820_694_124, 6.634_896_601_021_213, 10.827_566_170_662_733]),
            (2, [5.991_464_547_107_979, 9.210_340_371_976_18, 13.815_510_557_964_274]),
            (5, [11.070_497_693_516_351, 15.086_272_469_388_987, 20.515_005_652_432_873]),
            (10, [18.307_038_053_275_147, 23.209_251_158_954_36, 29.588_298_445_074_42]),
            (99, [123.225_221_453_361_8, 134.641_616_855_789_14, 148.230_359_165_101_72]),
        ] {
            for (point, above) in points.into_iter().zip([0.05, 0.01, 0.001]) {
                let found = chi_squared_above(freedom, point);
                assert!((found / above - 1.0).abs() < 1e-9, "{freedom}, {point}: {found}");
            }
        }
        assert_eq!(chi_squared_above(7, 0.0), 1.0);
        // Where e^−y underflows, and where the result does.
        let middle = chi_squared_above(2000, 2000.0);
        assert!((0.49..0.5).contains(&middle), "{middle}");
        assert_eq!(chi_squared_above(3, 1e5), 0.0);
        assert_eq!(chi_squared_above(3, f64::INFINITY), 0.0);
        assert!((chi_squared_above(1, 100.0) / 1.523_970_604_832_1e-23 - 1.0).abs() < 1e-9);
    }
}
