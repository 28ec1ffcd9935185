//! Random priorities with piecewise uniform distributions: sampling the draft with the highest, and
//! exact probabilities.
//!
//! Problem: n drafts have independent priorities in [0, 1]; draft j's priority lies in one of its
//! weighted intervals, chosen in proportion to the weights and uniform inside. Which draft has the
//! highest priority?
//! Source: ours (priority coupling, `docs/theory.md`). Complexity: sampling is linear in the number
//! of intervals; exact probabilities take O(intervals · n²) by Gauss–Legendre quadrature, which is
//! exact for the polynomials that occur.

use crate::random::Outcomes;

/// An interval of priorities, and the probability that a draft's priority falls into it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WeightedInterval {
    /// Lower end, in `[0, 1]`.
    pub start: f64,
    /// Length; `start + length ≤ 1` up to rounding.
    pub length: f64,
    /// Probability of this interval. A draft's weights are normalised by their sum.
    pub weight: f64,
}

impl WeightedInterval {
    /// Lower and upper end. An interval too short for floating point is widened to one unit in the
    /// last place.
    fn ends(&self) -> [f64; 2] {
        let end = self.start + self.length;
        [if end > self.start { self.start } else { self.start.next_down() }, end]
    }
}

/// The distributions of the priorities of several drafts. [`Priorities::clear`] keeps the memory
/// for reuse.
#[derive(Debug, Clone, Default)]
pub struct Priorities {
    intervals: Vec<WeightedInterval>,
    ends: Vec<usize>,
}

impl Priorities {
    /// Creates an empty list of drafts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all drafts.
    pub fn clear(&mut self) {
        self.intervals.clear();
        self.ends.clear();
    }

    /// Number of drafts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are no drafts.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a draft with the given intervals.
    pub fn push(&mut self, intervals: impl IntoIterator<Item = WeightedInterval>) {
        self.intervals.extend(intervals);
        self.ends.push(self.intervals.len());
    }

    /// The intervals of draft `index`; empty if there is no such draft.
    pub fn intervals(&self, index: usize) -> &[WeightedInterval] {
        let start = if index == 0 { 0 } else { self.ends.get(index - 1).copied().unwrap_or(0) };
        self.ends.get(index).map_or(&[], |&end| &self.intervals[start..end])
    }

    /// Draws all priorities and returns the draft with the highest, the first on a tie; 0 without
    /// drafts.
    fn draw_highest(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        let mut best = (0, f64::NEG_INFINITY);
        for draft in 0..self.len() {
            let intervals = self.intervals(draft);
            let mut left =
                uniform() * intervals.iter().map(|interval| interval.weight).sum::<f64>();
            let mut chosen = WeightedInterval { start: 0.0, length: 0.0, weight: 0.0 };
            for interval in intervals.iter().filter(|interval| interval.weight > 0.0) {
                chosen = *interval;
                if left < interval.weight {
                    break;
                }
                left -= interval.weight;
            }
            // A second uniform number for the position within the interval keeps full precision,
            // however short the interval.
            let point = chosen.start + chosen.length * uniform();
            if point > best.1 {
                best = (draft, point);
            }
        }
        best.0
    }

    /// The probability of each draft to have the highest priority.
    ///
    /// Between neighbouring ends of intervals every draft's cumulative distribution is linear, so
    /// the probability that draft j wins there is the integral of a polynomial of degree n − 1.
    pub fn win_probabilities(&self) -> Vec<f64> {
        let drafts = self.len();
        let mut ends: Vec<f64> =
            self.intervals.iter().flat_map(|interval| interval.ends()).collect();
        ends.sort_by(f64::total_cmp);
        ends.dedup();
        let totals: Vec<f64> =
            (0..drafts).map(|j| self.intervals(j).iter().map(|p| p.weight).sum()).collect();
        let rule = gauss_legendre(drafts / 2 + 1);
        let mut wins = vec![0.0; drafts];
        let mut below = vec![0.0; drafts];
        for window in ends.windows(2) {
            let (low, high) = (window[0], window[1]);
            // The mass that each draft has in this window; intervals contain the window or miss it.
            let inside: Vec<f64> = (0..drafts)
                .map(|j| {
                    let weights =
                        self.intervals(j).iter().map(|interval| (interval.ends(), interval.weight));
                    let here = weights.filter(|([start, end], _)| *start <= low && *end >= high);
                    let sum: f64 = here
                        .map(|([start, end], weight)| weight * (high - low) / (end - start))
                        .sum();
                    sum / totals[j].max(f64::MIN_POSITIVE)
                })
                .collect();
            for &(node, weight) in &rule {
                let cumulative: Vec<f64> =
                    (0..drafts).map(|j| below[j] + node * inside[j]).collect();
                for j in (0..drafts).filter(|&j| inside[j] > 0.0) {
                    let others: f64 =
                        (0..drafts).filter(|&k| k != j).map(|k| cumulative[k]).product();
                    wins[j] += weight * inside[j] * others;
                }
            }
            for (below, inside) in below.iter_mut().zip(&inside) {
                *below += inside;
            }
        }
        wins
    }
}

/// Choosing an outcome means choosing the draft of highest priority.
impl Outcomes for Priorities {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        self.draw_highest(uniform)
    }

    fn weights(&self) -> Vec<f64> {
        self.win_probabilities()
    }
}

/// Nodes and weights of the Gauss–Legendre rule on [0, 1], exact up to degree 2·`points` − 1.
fn gauss_legendre(points: usize) -> Vec<(f64, f64)> {
    let count = points as f64;
    let node = |i: usize| {
        let mut x = (std::f64::consts::PI * (i as f64 + 0.75) / (count + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..100 {
            let (mut previous, mut value) = (1.0, x);
            for k in 2..=points {
                let k = k as f64;
                (previous, value) =
                    (value, ((2.0 * k - 1.0) * x * value - (k - 1.0) * previous) / k);
            }
            slope = count * (x * value - previous) / (x * x - 1.0);
            let step = value / slope;
            x -= step;
            if step.abs() < 1e-16 {
                break;
            }
        }
        (0.5 * (1.0 + x), 1.0 / ((1.0 - x * x) * slope * slope))
    };
    if points <= 1 { vec![(0.5, 1.0)] } else { (0..points).map(node).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RandomSource;
    use rand::SeedableRng;

    fn interval(start: f64, length: f64) -> WeightedInterval {
        WeightedInterval { start, length, weight: length }
    }

    #[test]
    fn quadrature_is_exact_for_monomials() {
        for points in 1..12 {
            for degree in 0..2 * points {
                let sum: f64 =
                    gauss_legendre(points).iter().map(|(x, w)| w * x.powi(degree as i32)).sum();
                assert!(
                    (sum - 1.0 / (degree as f64 + 1.0)).abs() < 1e-14,
                    "{points} {degree} {sum}"
                );
            }
        }
    }

    #[test]
    fn equal_distributions_win_equally_often() {
        let mut priorities = Priorities::new();
        for _ in 0..5 {
            priorities.push([interval(0.1, 0.2), interval(0.6, 0.4)]);
        }
        for win in priorities.win_probabilities() {
            assert!((win - 0.2).abs() < 1e-15);
        }
    }

    #[test]
    fn sampled_frequencies_agree_with_exact_probabilities() {
        let mut priorities = Priorities::new();
        priorities.push([interval(0.0, 0.5), interval(0.9, 0.1)]);
        priorities.push([interval(0.3, 0.4)]);
        priorities.push([interval(0.2, 0.1), interval(0.5, 0.3), interval(0.95, 0.01)]);
        let exact = priorities.win_probabilities();
        assert!((exact.iter().sum::<f64>() - 1.0).abs() < 1e-14);
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let mut wins = [0.0; 3];
        let runs = 200_000;
        for _ in 0..runs {
            wins[rng.choose(&priorities)] += 1.0 / runs as f64;
        }
        for (drawn, exact) in wins.iter().zip(&exact) {
            assert!((drawn - exact).abs() < 5.0 * (exact / runs as f64).sqrt(), "{drawn} {exact}");
        }
    }
}
