//! Points of the integral over time, and potentials of the grid.

use std::sync::OnceLock;

/// Potentials of the grid: −[`HIGHEST`] to [`HIGHEST`] in steps of [`STEP`].
pub(super) const GRID: usize = 16;
const HIGHEST: f64 = 15.0;
const STEP: f64 = 2.0;
/// Points of the integral: times e^x for x in steps of [`SPACING`].
pub(super) const POINTS: usize = 92;
/// The sum differs from the integral by a relative 1e-7 at most, and what is before the first point
/// by e^−12.
const SPACING: f64 = 0.5;
const FIRST: f64 = -27.0;

/// Values at every point and potential.
pub(super) struct Table {
    /// Probability that a clock has not rung yet.
    pub waits: [[f64; GRID]; POINTS],
    /// Probability that it rings at this point.
    pub rings: [[f64; GRID]; POINTS],
}

/// Place on the grid of the logarithm of a rate.
pub(super) fn place_of(log: f64) -> f64 {
    (log.clamp(-HIGHEST, HIGHEST) + HIGHEST) / STEP
}

/// The table.
pub(super) fn table() -> &'static Table {
    static TABLE: OnceLock<Box<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        // The largest sum over the points, for any potential: shares sum to at most 1 with it.
        let density = |x: f64| x.exp() * (-x.exp()).exp();
        let sum = |shift: f64| {
            (0..POINTS).map(|i| SPACING * density(FIRST + SPACING * i as f64 + shift)).sum::<f64>()
        };
        let shifts = (0..=600).map(|i| sum(SPACING * f64::from(i) / 600.0));
        let largest = shifts.fold(0.0, f64::max) * (1.0 + 1e-12);
        let mut table =
            Box::new(Table { waits: [[0.0; GRID]; POINTS], rings: [[0.0; GRID]; POINTS] });
        for point in 0..POINTS {
            for place in 0..GRID {
                let x = FIRST + SPACING * point as f64 + STEP * place as f64 - HIGHEST;
                table.waits[point][place] = (-x.exp()).exp();
                table.rings[point][place] = SPACING * density(x) / largest;
            }
        }
        table
    })
}
