//! A grid of ratios, to pool tokens that carry little mass.
//!
//! Problem: assign a token of ratio r = p/q to one of a few cells without sorting, and without
//! losing its exact ratio.
//! Source: ours. A cell is a range of the leading bits of r. The token's length q is split between
//! the two ends ("knots") of its cell so that the mean ratio is exactly r; each knot then acts as
//! one entry.
//! Complexity: constant per token, no branches.
//! Deviations: none.

/// A grid of cells whose ratios share their leading bits, starting at `base`; cell 0 contains
/// everything below, down to 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    shift: u32,
    base: u64,
    cells: usize,
}

/// Position of a ratio: its cell, and the fraction within the cell, in [0, 1).
pub(super) type CellPosition = (u64, f64);

const MANTISSA: u32 = 52;

impl Grid {
    /// Creates a grid of 2^`bits` cells per factor of two, from `low` (> 0) to `high`.
    pub fn new(bits: u32, low: f64, high: f64) -> Self {
        let shift = MANTISSA - bits;
        let base = low.to_bits() >> shift;
        Self { shift, base, cells: 2 + ((high.to_bits() >> shift) - base) as usize }
    }

    /// The number of cells. Their ends are the knots 0 to `cells`.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// The ratio at a knot: the lower end of the cell of that index.
    pub fn knot(&self, index: usize) -> f64 {
        if index == 0 { 0.0 } else { f64::from_bits((self.base + index as u64 - 1) << self.shift) }
    }

    /// The position of a ratio up to `high`.
    #[inline(always)]
    pub fn locate(&self, ratio: f64) -> CellPosition {
        const ONE: u64 = 1.0_f64.to_bits();
        let low = f64::from_bits(self.base << self.shift);
        let inside = ratio >= low;
        let bits = if inside { ratio } else { low }.to_bits();
        let below_one = (bits << (MANTISSA - self.shift)) & ((1 << MANTISSA) - 1);
        let fraction = f64::from_bits(ONE | below_one) - 1.0;
        let cell = (bits >> self.shift) - self.base + u64::from(inside);
        (cell, if inside { fraction } else { ratio / low })
    }
}

/// Total length in a cell, and the part of it assigned to the upper knot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    pub length: f64,
    pub upper: f64,
}

impl Cell {
    #[inline(always)]
    pub fn add(&mut self, length: f64, fraction: f64) {
        self.length += length;
        self.upper += length * fraction;
    }

    /// The length assigned to the lower knot.
    pub fn lower(self) -> f64 {
        (self.length - self.upper).max(0.0)
    }

    /// Upper bound of the increase of the maximum of D caused by splitting between knots that are
    /// `width` apart.
    pub fn max_loss(self, width: f64) -> f64 {
        self.upper * (1.0 - self.upper / self.length) * width
    }

    pub fn plus(self, other: Self) -> Self {
        Self { length: self.length + other.length, upper: self.upper + other.upper }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knots_weighted_by_fraction_give_the_ratio() {
        for grid in [Grid::new(5, 1e-6, 8.0), Grid::new(14, 0.7, 0.8), Grid::new(5, 1e-6, 100.0)] {
            let low = grid.knot(1);
            let high = grid.knot(grid.cells() - 1);
            assert!(low <= 0.7 && high <= 100.0);
            for i in 0..=10_000 {
                let ratio = high * f64::from(i) / 10_000.0;
                let (cell, fraction) = grid.locate(ratio);
                let cell = cell as usize;
                assert!(cell < grid.cells() && (0.0..1.0).contains(&fraction));
                let mean = (1.0 - fraction) * grid.knot(cell) + fraction * grid.knot(cell + 1);
                assert!((mean - ratio).abs() <= 1e-15 * ratio, "{ratio} {mean}");
            }
        }
    }
}
