//! What acceptance to expect, fitted to a text as it goes.
//!
//! Problem: the probability that a drafted token is rejected, before it is drawn, from how
//! uncertain the draft is there: u = 1 − its confidence ([`Distribution::confidence`]).
//! Source: ours; the leaf rule's estimate κ·u ([`stop_below`](super::super::stop_below)), fitted.
//! Method: a line a + b·s, s = u^0.7, by least squares over the nodes that were verified, the past
//! forgotten by and by. Before them stands a guess that counts as a few nodes: half of them sure
//! and right, half uncertain and rejected twice as often as is guessed on average. A draft whose
//! confidence says nothing gets a flat line, so its uncertain nodes are tried too.
//! Deviations: none.
//!
//! [`Distribution::confidence`]: crate::Distribution::confidence

/// Rejections so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Acceptance {
    /// Over the nodes of the guess, and over those that were verified: 1, s, s², r and s·r, where r
    /// is 1 where the token was rejected.
    sums: [[f64; 5]; 2],
    /// a and b.
    line: (f64, f64),
    /// The probability that a token is rejected at a node like those before.
    pub average: f64,
}

/// The power of u: where the draft is uncertain the target often is too, and they agree by chance.
/// With u itself gains are 0.003 less, on code at T = 0 0.01.
const POWER: f64 = 0.7;
/// Nodes that the guess counts as: with three the quantised self-draft in f32 lost up to 0.04 in a
/// cell.
const GUESS: f64 = 5.0;
/// How fast the past is forgotten, a node: outputs change. In 64 tokens nothing hangs on it.
const DECAY: f64 = 0.99;
/// The least rejection that is assumed: what is divided by it stays a number.
const LEAST: f64 = 0.01;

impl Acceptance {
    /// After the guess that so many tokens are rejected, at most every other one.
    pub fn new(rejected: f64) -> Self {
        let guess = add(add([0.0; 5], 0.0, 0.0, 0.5 * GUESS), 1.0, 2.0 * rejected, 0.5 * GUESS);
        let mut new = Self { sums: [guess, [0.0; 5]], ..Self::default() };
        new.fit();
        new
    }

    /// The probability that a token is rejected where the draft is so uncertain.
    pub fn rejection(&self, uncertain: f64) -> f64 {
        (self.line.0 + self.line.1 * uncertain.powf(POWER)).clamp(LEAST, 1.0)
    }

    /// Takes note of a node that was verified.
    pub fn observe(&mut self, uncertain: f64, rejected: bool) {
        let past = self.sums[1].map(|sum| DECAY * sum);
        self.sums[1] = add(past, uncertain.powf(POWER), f64::from(u8::from(rejected)), 1.0);
        self.fit();
    }

    fn fit(&mut self) {
        let [guess, seen] = self.sums;
        let [n, s, ss, r, sr] = std::array::from_fn(|sum| guess[sum] + seen[sum]);
        // The guess has two places, so there is a line.
        let slope = ((sr - s * r / n) / (ss - s * s / n)).max(0.0);
        self.line = ((r - slope * s) / n, slope);
        self.average = (r / n).clamp(LEAST, 1.0);
    }
}

fn add(sums: [f64; 5], s: f64, r: f64, nodes: f64) -> [f64; 5] {
    let new = [1.0, s, s * s, r, s * r];
    std::array::from_fn(|sum| sums[sum] + nodes * new[sum])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_how_often_drafts_are_rejected() {
        for truth in [0.02, 0.3, 0.95] {
            let mut acceptance = Acceptance::new(0.5);
            let before = acceptance.rejection(0.6);
            for n in 0..400 {
                acceptance.observe(0.6, (f64::from(n) * truth).fract() + truth >= 1.0);
            }
            let after = acceptance.rejection(0.6);
            assert!((after - truth).abs() < 0.04, "{truth}: {before} became {after}");
        }
    }

    /// However good the guess, and whatever is seen, estimates are probabilities, and a surer draft
    /// is no worse.
    #[test]
    fn estimates_are_probabilities() {
        for rejected in [0.0, 0.3, 0.5] {
            let mut acceptance = Acceptance::new(rejected);
            for n in 0..300 {
                acceptance.observe([0.0, 0.5, 1.0][n % 3], n > 200);
                let estimates = [0.0, 0.4, 1.0].map(|uncertain| acceptance.rejection(uncertain));
                assert!(estimates.iter().all(|p| (LEAST..=1.0).contains(p)), "{estimates:?}");
                assert!(estimates.is_sorted(), "{estimates:?}");
            }
        }
    }

    /// The text shows whether drafts are rejected where they are uncertain, or anywhere: what is
    /// expected of nodes less sure than any so far hangs on that.
    #[test]
    fn it_learns_what_confidence_says() {
        let after = |sure: f64, uncertain: f64| {
            let mut acceptance = Acceptance::new(0.5);
            for n in 0..200 {
                let (at, truth) = [(0.1, sure), (0.6, uncertain)][n % 2];
                acceptance.observe(at, ((n / 2) as f64 * truth).fract() + truth >= 1.0);
            }
            acceptance
        };
        let (nothing, much) = (after(0.75, 0.75), after(0.25, 0.75));
        assert!((nothing.rejection(0.9) - 0.75).abs() < 0.1, "{nothing:?}");
        assert!((nothing.rejection(0.1) - 0.75).abs() < 0.1, "{nothing:?}");
        assert!(much.rejection(0.9) > 0.85 && much.rejection(0.1) < 0.3, "{much:?}");
    }

    #[test]
    fn drafts_that_are_sure_and_wrong_are_found_out() {
        let mut acceptance = Acceptance::new(0.5);
        (0..30).for_each(|_| acceptance.observe(0.0, true));
        assert!(acceptance.rejection(0.0) > 0.9);
    }
}
