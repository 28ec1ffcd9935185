//! Evidence against a server, as wealth won by betting against it.
//!
//! Problem: is the output of a server distributed as it should be? The answer must hold for any
//! number of looks, any stopping rule, and several questions at once.
//! Source: test martingales (Ville 1939; Shafer and Vovk, "Game-Theoretic Foundations for
//! Probability and Finance", 2019; Waudby-Smith and Ramdas, "Estimating means of bounded random
//! variables by betting", 2024). A bettor begins with wealth 1 and before every token bets on the
//! outcomes at odds that are fair if the server is lossless: h(y) is the payoff of y, and Σ
//! p(y)h(y) = 1. Whatever the bets depend on in the past, the probability of ever reaching wealth
//! 1/α is at most α if the server is lossless. docs/audit.md has the proofs.
//! Complexity: linear in the cells of a token.
//! Deviations: (1) the server's distribution may be any within a total variation of δ of p: payoffs
//! are divided by 1 + δ(max h − min h), the most by which their mean may exceed 1. (2) A bet whose
//! expected gain is smaller than that cost is not made.

mod pairs;
mod power;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub use pairs::{Matches, Pairs};
pub use power::{LARGEST, Trail, smallest_found, would_find};

/// Wealth of several strategies that began with equal shares.
#[derive(Debug, Clone, PartialEq)]
pub struct Wealth {
    /// Logarithm of the growth of every share.
    parts: Vec<f64>,
    /// Maximum so far of the logarithm of the total.
    peak: f64,
}

impl Wealth {
    /// Creates unit wealth in `parts` shares.
    pub fn new(parts: usize) -> Self {
        Self { parts: vec![0.0; parts], peak: 0.0 }
    }

    /// Multiplies a share; `settle` must follow.
    pub fn multiply(&mut self, part: usize, logarithm: f64) {
        self.parts[part] += logarithm;
    }

    /// Updates the maximum of the total.
    pub fn settle(&mut self) {
        // The total, as a mean of the shares, is at most the largest share.
        if self.parts.iter().any(|part| *part > self.peak) {
            self.peak = self.peak.max(self.current());
        }
    }

    /// Returns the logarithm of the current total.
    pub fn current(&self) -> f64 {
        let max = self.parts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.parts.iter().map(|part| (part - max).exp()).sum();
        max + (sum / self.parts.len() as f64).ln()
    }

    /// Returns the largest logarithm of the total so far.
    pub fn peak(&self) -> f64 {
        self.peak
    }
}

/// Returns the maximum probability of ever reaching this log-wealth against a lossless server.
pub fn p_value(peak: f64) -> f64 {
    (-peak).exp().min(1.0)
}

/// Possible outcomes at a token: the probable tokens in descending order, and a last cell for all
/// others.
#[derive(Debug, Clone, PartialEq)]
pub struct Odds {
    /// Probabilities of the cells; they sum to one.
    pub cells: Vec<f64>,
    /// Maximum total variation between these and the true distribution.
    pub slack: f64,
}

/// Tokens of smaller probability share the last cell: rarer ones are seen too seldom to bet on.
pub const LIKELY: f64 = 0.02;
/// Minimum probability of the last cell, so that one token outside the support is not yet a proof:
/// a boundary that arithmetic has moved gives such a token once, a fault gives it repeatedly.
const LEAST_REST: f64 = 1e-3;

impl Odds {
    /// Creates odds from the probabilities of the tokens, in descending order.
    pub fn new(tokens: impl IntoIterator<Item = f64>, slack: f64) -> Self {
        let mut cells: Vec<f64> = tokens.into_iter().take_while(|p| *p >= LIKELY).collect();
        let rest = (1.0 - cells.iter().sum::<f64>()).max(0.0);
        let more = (LEAST_REST - rest).max(0.0);
        cells.iter_mut().for_each(|cell| *cell *= (1.0 - rest - more) / (1.0 - rest).max(1e-300));
        cells.push(rest + more);
        Self { cells, slack: slack + more }
    }

    /// Returns the index of the last cell, for all other tokens.
    pub fn rest(&self) -> usize {
        self.cells.len() - 1
    }

    /// Returns the probabilities of the first cell and of all others after moving `moved` to the
    /// first.
    fn moved(&self, moved: f64) -> (f64, f64) {
        let top =
            (self.cells[0] + moved).clamp(self.cells[0] / 2.0, 1.0 - self.rest_of_top() / 2.0);
        (top, 1.0 - top)
    }

    fn rest_of_top(&self) -> f64 {
        1.0 - self.cells[0]
    }

    /// Returns the size class of a cell, less than `SIZES`, from its probability.
    fn size(&self, cell: usize) -> usize {
        match cell == self.rest() {
            true => BOUNDS.len() + 1,
            false => BOUNDS.partition_point(|bound| *bound <= self.cells[cell]),
        }
    }

    /// Sets the relative payoffs of a bet on an error that moves `moved` to the first cell.
    fn bet_on_error(&self, moved: f64, wins: &mut [f64]) {
        let (top, rest_of_top) = self.moved(moved);
        let rest = self.rest_of_top();
        wins.fill(if rest > 0.0 { rest_of_top / rest } else { 1.0 });
        wins[0] = top / self.cells[0];
    }
}

/// Boundaries of the size classes.
const BOUNDS: [f64; 5] = [0.05, 0.1, 0.2, 0.4, 0.7];
const SIZES: usize = BOUNDS.len() + 2;

/// Position of a token, and the candidates there.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// Hash of the prefix.
    pub prefix: u64,
    /// Number of preceding tokens of the answer.
    pub position: usize,
    /// Hashes of the last and the last but one token before it.
    pub before: [u64; 2],
    /// Hashes of the cells' tokens; the last cell has none.
    pub tokens: Vec<u64>,
}

/// Number of families of statistics: within a family, cells with a common key are expected to
/// deviate in the same direction.
const FAMILIES: usize = 6;

impl Context {
    /// Returns the keys of a cell by family: its size class, its size class at this position, its
    /// token, its token after the preceding one, after the two preceding ones, and after this exact
    /// prefix.
    fn keys(&self, odds: &Odds, cell: usize) -> [u64; FAMILIES] {
        let size = odds.size(cell) as u64;
        let token = self.tokens.get(cell).copied().unwrap_or(u64::MAX);
        let [last, other] = self.before;
        [
            combined_hash(&[0, size]),
            combined_hash(&[1, size, self.position as u64]),
            combined_hash(&[2, token]),
            combined_hash(&[3, token, last]),
            combined_hash(&[4, token, last, other]),
            combined_hash(&[5, token, self.prefix]),
        ]
    }
}

/// Combines numbers into one hash.
pub fn combined_hash(numbers: &[u64]) -> u64 {
    let mut hash = 0x243f_6a88_85a3_08d3u64;
    for number in numbers {
        hash = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Weights of the prior in pseudo-counts: a small one learns fast and loses more where there is
/// nothing to learn; the wealth is split between both.
const PRIOR_WEIGHTS: [f64; 2] = [5.0, 50.0];
/// Errors to bet on from the first token, before any observation: the probability moved to the most
/// probable token (negative: away from it). A wrong acceptance test causes such errors, and
/// learning them from observations would take twice as many tokens.
const SUPPOSED_ERRORS: [f64; 6] = [0.01, -0.01, 0.03, -0.03, 0.1, -0.1];
const STRATEGIES: usize = FAMILIES * PRIOR_WEIGHTS.len() + SUPPOSED_ERRORS.len();
/// Maximum number of cells: each but the last has at least `LIKELY`.
const CELLS: usize = (1.0 / LIKELY) as usize + 1;

/// Bettor on tokens: by past observations in each family, and on assumed errors.
#[derive(Debug, Clone)]
pub struct Bettor {
    /// Total variation attributed to arithmetic.
    tolerance: f64,
    /// Observed and expected counts of cells, by key.
    counts: HashMap<u64, (f64, f64), BuildHasherDefault<IdentityHasher>>,
    wealth: Wealth,
    tokens: usize,
    /// Observed and expected counts of the first cell.
    top: (f64, f64),
    /// Scratch buffers, reused for every token.
    keys: Vec<u64>,
    wins: Vec<f64>,
}

/// Identity hash of keys, which are hashes already.
#[derive(Debug, Clone, Copy, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl Bettor {
    /// Creates a bettor without observations.
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            counts: HashMap::default(),
            wealth: Wealth::new(STRATEGIES),
            tokens: 0,
            top: (0.0, 0.0),
            keys: Vec::new(),
            wins: Vec::new(),
        }
    }

    /// Bets on a token; `observed` is its cell.
    pub fn observe(&mut self, context: &Context, odds: &Odds, observed: usize) {
        let tolerance = self.tolerance + odds.slack;
        let length = odds.cells.len();
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        keys.extend((0..length).flat_map(|cell| context.keys(odds, cell)));
        let mut wins = std::mem::take(&mut self.wins);
        wins.clear();
        wins.resize(length, 1.0);
        let mut counts = [(0.0, 0.0); CELLS];
        for family in 0..FAMILIES {
            for (counts, keys) in counts.iter_mut().zip(keys.chunks_exact(FAMILIES)) {
                *counts = self.counts.get(&keys[family]).copied().unwrap_or_default();
            }
            for (number, prior_weight) in PRIOR_WEIGHTS.into_iter().enumerate() {
                wins_from_counts(counts.iter().copied(), prior_weight, &mut wins);
                let part = family * PRIOR_WEIGHTS.len() + number;
                self.wealth.multiply(
                    part,
                    log_gain(bet(&odds.cells, &mut wins, tolerance), wins[observed]),
                );
            }
        }
        for (number, moved) in SUPPOSED_ERRORS.into_iter().enumerate() {
            odds.bet_on_error(moved, &mut wins);
            let part = FAMILIES * PRIOR_WEIGHTS.len() + number;
            self.wealth
                .multiply(part, log_gain(bet(&odds.cells, &mut wins, tolerance), wins[observed]));
        }
        self.wealth.settle();
        for (cell, (p, keys)) in odds.cells.iter().zip(keys.chunks_exact(FAMILIES)).enumerate() {
            for key in keys {
                let counts = self.counts.entry(*key).or_default();
                counts.0 += f64::from(u8::from(cell == observed));
                counts.1 += p;
            }
        }
        (self.keys, self.wins) = (keys, wins);
        self.tokens += 1;
        self.top.0 += f64::from(u8::from(observed == 0));
        self.top.1 += odds.cells[0];
    }

    /// Returns the wealth.
    pub fn wealth(&self) -> &Wealth {
        &self.wealth
    }

    /// Returns the number of observed tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the observed and expected counts of the most probable token.
    pub fn top(&self) -> (f64, f64) {
        self.top
    }

    /// Returns the observed and expected counts of a cell at its prefix.
    pub fn counts(&self, context: &Context, odds: &Odds, cell: usize) -> (f64, f64) {
        let key = context.keys(odds, cell)[FAMILIES - 1];
        self.counts.get(&key).copied().unwrap_or_default()
    }
}

/// Sets relative payoffs from the ratio of observed to expected counts.
fn wins_from_counts(counts: impl Iterator<Item = (f64, f64)>, prior_weight: f64, wins: &mut [f64]) {
    for (win, (come, expected)) in wins.iter_mut().zip(counts) {
        *win = (come + prior_weight) / (expected + prior_weight);
    }
}

/// Normalises the payoffs in `wins`; returns the cost of the tolerance, or `None` if the bet is not
/// worth it.
fn bet(cells: &[f64], wins: &mut [f64], tolerance: f64) -> Option<f64> {
    let mean: f64 = cells.iter().zip(&*wins).map(|(p, win)| p * win).sum();
    let scale = mean.recip();
    let (mut peak, mut least, mut variance) = (f64::NEG_INFINITY, f64::INFINITY, 0.0);
    for (p, win) in cells.iter().zip(&mut *wins) {
        *win *= scale;
        peak = peak.max(*win);
        least = least.min(*win);
        variance += p * (*win - 1.0) * (*win - 1.0);
    }
    let cost = tolerance * (peak - least);
    // The expected gain of correct payoffs is half their variance, to second order.
    (variance / 2.0 > cost).then_some(cost)
}

/// Returns the logarithm of the wealth ratio of a bet.
fn log_gain(cost: Option<f64>, win: f64) -> f64 {
    cost.map_or(0.0, |cost| (win / (1.0 + cost)).ln())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn context(prefix: u64) -> Context {
        Context { prefix, position: 1, before: [prefix, 0], tokens: vec![1, 2, 3] }
    }

    fn draw(cells: &[f64], rng: &mut ChaCha8Rng) -> usize {
        let mut left: f64 = rng.random();
        for (cell, p) in cells.iter().enumerate() {
            left -= p;
            if left < 0.0 {
                return cell;
            }
        }
        cells.len() - 1
    }

    /// Computes the mean wealth after a few tokens over all outcomes: at most one, exactly one
    /// without a tolerance, for any true distribution within it.
    #[test]
    fn mean_wealth_is_at_most_one() {
        for tolerance in [0.0, 0.01] {
            let odds = Odds::new([0.6, 0.25, 0.1], 0.0);
            let cells = odds.cells.len();
            // After many observations the bets are high.
            let mut experienced = Bettor::new(tolerance);
            for (cell, times) in [(0, 30), (1, 90), (3, 40)] {
                (0..times).for_each(|_| experienced.observe(&context(0), &odds, cell));
            }
            experienced.wealth = Wealth::new(STRATEGIES);
            let moves: Vec<Vec<f64>> = match tolerance > 0.0 {
                false => vec![vec![0.0; cells]],
                true => (0..cells * cells)
                    .map(|pair| {
                        let mut moved = vec![0.0; cells];
                        moved[pair / cells] += tolerance;
                        moved[pair % cells] -= tolerance;
                        moved
                    })
                    .collect(),
            };
            for moved in moves {
                let truth: Vec<f64> =
                    odds.cells.iter().zip(&moved).map(|(p, more)| p + more).collect();
                let mut mean = 0.0;
                let length = 7;
                for path in 0..cells.pow(length) {
                    let mut bettor = experienced.clone();
                    let (mut left, mut probability) = (path, 1.0);
                    for token in 0..length {
                        let cell = left % cells;
                        left /= cells;
                        probability *= truth[cell];
                        bettor.observe(&context(u64::from(token % 2)), &odds, cell);
                    }
                    mean += probability * bettor.wealth().current().exp();
                }
                assert!(mean < 1.0 + 1e-9, "{mean} at {moved:?}");
                assert!(tolerance > 0.0 || mean > 1.0 - 1e-9, "{mean}");
            }
        }
    }

    #[test]
    fn finds_biased_tokens_without_false_alarms() {
        let odds = Odds::new([0.6, 0.25, 0.1], 0.0);
        let faulty = Odds::new([0.63, 0.23, 0.09], 0.0);
        let (mut accused, mut found) = (0, 0);
        for seed in 0..60 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            for (cells, count) in [(&odds.cells, &mut accused), (&faulty.cells, &mut found)] {
                let mut bettor = Bettor::new(0.002);
                (0..10_000).for_each(|_| bettor.observe(&context(7), &odds, draw(cells, &mut rng)));
                *count += usize::from(p_value(bettor.wealth().peak()) < 0.01);
            }
        }
        assert!(accused <= 2, "{accused} of 60");
        assert!(found >= 57, "{found} of 60");
    }

    /// Tokens of probability zero prove a fault soon, but not at once.
    #[test]
    fn finds_token_outside_support_after_repetition() {
        let odds = Odds::new([0.7, 0.3], 0.0);
        let mut bettor = Bettor::new(0.002);
        let mut needed = 0;
        while p_value(bettor.wealth().peak()) > 1e-4 {
            bettor.observe(&context(0), &odds, odds.rest());
            needed += 1;
        }
        assert!((2..=12).contains(&needed), "{needed}");
    }
}
