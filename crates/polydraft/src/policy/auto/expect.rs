//! What acceptance to expect, fitted to a text as it goes.
//!
//! Problem: the probability that all draws at a node are rejected, before anything is drawn, from how unsure the draft is
//! there: u = 1 − Σ q², the probability that two draws differ; at temperature 0, where they never do, 1 − q with what its token's
//! q is at temperature 1 ([`Distribution::sureness`]).
//! Source: ours; the leaf rule's estimate κ·u ([`stop_below`](super::super::stop_below)), with κ fitted.
//! Method: rejection = κ·h(u)·ρ(n, u) with h(u) a little above 0 at u = 0, for a draft may be sure and wrong, and ρ what more
//! draws are worth: nothing where they are equal, as a sure draft's are, and all at temperature 0. κ is the ratio of what was
//! rejected to the sum of h·ρ over nodes that were verified, the past forgotten by and by, behind a guess ([`Guess`]) that counts
//! as a few nodes.
//! Deviations: none.

use super::super::Guess;
use crate::Distribution;

/// Rejections so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Whether the draft is at temperature 0.
    cold: bool,
    rejected: f64,
    units: f64,
    unsure: f64,
    nodes: f64,
    guess: Guess,
}

/// h(0).
const FLOOR: f64 = 0.05;
/// The part of the rejections of one draw that is left with 1, 2, 3, 4 of them, where no two are equal: measured on the demo
/// pair and on SmolLM2.
const LEFT: [f64; 4] = [1.0, 0.5, 0.38, 0.3];
/// So many nodes the guess counts as.
const GUESS: f64 = 3.0;
/// How fast the past is forgotten, a node.
const DECAY: f64 = 0.99;

impl Expected {
    /// Behind this guess, if it is no worse than the usual one: who expects little asks little and does not learn that it was wrong.
    pub fn new(guess: Guess) -> Self {
        let usual = Self::default();
        let guessed = Self { guess, ..Self::default() };
        if guessed.scale() < usual.scale() { guessed } else { usual }
    }

    /// κ.
    fn scale(&self) -> f64 {
        // Where the draft is surer than guessed, as many of its tokens are rejected all the same, until it is known better.
        let mean = if self.nodes > 0.0 { self.units / self.nodes } else { f64::INFINITY };
        let guessed = self.units(self.guess.unsure, 1).min(mean);
        (self.rejected + GUESS * self.guess.rejected).max(0.0) / (self.units + GUESS * guessed)
    }

    /// The probability that all of so many draws are rejected, where the draft is so unsure.
    pub fn rejection(&self, unsure: f64, draws: usize) -> f64 {
        (self.scale() * self.units(unsure, draws)).min(1.0)
    }

    /// The probability that two draws differ, where the draft is so unsure.
    pub fn differ(&self, unsure: f64) -> f64 {
        if self.cold { 0.0 } else { unsure }
    }

    /// h·ρ.
    fn units(&self, unsure: f64, draws: usize) -> f64 {
        let left = LEFT[draws.clamp(1, LEFT.len()) - 1];
        (FLOOR + (1.0 - FLOOR) * unsure) * left.powf(self.differ(unsure))
    }

    /// Takes note of how a draft's law was made: one token that is not certain makes temperature 0.
    pub fn see(&mut self, law: &Distribution) {
        match law.support_size() {
            1 => self.cold |= law.sureness() < 1.0,
            _ => self.cold = false,
        }
    }

    /// How unsure the draft is, on average.
    pub fn unsure(&self) -> f64 {
        (self.unsure + GUESS * self.guess.unsure) / (self.nodes + GUESS)
    }

    /// The probability that one draw is rejected at a node like those before.
    pub fn average(&self) -> f64 {
        self.rejection(self.unsure(), 1)
    }

    /// The same, if the rejections so far were bad luck by so many standard deviations.
    pub fn lucky(&self, deviations: f64) -> Self {
        let nodes = self.nodes + GUESS;
        let rejected = (self.rejected + GUESS * self.guess.rejected) / nodes;
        let luck = deviations * (rejected * (1.0 - rejected) / nodes).max(0.0).sqrt() * nodes;
        Self { rejected: self.rejected - luck, ..self.clone() }
    }

    /// Takes note of a node that was verified.
    pub fn observe(&mut self, unsure: f64, draws: usize, rejected: bool) {
        let units = self.units(unsure, draws);
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

    #[test]
    fn drafts_that_are_sure_and_wrong_are_found_out() {
        let mut expected = Expected::default();
        (0..30).for_each(|_| expected.observe(0.0, 1, true));
        assert!(expected.rejection(0.0, 1) > 0.9);
    }
}
