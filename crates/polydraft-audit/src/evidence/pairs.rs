//! Evidence from pairs of answers: do two servers answer alike, and are two answers of one server
//! independent?
//!
//! Problem: without log-probabilities a server is compared with another that is known to be
//! lossless; and requests that share random numbers give equal answers too often.
//! Source: betting as in the parent module. (1) Pairs: of two answers, one from each server, both
//! orders are equally likely if the servers are alike, whatever the distribution; the bet is on the
//! order. (2) Matches: the probability that a second answer equals the first is known.
//! Complexity: linear in the pairs of counts that answers have. Deviations: as in the parent
//! module.

use std::collections::HashMap;

use super::{PRIOR_WEIGHTS, Wealth};

/// Lengths of compared prefixes of answers, in characters; each is a strategy of its own.
const LENGTHS: [usize; 4] = [2, 5, 12, usize::MAX];
/// Compared words of an answer, each alone and with the word before it: errors of speculation
/// appear at any position after the first token.
const WORDS: usize = 6;
const FEATURES: usize = LENGTHS.len() + 2 * WORDS;

/// Maximum likelihood ratio of a bet: the cost of the tolerance grows with it.
const BOLDNESS: f64 = 1.5;

/// Returns the compared features of an answer.
fn features(text: &str) -> Vec<String> {
    let cut = |length: &usize| text.chars().take(*length).collect::<String>();
    let words: Vec<&str> = text.split_whitespace().collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let single = (0..WORDS).map(|at| word(at).to_owned());
    let double = (0..WORDS).map(|at| format!("{} {}", word(at), word(at + 1)));
    LENGTHS.iter().map(cut).chain(single).chain(double).collect()
}

/// Occurrences of a feature's value in answers of the tested server and of the reference.
type Counts = (u32, u32);

/// Returns the assumed likelihood ratio of a value: tested server to reference.
fn ratio((tested, other): Counts, prior_weight: f64) -> f64 {
    let ratio = (f64::from(tested) + prior_weight) / (f64::from(other) + prior_weight);
    ratio.clamp(1.0 / BOLDNESS, BOLDNESS)
}

/// Values of a feature.
#[derive(Debug, Clone, Default)]
struct Forms {
    counts: HashMap<String, Counts>,
    /// Number of values per pair of counts: there are few pairs of counts, but may be thousands of
    /// values.
    kinds: HashMap<Counts, usize>,
}

impl Forms {
    fn counts_of(&self, form: &str) -> Counts {
        self.counts.get(form).copied().unwrap_or_default()
    }

    /// Adds an occurrence for either server.
    fn add(&mut self, form: String, (tested, other): Counts) {
        let counts = self.counts.entry(form).or_default();
        if let Some(forms) = self.kinds.get_mut(counts) {
            *forms -= 1;
            if *forms == 0 {
                self.kinds.remove(counts);
            }
        }
        *counts = (counts.0 + tested, counts.1 + other);
        *self.kinds.entry(*counts).or_default() += 1;
    }

    /// Returns the largest and smallest ratio of any value, observed or not.
    fn extremes(&self, prior_weight: f64) -> (f64, f64) {
        let ratios = self.kinds.keys().map(|counts| ratio(*counts, prior_weight));
        ratios.fold((1.0f64, 1.0f64), |(peak, least), r| (peak.max(r), least.min(r)))
    }
}

/// Bets on which of two answers is the tested server's.
#[derive(Debug, Clone)]
pub struct Pairs {
    tolerance: f64,
    /// Values by feature.
    seen: Vec<Forms>,
    wealth: Wealth,
    /// Log-wealth of every strategy at zero cost.
    would_have: Vec<f64>,
    pairs: usize,
}

impl Pairs {
    /// Creates a bettor without observations.
    pub fn new(tolerance: f64) -> Self {
        Self {
            tolerance,
            seen: vec![Forms::default(); FEATURES],
            wealth: Wealth::new(FEATURES * PRIOR_WEIGHTS.len()),
            would_have: vec![0.0; FEATURES * PRIOR_WEIGHTS.len()],
            pairs: 0,
        }
    }

    /// Observes an answer of each server to the prompt of this number.
    pub fn observe(&mut self, prompt: usize, server: &str, reference: &str) {
        let forms = features(server).into_iter().zip(features(reference)).enumerate();
        for (part, (tested, other)) in forms {
            let (tested, other) = (format!("{prompt}:{tested}"), format!("{prompt}:{other}"));
            let (seen, all) = (&mut self.seen[part], self.pairs as f64);
            for (number, prior_weight) in PRIOR_WEIGHTS.into_iter().enumerate() {
                let (first, second) = (
                    ratio(seen.counts_of(&tested), prior_weight),
                    ratio(seen.counts_of(&other), prior_weight),
                );
                let (peak, least) = seen.extremes(prior_weight);
                // Payoffs lie between 2 - top and top.
                let top = 2.0 * peak / (peak + least);
                let cost = (self.tolerance * (2.0 * top - 2.0)).ln_1p();
                let part = part * PRIOR_WEIGHTS.len() + number;
                let won = (2.0 * first / (first + second)).ln();
                // A strategy that would have won less than the cost does not bet.
                if self.would_have[part] > cost * all {
                    self.wealth.multiply(part, won - cost);
                }
                self.would_have[part] += won;
            }
            seen.add(tested, (1, 0));
            seen.add(other, (0, 1));
        }
        self.wealth.settle();
        self.pairs += 1;
    }

    /// Returns the wealth.
    pub fn wealth(&self) -> &Wealth {
        &self.wealth
    }

    /// Returns the number of observed pairs.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Returns the value that differs most, with its occurrences for each server.
    pub fn widest(&self) -> Option<(String, u32, u32)> {
        let score = |(tested, other): Counts| {
            let (tested, other) = (f64::from(tested), f64::from(other));
            (tested - other).powi(2) / (tested + other).max(1.0)
        };
        self.seen
            .iter()
            .flat_map(|forms| &forms.counts)
            .max_by(|a, b| score(*a.1).total_cmp(&score(*b.1)))
            .map(|(text, (tested, other))| (text.clone(), *tested, *other))
    }
}

/// Shares of answers with shared random numbers that the strategies assume.
const SHARED: [f64; 3] = [0.02, 0.2, 0.8];

/// Bets that answers are equal more often than at random.
#[derive(Debug, Clone)]
pub struct Matches {
    wealth: Wealth,
    seen: usize,
    equal: usize,
}

impl Default for Matches {
    fn default() -> Self {
        Self { wealth: Wealth::new(SHARED.len()), seen: 0, equal: 0 }
    }
}

impl Matches {
    /// Observes whether two answers are equal, which at random has at most this probability.
    pub fn observe(&mut self, equal: bool, probability: f64) {
        let p = probability.clamp(1e-12, 1.0 - 1e-12);
        for (part, shared) in SHARED.into_iter().enumerate() {
            let q = p + (1.0 - p) * shared;
            let won = if equal { q / p } else { (1.0 - q) / (1.0 - p) };
            self.wealth.multiply(part, won.ln());
        }
        self.wealth.settle();
        self.seen += 1;
        self.equal += usize::from(equal);
    }

    /// Returns the wealth.
    pub fn wealth(&self) -> &Wealth {
        &self.wealth
    }

    /// Returns the number of pairs, and the number of equal ones.
    pub fn counts(&self) -> (usize, usize) {
        (self.seen, self.equal)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::p_value;
    use super::*;

    /// Averages the wealth over all orders of the pairs: exactly one.
    #[test]
    fn mean_wealth_over_orders_is_one() {
        let pairs = [("a", "b"), ("b", "a"), ("a", "a"), ("a", "c"), ("a", "b"), ("a", "b")];
        let mut mean = 0.0;
        for orders in 0..1 << pairs.len() {
            let mut bets = Pairs::new(0.0);
            for (at, (first, second)) in pairs.into_iter().enumerate() {
                match orders >> at & 1 {
                    0 => bets.observe(0, first, second),
                    _ => bets.observe(0, second, first),
                }
            }
            mean += bets.wealth().current().exp() / f64::from(1 << pairs.len());
        }
        assert!((mean - 1.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn finds_differing_servers_without_false_alarms() {
        let (mut accused, mut found) = (0, 0);
        for seed in 0..100 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut answer = |p: f64| if rng.random::<f64>() < p { "yes" } else { "no" };
            let (mut alike, mut unlike) = (Pairs::new(0.002), Pairs::new(0.002));
            for _ in 0..1500 {
                alike.observe(0, answer(0.5), answer(0.5));
                unlike.observe(0, answer(0.6), answer(0.5));
            }
            accused += usize::from(p_value(alike.wealth().peak()) < 0.01);
            found += usize::from(p_value(unlike.wealth().peak()) < 0.01);
        }
        assert!(accused <= 2, "{accused} of 100");
        assert!(found >= 95, "{found} of 100");
    }

    #[test]
    fn random_matches_are_no_evidence() {
        for (probability, at_most) in [(0.3, 0.3), (0.29, 0.3)] {
            let mut mean = 0.0;
            for path in 0..1u32 << 10 {
                let mut matches = Matches::default();
                let mut weight = 1.0;
                for at in 0..10 {
                    let equal = path >> at & 1 == 1;
                    weight *= if equal { probability } else { 1.0 - probability };
                    matches.observe(equal, at_most);
                }
                mean += weight * matches.wealth().current().exp();
            }
            assert!(mean < 1.0 + 1e-9, "{mean}");
        }
        let mut matches = Matches::default();
        (0..4).for_each(|_| matches.observe(true, 0.01));
        assert!(p_value(matches.wealth().peak()) < 1e-4);
    }
}
