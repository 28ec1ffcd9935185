//! Evidence against a server, as money won by betting against it.
//!
//! Problem: is what a server emits distributed as it should be? The answer must hold however long
//! one looks, however one decides to stop, and for many questions at once.
//! Source: test martingales (Ville 1939; Shafer and Vovk, "Game-Theoretic Foundations for
//! Probability and Finance", 2019; Waudby-Smith and Ramdas, "Estimating means of bounded random
//! variables by betting", 2024). A bettor begins with 1 and before every token puts his money on
//! what may come, at odds that are fair if the server is right; h(y) is what he gets for y, and
//! Σ p(y)h(y) = 1. Whatever he bets by what he has seen, the probability that he ever owns 1/α is
//! at most α if the server is right. docs/audit.md has the proofs.
//! Complexity: linear in the cells of a token.
//! Deviations: (1) the server's distribution may be any within a total variation of δ of p: what
//! is won is divided by 1 + δ(max h − min h), by which it may exceed 1 on average. (2) Where the
//! bet is expected to win less than that costs, there is none.

mod pairs;
mod power;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub use pairs::{Matches, Pairs};
pub use power::{LARGEST, Trail, smallest_found, would_find};

/// Money, by several strategies that began with equal parts of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wealth {
    /// The logarithm of what every part has become.
    parts: Vec<f64>,
    /// The logarithm of the most that all had together.
    peak: f64,
}

impl Wealth {
    /// One unit, in so many parts.
    pub fn new(parts: usize) -> Self {
        Self { parts: vec![0.0; parts], peak: 0.0 }
    }

    /// Multiplies a part; `settle` must follow.
    pub fn multiply(&mut self, part: usize, logarithm: f64) {
        self.parts[part] += logarithm;
    }

    /// Looks at what all have together.
    pub fn settle(&mut self) {
        // All together have no more on average than the richest.
        if self.parts.iter().any(|part| *part > self.peak) {
            self.peak = self.peak.max(self.current());
        }
    }

    /// The logarithm of what there is now.
    pub fn current(&self) -> f64 {
        let peak = self.parts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.parts.iter().map(|part| (part - peak).exp()).sum();
        peak + (sum / self.parts.len() as f64).ln()
    }

    /// The logarithm of the most that there ever was.
    pub fn peak(&self) -> f64 {
        self.peak
    }
}

/// The probability at most of ever owning so much against a server that is right.
pub fn p_value(peak: f64) -> f64 {
    (-peak).exp().min(1.0)
}

/// What may come at a token, as far as it is told apart: the likely tokens, likeliest first, and
/// last everything else together.
#[derive(Debug, Clone, PartialEq)]
pub struct Odds {
    /// Their probabilities; they sum to one.
    pub cells: Vec<f64>,
    /// How far the true distribution may be from this in total variation.
    pub slack: f64,
}

/// Tokens with less than this are counted together: of rarer ones too few are seen to bet on.
pub const LIKELY: f64 = 0.02;
/// The rest has at least this, so that one token out of a support is no proof yet: a boundary that
/// arithmetic has moved gives such a token once, a fault gives it again and again.
const LEAST_REST: f64 = 1e-3;

impl Odds {
    /// From the probabilities of the tokens, likeliest first.
    pub fn new(tokens: impl IntoIterator<Item = f64>, slack: f64) -> Self {
        let mut cells: Vec<f64> = tokens.into_iter().take_while(|p| *p >= LIKELY).collect();
        let rest = (1.0 - cells.iter().sum::<f64>()).max(0.0);
        let more = (LEAST_REST - rest).max(0.0);
        cells.iter_mut().for_each(|cell| *cell *= (1.0 - rest - more) / (1.0 - rest).max(1e-300));
        cells.push(rest + more);
        Self { cells, slack: slack + more }
    }

    /// The cell of everything else.
    pub fn rest(&self) -> usize {
        self.cells.len() - 1
    }

    /// The probabilities of the likeliest and of all others once so much has moved to it.
    fn moved(&self, moved: f64) -> (f64, f64) {
        let top =
            (self.cells[0] + moved).clamp(self.cells[0] / 2.0, 1.0 - self.rest_of_top() / 2.0);
        (top, 1.0 - top)
    }

    fn rest_of_top(&self) -> f64 {
        1.0 - self.cells[0]
    }

    /// How likely a cell is, roughly: what is told apart over all contexts, less than `SIZES`.
    fn size(&self, cell: usize) -> usize {
        match cell == self.rest() {
            true => BOUNDS.len() + 1,
            false => BOUNDS.partition_point(|bound| *bound <= self.cells[cell]),
        }
    }

    /// Wins, as far as the odds are expected to be wrong by so much.
    fn suppose(&self, moved: f64, wins: &mut [f64]) {
        let (top, rest_of_top) = self.moved(moved);
        let rest = self.rest_of_top();
        wins.fill(if rest > 0.0 { rest_of_top / rest } else { 1.0 });
        wins[0] = top / self.cells[0];
    }
}

/// Between sizes of cells.
const BOUNDS: [f64; 5] = [0.05, 0.1, 0.2, 0.4, 0.7];
const SIZES: usize = BOUNDS.len() + 2;

/// Where a token stands, and which it may be.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// What stands before it, as a number.
    pub prefix: u64,
    /// Tokens of the answer before it.
    pub position: usize,
    /// The last token before it and the last but one, as numbers.
    pub before: [u64; 2],
    /// The cells' tokens, as numbers; the rest has none.
    pub tokens: Vec<u64>,
}

/// What is counted for cells, each family for itself: cells that have a key in common are expected
/// to come too often, or too seldom, together.
const FAMILIES: usize = 6;

impl Context {
    /// The keys of a cell, by family: cells of its size, of its size at this position, its token,
    /// its token after the last one, after the last two, and in this very place.
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

/// One number for several.
pub fn combined_hash(numbers: &[u64]) -> u64 {
    let mut hash = 0x243f_6a88_85a3_08d3u64;
    for number in numbers {
        hash = (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// How many imagined observations weigh as much as the odds: few learn fast and lose more where
/// there is nothing to be learnt; both are played.
const PRIOR_WEIGHTS: [f64; 2] = [5.0, 50.0];
/// Errors that are bet on from the first token, before anything is learnt: so much goes to the
/// likeliest token, or away from it. That is what a wrong acceptance does, and learning the same
/// takes twice the tokens.
const SUPPOSED_ERRORS: [f64; 6] = [0.01, -0.01, 0.03, -0.03, 0.1, -0.1];
const STRATEGIES: usize = FAMILIES * PRIOR_WEIGHTS.len() + SUPPOSED_ERRORS.len();
/// Cells at most: each but the last has at least `LIKELY`.
const CELLS: usize = (1.0 / LIKELY) as usize + 1;

/// Bets on tokens: by what has come before, family by family, and on errors that are supposed.
#[derive(Debug, Clone)]
pub struct Bettor {
    /// Total variation that is taken for arithmetic.
    tolerance: f64,
    /// By key, how often cells have come, and how often they should have.
    counts: HashMap<u64, (f64, f64), BuildHasherDefault<IdentityHasher>>,
    wealth: Wealth,
    tokens: usize,
    /// How often the likeliest came, and how often it should have.
    top: (f64, f64),
    /// Room that is used again for every token.
    keys: Vec<u64>,
    wins: Vec<f64>,
}

/// Keys are mixed already.
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
    /// Somebody who has seen nothing.
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

    /// A token has come: the cell it is in.
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
            odds.suppose(moved, &mut wins);
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

    /// What was won.
    pub fn wealth(&self) -> &Wealth {
        &self.wealth
    }

    /// Tokens seen.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How often the likeliest token came, and how often it should have.
    pub fn top(&self) -> (f64, f64) {
        self.top
    }

    /// How often a cell came in its place, and how often it should have.
    pub fn counts(&self, context: &Context, odds: &Odds, cell: usize) -> (f64, f64) {
        let key = context.keys(odds, cell)[FAMILIES - 1];
        self.counts.get(&key).copied().unwrap_or_default()
    }
}

/// Wins, as far as what came differed from what was expected.
fn wins_from_counts(counts: impl Iterator<Item = (f64, f64)>, prior_weight: f64, wins: &mut [f64]) {
    for (win, (come, expected)) in wins.iter_mut().zip(counts) {
        *win = (come + prior_weight) / (expected + prior_weight);
    }
}

/// Makes of `wins`, which are proportional to what is got for every cell, what is got; and says
/// what the tolerance costs, if the bet is made.
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
    // Who is right about the wins gains half their variance, to second order.
    (variance / 2.0 > cost).then_some(cost)
}

/// The logarithm of what a bet has won.
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

    /// The mean of what is owned after a few tokens, over all that can come: at most one, exactly
    /// one without a tolerance, whatever the true distribution within it.
    #[test]
    fn what_is_owned_is_one_on_average() {
        for tolerance in [0.0, 0.01] {
            let odds = Odds::new([0.6, 0.25, 0.1], 0.0);
            let cells = odds.cells.len();
            // One who has seen much bets high.
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
    fn faults_are_found_and_lossless_servers_are_not_accused() {
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

    /// What can never come is a fault soon, but not at once.
    #[test]
    fn a_token_out_of_the_support_is_found() {
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
