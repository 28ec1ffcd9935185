//! Evidence against a server, as money won by betting against it.
//!
//! Problem: is what a server emits distributed as it should be? The answer must hold however long
//! one looks, however one decides to stop, and for many questions at once.
//! Source: test martingales (Ville 1939; Shafer and Vovk, "Game-Theoretic Foundations for
//! Probability and Finance", 2019; Waudby-Smith and Ramdas, "Estimating means of bounded random
//! variables by betting", 2024). A bettor begins with 1 and before every token puts his money on
//! what may come, at odds that are fair if the server is right; h(y) is what he gets for y, and
//! Σ p(y)h(y) = 1. Whatever he bets by what he has seen, the probability that he ever owns 1/α is at
//! most α if the server is right. docs/audit.md has the proofs.
//! Complexity: linear in the cells of a token.
//! Deviations: (1) the server's distribution may be any within a total variation of δ of p: what is
//! won is divided by 1 + δ(max h − min h), by which it may exceed 1 on average. (2) Where the bet is
//! expected to win less than that costs, there is none.

mod pairs;
mod power;

use std::collections::HashMap;

pub use pairs::{Matches, Pairs};
pub use power::{Trail, smallest_found};

/// Money, by several strategies that began with equal parts of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Wealth {
    /// The logarithm of what every part has become.
    parts: Vec<f64>,
    /// The logarithm of the most that all had together.
    most: f64,
}

impl Wealth {
    /// One unit, in so many parts.
    pub fn new(parts: usize) -> Self {
        Self { parts: vec![0.0; parts], most: 0.0 }
    }

    /// Multiplies a part; `settle` must follow.
    pub fn multiply(&mut self, part: usize, logarithm: f64) {
        self.parts[part] += logarithm;
    }

    /// Looks at what all have together.
    pub fn settle(&mut self) {
        // All together have no more on average than the richest.
        if self.parts.iter().any(|part| *part > self.most) {
            self.most = self.most.max(self.now());
        }
    }

    /// The logarithm of what there is now.
    pub fn now(&self) -> f64 {
        let most = self.parts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.parts.iter().map(|part| (part - most).exp()).sum();
        most + (sum / self.parts.len() as f64).ln()
    }

    /// The logarithm of the most that there ever was.
    pub fn most(&self) -> f64 {
        self.most
    }
}

/// The probability at most of ever owning so much against a server that is right.
pub fn p_value(most: f64) -> f64 {
    (-most).exp().min(1.0)
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
        let top = (self.cells[0] + moved).clamp(self.cells[0] / 2.0, 1.0 - self.others() / 2.0);
        (top, 1.0 - top)
    }

    fn others(&self) -> f64 {
        1.0 - self.cells[0]
    }

    /// The class of a cell, over all contexts: the likeliest, the second, others, the rest.
    fn class(&self, cell: usize) -> usize {
        if cell == self.rest() { CLASSES - 1 } else { cell.min(CLASSES - 2) }
    }
}

const CLASSES: usize = 4;
/// How many imagined observations weigh as much as the odds: few learn fast and lose more where
/// there is nothing to be learnt; both are played.
const CAUTION: [f64; 2] = [100.0, 1000.0];
/// Errors that are bet on from the first token, before anything is learnt: so much goes to the
/// likeliest token, or away from it. That is what a wrong acceptance does, and learning the same
/// takes twice the tokens.
const SUPPOSED: [f64; 6] = [0.01, -0.01, 0.03, -0.03, 0.1, -0.1];
const STRATEGIES: usize = 2 * CAUTION.len() + SUPPOSED.len();
/// Cells at most: each but the last has at least `LIKELY`.
const CELLS: usize = (1.0 / LIKELY) as usize + 1;

/// Bets on tokens: by what has come in the same context, by what has come of the same rank, and on
/// errors that are supposed.
#[derive(Debug, Clone)]
pub struct Bettor {
    /// Total variation that is taken for arithmetic.
    tolerance: f64,
    /// How often every cell has come, by context.
    contexts: HashMap<u64, Vec<f64>>,
    /// How often every class has come, and how often it should have.
    classes: [(f64, f64); CLASSES],
    wealth: Wealth,
    tokens: usize,
}

impl Bettor {
    /// Somebody who has seen nothing.
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            contexts: HashMap::new(),
            classes: [(0.0, 0.0); CLASSES],
            wealth: Wealth::new(STRATEGIES),
            tokens: 0,
        }
    }

    /// A token has come: the cell it is in. The context is whatever is the same where the odds are.
    pub fn see(&mut self, context: u64, odds: &Odds, came: usize) {
        let tolerance = self.tolerance + odds.slack;
        let length = odds.cells.len();
        let counts = self.contexts.entry(context).or_insert_with(|| vec![0.0; length]);
        counts.resize(length, 0.0);
        let seen: f64 = counts.iter().sum();
        let mut wins = [1.0; CELLS];
        let wins = &mut wins[..length];
        for (part, caution) in CAUTION.into_iter().enumerate() {
            for ((win, p), count) in wins.iter_mut().zip(&odds.cells).zip(&*counts) {
                *win = (count + caution * p) / (seen + caution) / p.max(f64::MIN_POSITIVE);
            }
            self.wealth.multiply(part, bet(odds, wins, came, tolerance));
            for (cell, win) in wins.iter_mut().enumerate() {
                let (come, expected) = self.classes[odds.class(cell)];
                *win = (come + caution) / (expected + caution);
            }
            let part = CAUTION.len() + part;
            self.wealth.multiply(part, bet(odds, wins, came, tolerance));
        }
        for (part, moved) in SUPPOSED.into_iter().enumerate() {
            let (top, others) = odds.moved(moved);
            let rest = odds.others();
            wins.fill(if rest > 0.0 { others / rest } else { 1.0 });
            wins[0] = top / odds.cells[0];
            let part = 2 * CAUTION.len() + part;
            self.wealth.multiply(part, bet(odds, wins, came, tolerance));
        }
        self.wealth.settle();
        counts[came] += 1.0;
        for (cell, p) in odds.cells.iter().enumerate() {
            self.classes[odds.class(cell)].1 += p;
        }
        self.classes[odds.class(came)].0 += 1.0;
        self.tokens += 1;
    }

    /// What was won.
    pub fn wealth(&self) -> &Wealth {
        &self.wealth
    }

    /// Tokens seen.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How often tokens of every rank came, and how often they should have: likeliest, second,
    /// others that are likely, the rest.
    pub fn ranks(&self) -> [(f64, f64); CLASSES] {
        self.classes
    }

    /// How often every cell of a context came.
    pub fn counts(&self, context: u64) -> &[f64] {
        self.contexts.get(&context).map(Vec::as_slice).unwrap_or_default()
    }
}

/// The logarithm of what a bet wins, if it is made: `wins` are proportional to what is got for
/// every cell.
fn bet(odds: &Odds, wins: &mut [f64], came: usize, tolerance: f64) -> f64 {
    let mean: f64 = odds.cells.iter().zip(&*wins).map(|(p, win)| p * win).sum();
    let (mut most, mut least, mut spread) = (f64::NEG_INFINITY, f64::INFINITY, 0.0);
    for (p, win) in odds.cells.iter().zip(&mut *wins) {
        *win /= mean;
        most = most.max(*win);
        least = least.min(*win);
        spread += p * (*win - 1.0) * (*win - 1.0);
    }
    let cost = tolerance * (most - least);
    // Who is right about the wins gains half their variance, to second order.
    if spread / 2.0 > cost { wins[came].ln() - cost.ln_1p() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

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
                    let mut bettor = Bettor::new(tolerance);
                    // One who has seen much bets high.
                    for (cell, times) in [(0, 30), (1, 90), (3, 40)] {
                        (0..times).for_each(|_| bettor.see(0, &odds, cell));
                    }
                    bettor.wealth = Wealth::new(STRATEGIES);
                    let (mut left, mut probability) = (path, 1.0);
                    for token in 0..length {
                        let cell = left % cells;
                        left /= cells;
                        probability *= truth[cell];
                        bettor.see(u64::from(token % 2), &odds, cell);
                    }
                    mean += probability * bettor.wealth().now().exp();
                }
                assert!(mean < 1.0 + 1e-9, "{mean} at {moved:?}");
                assert!(tolerance > 0.0 || mean > 1.0 - 1e-9, "{mean}");
            }
        }
    }

    #[test]
    fn faults_are_found_and_lossless_servers_are_not_accused() {
        let odds = Odds::new([0.6, 0.25, 0.1], 0.0);
        let wrong = Odds::new([0.63, 0.23, 0.09], 0.0);
        let (mut accused, mut found) = (0, 0);
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            for (cells, count) in [(&odds.cells, &mut accused), (&wrong.cells, &mut found)] {
                let mut bettor = Bettor::new(0.002);
                (0..8000).for_each(|_| bettor.see(7, &odds, draw(cells, &mut rng)));
                *count += usize::from(p_value(bettor.wealth().most()) < 0.01);
            }
        }
        assert!(accused <= 3, "{accused} of 200");
        assert!(found >= 190, "{found} of 200");
    }

    /// What can never come is a fault soon, but not at once.
    #[test]
    fn a_token_out_of_the_support_is_found() {
        let odds = Odds::new([0.7, 0.3], 0.0);
        let mut bettor = Bettor::new(0.002);
        let mut needed = 0;
        while p_value(bettor.wealth().most()) > 1e-4 {
            bettor.see(0, &odds, odds.rest());
            needed += 1;
        }
        assert!((2..=12).contains(&needed), "{needed}");
    }
}
