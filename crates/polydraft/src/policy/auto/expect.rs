//! What acceptance to expect, fitted to a text as it goes.
//!
//! Problem: the probability that all draws at a node are rejected, before anything is drawn, from how unsure the draft is
//! there: u = 1 − Σ q², the probability that two draws differ; or, where the draft says how likely its draws are right, one less
//! that: at temperature 0, where they never differ, 1 − q with what its token's q is at temperature 1; n-grams, always
//! ([`Distribution::sureness`]).
//! Source: ours; the leaf rule's estimate κ·u ([`stop_below`](super::super::stop_below)), with κ fitted.
//! Method: of one draw κ·h(u), with h(u) a little above 0 at u = 0, for a draft may be sure and wrong; where the draft says what is
//! likely right it grows as u does, elsewhere as u^0.7, for where the draft is unsure the target often is too, and they agree by chance. More draws are worth
//! the more the better one is: n leave r^(1 + e(n)·d) where one leaves r and two draws differ with probability d (never at
//! temperature 0). κ is the ratio of what was rejected to what κ = 1 would give over nodes that were verified, the past forgotten by
//! and by, behind a guess ([`Guess`]) that counts as a few nodes, and as more the better it is.
//! Both shapes were measured by counting rejections at 4,000 nodes of the demo pair and 700 to 1,000 of SmolLM2 with its head.
//! Deviations: none.

use std::iter;

use super::super::Guess;
use crate::Distribution;

/// Rejections so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Whether the draft is at temperature 0.
    cold: bool,
    /// Whether it says how likely what it draws is right.
    says: bool,
    rejected: f64,
    units: f64,
    unsure: f64,
    nodes: f64,
    guess: Guess,
}

/// h(0).
const FLOOR: f64 = 0.05;
/// h's power where the draft does not say how likely it is right.
const POWER: f64 = 0.7;
/// e: of r rejections of one draw, r^e of them are left with 1, 2, 3, 4, where no two are equal.
const LEFT: [f64; 4] = [0.0, 0.5, 0.75, 0.95];
/// The fewest rejections that are reckoned with.
const LEAST: f64 = 0.01;
/// So many nodes the guess counts as, at least and at most.
const GUESS: [f64; 2] = [3.0, 12.0];
/// How fast the past is forgotten, a node.
const DECAY: f64 = 0.99;

impl Expected {
    /// Behind this guess, if it is no worse than the usual one: who expects little asks little and does not learn that it was wrong.
    pub fn new(guess: Guess) -> Self {
        let usual = Self::default();
        let guessed = Self { guess, ..Self::default() };
        if guessed.scale() < usual.scale() { guessed } else { usual }
    }

    /// Nodes that the guess counts as: texts differ in rejections by about as many as there are (a Beta law whose deviation is its mean). A
    /// copy of the target that was rejected twice at the beginning is a good draft all the same.
    fn weight(&self) -> f64 {
        (1.0 / self.guess.rejected - 2.0).clamp(GUESS[0], GUESS[1])
    }

    /// By how many nodes the guess is trusted more than one that says nothing.
    pub fn trust(&self) -> f64 {
        self.weight() - GUESS[0]
    }

    /// How unsure the draft is at each of the nodes that the guess counts as. Where it is surer than guessed, as many of its tokens
    /// are rejected all the same, until it is known better.
    fn guessed(&self) -> f64 {
        let mean = if self.nodes > 0.0 { self.unsure / self.nodes } else { f64::INFINITY };
        self.guess.unsure.min(mean)
    }

    /// How unsure the draft is where it is not asked yet, each as likely: at the last roots, and at the nodes that the guess counts as while
    /// there is room for them.
    pub fn ahead<'a>(&self, roots: &'a [f64], room: usize) -> impl Iterator<Item = f64> + use<'a> {
        let guessed = iter::repeat_n(self.guessed(), self.weight().round() as usize);
        roots.iter().copied().chain(guessed).take(room)
    }

    /// κ.
    fn scale(&self) -> f64 {
        let (guessed, weight) = (self.shape(self.guessed()), self.weight());
        (self.rejected + weight * self.guess.rejected).max(0.0) / (self.units + weight * guessed)
    }

    /// The probability that all of so many draws are rejected, where the draft is so unsure.
    pub fn rejection(&self, unsure: f64, draws: usize) -> f64 {
        let one = (self.scale() * self.shape(unsure)).min(1.0);
        one * self.left(one, unsure, draws)
    }

    /// h.
    fn shape(&self, unsure: f64) -> f64 {
        FLOOR + (1.0 - FLOOR) * if self.says { unsure } else { unsure.powf(POWER) }
    }

    /// The part of the rejections of one draw that is left with more. Never none: what is divided by it stays a number.
    fn left(&self, one: f64, unsure: f64, draws: usize) -> f64 {
        match LEFT[draws.clamp(1, LEFT.len()) - 1] * self.differ(unsure) {
            0.0 => 1.0,
            power => one.max(LEAST).powf(power),
        }
    }

    /// The probability that two draws differ, where the draft is so unsure.
    pub fn differ(&self, unsure: f64) -> f64 {
        if self.cold { 0.0 } else { unsure }
    }

    /// Takes note of how a draft's law was made: one token that is not certain makes temperature 0.
    pub fn see(&mut self, law: &Distribution) {
        self.says = law.said_sureness().is_some();
        match law.support_size() {
            1 => self.cold |= law.sureness() < 1.0,
            _ => self.cold = false,
        }
    }

    /// How unsure the draft is, on average.
    fn unsure(&self) -> f64 {
        (self.unsure + self.weight() * self.guessed()) / (self.nodes + self.weight())
    }

    /// The probability that one draw is rejected at a node like those before.
    pub fn average(&self) -> f64 {
        self.rejection(self.unsure(), 1)
    }

    /// The same, if the rejections so far were bad luck by so many standard deviations.
    pub fn lucky(&self, deviations: f64) -> Self {
        let nodes = self.nodes + self.weight();
        let rejected = (self.rejected + self.weight() * self.guess.rejected) / nodes;
        let luck = deviations * (rejected * (1.0 - rejected) / nodes).max(0.0).sqrt() * nodes;
        Self { rejected: self.rejected - luck, ..self.clone() }
    }

    /// Takes note of a node that was verified.
    pub fn observe(&mut self, unsure: f64, draws: usize, rejected: bool) {
        let units = self.shape(unsure) * self.left(self.rejection(unsure, 1), unsure, draws);
        for (sum, new) in [
            (&mut self.rejected, f64::from(u8::from(rejected))),
            (&mut self.units, units),
            (&mut self.unsure, unsure),
            (&mut self.nodes, 1.0),
        ] {
            *sum = DECAY * *sum + new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_how_often_drafts_are_rejected() {
        for truth in [0.02, 0.3, 0.95] {
            let mut expected = Expected::default();
            let before = expected.rejection(0.6, 1);
            for n in 0..400 {
                expected.observe(0.6, 1, (f64::from(n) * truth).fract() + truth >= 1.0);
            }
            let after = expected.rejection(0.6, 1);
            assert!((after - truth).abs() < 0.04, "{truth}: {before} became {after}");
            // More draws help, but not where they are equal.
            assert!(
                expected.rejection(0.6, 4) < after
                    && expected.rejection(0.0, 4) == expected.rejection(0.0, 1)
            );
        }
    }

    /// However good the guess, and whatever is seen, estimates are probabilities, and more draws are no worse.
    #[test]
    fn estimates_are_probabilities() {
        for rejected in [0.0, 0.3, 1.0] {
            let mut expected = Expected::new(Guess { rejected, unsure: 0.0 });
            for n in 0..300 {
                expected.observe([0.0, 0.5, 1.0][n % 3], 1 + n % 4, n > 200);
                for unsure in [0.0, 0.4, 1.0] {
                    let estimates = [1, 2, 3, 4].map(|draws| expected.rejection(unsure, draws));
                    assert!(estimates.iter().all(|p| (0.0..=1.0).contains(p)), "{estimates:?}");
                    assert!(estimates.is_sorted_by(|one, more| one >= more), "{estimates:?}");
                }
            }
        }
    }

    #[test]
    fn drafts_that_are_sure_and_wrong_are_found_out() {
        let mut expected = Expected::default();
        (0..30).for_each(|_| expected.observe(0.0, 1, true));
        assert!(expected.rejection(0.0, 1) > 0.9);
    }
}
