//! Power: the smallest error that a test would have found, by simulation on the observed contexts.
//!
//! Problem: a test without findings means little unless one knows what it could have found.
//! Source: simulation; the bettor is the one of the test, but counts only size classes of cells, so
//! the test itself finds no less. Errors move a total variation of τ at every token, as far as
//! possible, to the most probable token or away from it, as a wrong acceptance or a wrong residual
//! does. Values that do not depend on the outcomes are computed once for all simulations.
//! Complexity: simulations × tokens × size classes. Deviations: none.

use std::rc::Rc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    FAMILIES, Odds, PRIOR_WEIGHTS, SIZES, STRATEGIES, SUPPOSED_ERRORS, Wealth, bet, log_gain,
    wins_from_counts,
};

/// Odds of the tested tokens, in order.
pub type Trail = Vec<Rc<Odds>>;

/// Simulated total variations.
const LEVELS: [f64; 12] = [0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3];
const RUNS: usize = 40;
/// Minimum number of 20 tests that must find an error.
const FOUND: usize = 19;

/// Returns the smallest error found in 19 of 20 tests, or `None` if not even the largest is.
/// `threshold` is the logarithm of the wealth that proves a fault.
pub fn smallest_found(trail: &Trail, tolerance: f64, threshold: f64) -> Option<f64> {
    let steps = Steps::new(trail, tolerance);
    let found = |level: &f64| finds(&steps, threshold, *level);
    // Power is monotone in the size of the error.
    let first = LEVELS.partition_point(|level| !found(level));
    LEVELS.get(first).copied()
}

/// Returns whether an error of this size, or a smaller one, would be found in 19 of 20 tests:
/// cheaper than finding the smallest.
pub fn would_find(trail: &Trail, tolerance: f64, threshold: f64, size: f64) -> bool {
    let level = LEVELS.into_iter().rfind(|level| *level <= size);
    level.is_some_and(|level| finds(&Steps::new(trail, tolerance), threshold, level))
}

/// Largest simulated error.
pub const LARGEST: f64 = LEVELS[LEVELS.len() - 1];

/// Tested tokens in order, in contiguous arrays: simulations read them again and again, and would
/// wait for memory otherwise.
#[derive(Default)]
struct Steps {
    /// Per token: tolerance, end of its cells, end of its size classes.
    tokens: Vec<(f64, usize, usize)>,
    /// Per cell: probability.
    cells: Vec<f64>,
    /// Per cell: index of its size class among those of the token.
    size_indices: Vec<u8>,
    /// Per cell: log-gain of the bets on assumed errors if it is observed.
    supposed: Vec<[f64; SUPPOSED_ERRORS.len()]>,
    /// Per size class of a token: class, and total probability of its cells.
    sizes: Vec<u8>,
    shares: Vec<f64>,
}

/// A tested token.
struct Step<'s> {
    tolerance: f64,
    cells: &'s [f64],
    size_indices: &'s [u8],
    supposed: &'s [[f64; SUPPOSED_ERRORS.len()]],
    sizes: &'s [u8],
    shares: &'s [f64],
}

impl Steps {
    fn new(trail: &Trail, tolerance: f64) -> Self {
        let mut steps = Self::default();
        trail.iter().for_each(|odds| steps.push(odds, tolerance + odds.slack));
        steps
    }

    fn push(&mut self, odds: &Odds, tolerance: f64) {
        let first = self.cells.len();
        self.cells.extend(&odds.cells);
        self.supposed.resize(self.cells.len(), [0.0; SUPPOSED_ERRORS.len()]);
        let mut wins = vec![1.0; odds.cells.len()];
        for (number, moved) in SUPPOSED_ERRORS.into_iter().enumerate() {
            odds.bet_on_error(moved, &mut wins);
            let cost = bet(&odds.cells, &mut wins, tolerance);
            for (of_cell, win) in self.supposed[first..].iter_mut().zip(&wins) {
                of_cell[number] = log_gain(cost, *win);
            }
        }
        let first = self.sizes.len();
        for (cell, p) in odds.cells.iter().enumerate() {
            let size = odds.size(cell) as u8;
            let known = self.sizes[first..].iter().position(|known| *known == size);
            let size_index = known.unwrap_or(self.sizes.len() - first);
            if known.is_none() {
                self.sizes.push(size);
                self.shares.push(0.0);
            }
            self.shares[first + size_index] += p;
            self.size_indices.push(size_index as u8);
        }
        self.tokens.push((tolerance, self.cells.len(), self.sizes.len()));
    }

    fn iter(&self) -> impl Iterator<Item = Step<'_>> {
        let starts = std::iter::once((0, 0));
        let starts = starts.chain(self.tokens.iter().map(|(_, cells, sizes)| (*cells, *sizes)));
        self.tokens.iter().zip(starts).map(|((tolerance, cells, sizes), (first, size))| Step {
            tolerance: *tolerance,
            cells: &self.cells[first..*cells],
            size_indices: &self.size_indices[first..*cells],
            supposed: &self.supposed[first..*cells],
            sizes: &self.sizes[size..*sizes],
            shares: &self.shares[size..*sizes],
        })
    }
}

/// Bettor that counts only size classes: the wealth of other families lies idle, so it wins no more
/// than one that counts everything. Cells of one class have equal payoffs, so it bets on classes.
struct SizeBettor {
    /// Observed and expected counts, by size class.
    counts: [(f64, f64); SIZES],
    wealth: Wealth,
}

impl SizeBettor {
    fn new() -> Self {
        Self { counts: [(0.0, 0.0); SIZES], wealth: Wealth::new(STRATEGIES) }
    }

    fn observe(&mut self, step: &Step, observed: usize) {
        let size_index = usize::from(step.size_indices[observed]);
        let mut wins = [1.0; SIZES];
        let wins = &mut wins[..step.sizes.len()];
        for (part, prior_weight) in PRIOR_WEIGHTS.into_iter().enumerate() {
            wins_from_counts(
                step.sizes.iter().map(|size| self.counts[usize::from(*size)]),
                prior_weight,
                wins,
            );
            let cost = bet(step.shares, wins, step.tolerance);
            self.wealth.multiply(part, log_gain(cost, wins[size_index]));
        }
        for (number, log_gain) in step.supposed[observed].into_iter().enumerate() {
            self.wealth.multiply(FAMILIES * PRIOR_WEIGHTS.len() + number, log_gain);
        }
        for (size, share) in step.sizes.iter().zip(step.shares) {
            self.counts[usize::from(*size)].1 += share;
        }
        self.counts[usize::from(step.sizes[size_index])].0 += 1.0;
    }

    /// Returns whether the wealth reaches the threshold. The total is a mean of the shares, so it
    /// is at most the largest.
    fn reaches(&self, threshold: f64) -> bool {
        self.wealth.parts.iter().any(|part| *part >= threshold)
            && self.wealth.current() >= threshold
    }
}

fn finds(steps: &Steps, threshold: f64, level: f64) -> bool {
    let allowed = RUNS * (20 - FOUND) / 20;
    [1.0, -1.0].into_iter().all(|direction| {
        let missed = (0..RUNS).filter(|run| {
            let mut rng = ChaCha8Rng::seed_from_u64(*run as u64);
            let mut bettor = SizeBettor::new();
            !steps.iter().any(|step| {
                let observed = draw(step.cells, direction * level, &mut rng);
                bettor.observe(&step, observed);
                bettor.reaches(threshold)
            })
        });
        missed.take(allowed + 1).count() <= allowed
    })
}

/// Draws a cell; the first one has `moved` more than its own probability.
fn draw(cells: &[f64], moved: f64, rng: &mut ChaCha8Rng) -> usize {
    let top = cells[0];
    let moved_top = (top + moved).clamp(0.0, 1.0);
    let u: f64 = rng.random();
    if u < moved_top || cells.len() == 1 {
        return 0;
    }
    // The others in proportion.
    let mut left = (u - moved_top) / (1.0 - moved_top) * (1.0 - top);
    for (cell, p) in cells.iter().enumerate().skip(1) {
        left -= p;
        if left < 0.0 {
            return cell;
        }
    }
    cells.len() - 1
}

#[cfg(test)]
mod tests {
    use super::super::{Bettor, Context};
    use super::*;

    /// Where all prefixes are distinct, the families of size classes learn the same as with all
    /// counts.
    #[test]
    fn size_bettor_matches_full_bettor_on_distinct_prefixes() {
        let distributions = [&[0.6, 0.25, 0.1][..], &[0.9, 0.04], &[0.3, 0.3, 0.2], &[1.0], &[]];
        let odds: Vec<Odds> = distributions
            .iter()
            .map(|distribution| Odds::new(distribution.iter().copied(), 0.001))
            .collect();
        let mut steps = Steps::default();
        odds.iter().for_each(|odds| steps.push(odds, 0.002 + odds.slack));
        let steps: Vec<Step> = steps.iter().collect();
        let (mut full, mut simple) = (Bettor::new(0.002), SizeBettor::new());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for prefix in 0..3000 {
            let number = rng.random_range(0..odds.len());
            let observed = draw(&odds[number].cells, 0.05, &mut rng);
            let tokens = (0..odds[number].rest() as u64).collect();
            let context = Context { prefix, position: 0, before: [prefix; 2], tokens };
            full.observe(&context, &odds[number], observed);
            simple.observe(&steps[number], observed);
        }
        let of_sizes = 0..PRIOR_WEIGHTS.len();
        let of_errors = FAMILIES * PRIOR_WEIGHTS.len()..STRATEGIES;
        for part in of_sizes.chain(of_errors) {
            let (expected, found) = (full.wealth.parts[part], simple.wealth.parts[part]);
            assert!((expected - found).abs() < 1e-9 * expected.abs().max(1.0), "{part}");
            assert!(expected != 0.0, "{part}");
        }
    }

    #[test]
    fn more_tokens_find_smaller_errors() {
        let odds = Rc::new(Odds::new([0.5, 0.3, 0.15], 0.0));
        let trail = |tokens: u64| (0..tokens).map(|_| Rc::clone(&odds)).collect();
        let smallest = |tokens| smallest_found(&trail(tokens), 0.002, 1e4f64.ln());
        let (short, medium, long) = (smallest(20), smallest(1000), smallest(6000));
        assert_eq!(short, None);
        assert!(medium.is_some_and(|medium| medium <= 0.15), "{medium:?}");
        assert!(long.is_some_and(|long| long <= 0.05), "{long:?}");
    }
}
