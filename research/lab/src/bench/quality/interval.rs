//! The confidence interval of a difference of scores.
//!
//! Problem: a confidence interval for the mean, over prompts, of the difference between two scores
//! of each prompt.
//! Source: the percentile bootstrap (Efron 1979). Prompts are drawn with replacement, each with
//! both of its scores.
//! Complexity: resamples × prompts.

use polydraft_runtime::seeded;
use rand::Rng;

const RESAMPLES: usize = 10_000;
/// Fraction of resamples outside the interval on each side.
const TAIL: f64 = 0.025;

/// Returns the interval that contains 95 % of the means of resampled `differences`. Deterministic.
pub fn interval(differences: &[f64]) -> (f64, f64) {
    let (count, mut random) = (differences.len(), seeded(0));
    let mut mean = || {
        let drawn = (0..count).map(|_| differences[(random.next_u64() % count as u64) as usize]);
        drawn.sum::<f64>() / count as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| mean()).collect();
    means.sort_by(f64::total_cmp);
    let at = (TAIL * RESAMPLES as f64) as usize;
    (means[at], means[RESAMPLES - 1 - at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For normal differences, the interval equals the known one and covers the mean in about 95 %
    /// of cases.
    #[test]
    fn report_contains_its_records() {
        assert_eq!(interval(&[0.0; 5]), (0.0, 0.0));
        let mut random = seeded(7);
        let mut uniform = || random.next_u64() as f64 / u64::MAX as f64;
        let mut held = 0;
        for _ in 0..100 {
            let values: Vec<f64> =
                (0..60).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).collect();
            let (low, high) = interval(&values);
            assert!((high - low - 2.0 * 1.96 / 60_f64.sqrt()).abs() < 0.25, "{low} {high}");
            held += usize::from(low <= 0.0 && 0.0 <= high);
        }
        assert!((86..=100).contains(&held), "{held}");
    }
}
