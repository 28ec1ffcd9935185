//! Segments of priorities, and the entries that divide them.
//!
//! Problem: dividing priorities needs their mass density, its means and its integrals, to full
//! precision.
//! Source: ours. Complexity: constant per look-up.
//! Deviations: none.

/// A segment of priorities [0, T] with a rising mass density.
pub trait Profile {
    /// The length T of the segment.
    fn length(&self) -> f64;

    /// The density at t, which is the slope of G.
    fn density(&self, t: f64) -> f64;

    /// The mean density on [start, start + length]; the density at `start` if `length` is 0.
    fn mean(&self, start: f64, length: f64) -> f64;

    /// G(t), the mass of the lowest t, up to absolute rounding.
    fn below(&self, t: f64) -> f64;

    /// A position where the density is about `density`, as the first guess of a search.
    fn guess(&self, density: f64) -> f64;
}

/// The segment [0, 1] with G(t) = t^n: the mass is the distribution of the highest of n independent
/// priorities.
#[derive(Debug, Clone, Copy)]
pub struct Highest {
    count: i32,
}

impl Highest {
    /// Creates the profile of the highest of `count` priorities.
    pub fn new(count: usize) -> Self {
        Self { count: i32::try_from(count).unwrap_or(i32::MAX) }
    }
}

impl Profile for Highest {
    fn length(&self) -> f64 {
        1.0
    }

    #[inline]
    fn density(&self, t: f64) -> f64 {
        f64::from(self.count) * t.powi(self.count - 1)
    }

    #[inline]
    fn mean(&self, start: f64, length: f64) -> f64 {
        let end = start + length;
        if self.count <= 16 {
            // Σ end^k start^(n−1−k): (end^n − start^n)/length without the cancellation.
            let (mut sum, mut power) = (1.0, 1.0);
            for _ in 1..self.count {
                power *= end;
                sum = sum * start + power;
            }
            sum
        } else if length > 0.0 {
            let count = f64::from(self.count);
            -end.powi(self.count) * (count * (-length / end).ln_1p()).exp_m1() / length
        } else {
            self.density(start)
        }
    }

    fn below(&self, t: f64) -> f64 {
        t.powi(self.count)
    }

    fn guess(&self, density: f64) -> f64 {
        match self.count {
            ..=1 => 0.0,
            2 => 0.5 * density,
            3 => (density / 3.0).sqrt(),
            n => (density / f64::from(n)).powf(1.0 / f64::from(n - 1)),
        }
    }
}

/// The requirements of an entry: `length` of the segment, and if possible `demand` of its mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Length of the entry's set.
    pub length: f64,
    /// The mass that the entry can use; more is wasted.
    pub demand: f64,
}

/// An interval of the segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub start: f64,
    /// Length.
    pub length: f64,
}
