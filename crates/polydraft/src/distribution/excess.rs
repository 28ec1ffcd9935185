//! Drawing from what is left of a distribution: (target − covered)+ normalised.
//!
//! Problem: every rule that is lossless ends, when it rejects, with a draw from the part of the target that its
//! acceptances leave uncovered.
//! Source: Leviathan et al. 2023, Chen et al. 2023 (the residual); drawing it by rejection from the target: ours.
//! Complexity: a rule that rejects with probability ρ leaves an excess of mass ρ, and a draw from the target falls
//! into it with probability ρ, so the expected number of tries per *emitted* token is at most 1. After
//! [`TRIES`] tries one pass over the target finishes exactly; the law is that of the excess either way.

use super::Distribution;
use crate::Token;
use crate::chance::{Chance, Outcomes};

/// Draws from the target before the excess is computed in full.
const TRIES: usize = 48;

struct Excess<'a, F> {
    target: &'a Distribution,
    scale: f64,
    covered: F,
}

impl<F: Fn(Token) -> f64> Excess<'_, F> {
    fn of(&self, token: Token, probability: f64) -> f64 {
        (self.scale * probability - (self.covered)(token)).max(0.0)
    }
}

impl<F: Fn(Token) -> f64> Outcomes for Excess<'_, F> {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        for _ in 0..TRIES {
            let token = self.target.draw(uniform);
            let probability = self.target.probability(token as Token);
            if uniform() * self.scale * probability < self.of(token as Token, probability) {
                return token;
            }
        }
        let total: f64 = self.target.support().map(|(token, p)| self.of(token, p)).sum();
        let mut left = uniform() * total;
        let mut last = None;
        for (token, probability) in self.target.support() {
            let excess = self.of(token, probability);
            if excess > 0.0 {
                last = Some(token as usize);
                if left < excess {
                    break;
                }
                left -= excess;
            }
        }
        // Nothing is left only where rounding asks for a draw that exact arithmetic never makes.
        last.unwrap_or_else(|| self.target.draw(uniform))
    }

    fn weights(&self) -> Vec<f64> {
        let mut weights = vec![0.0; self.target.vocabulary];
        for (token, p) in self.target.support() {
            weights[token as usize] = self.of(token, p);
        }
        if weights.iter().all(|w| *w == 0.0) { self.target.to_vec() } else { weights }
    }

    fn are_tokens(&self) -> bool {
        true
    }
}

impl Distribution {
    /// Draws from (`scale`·self − `covered`)+ normalised; from `self` if that is 0 everywhere.
    pub fn sample_excess<C: Chance + ?Sized>(
        &self,
        scale: f64,
        covered: impl Fn(Token) -> f64,
        chance: &mut C,
    ) -> Token {
        chance.choose(&Excess { target: self, scale, covered }) as Token
    }

    /// Draws from (`scale`·self − `other_scale`·other)+ normalised; from `self` if that is 0 everywhere.
    pub fn sample_residual<C: Chance + ?Sized>(
        &self,
        scale: f64,
        other: &Self,
        other_scale: f64,
        chance: &mut C,
    ) -> Token {
        self.sample_excess(scale, |token| other_scale * other.probability(token), chance)
    }

    /// Σ (`scale`·self − `other_scale`·other)+.
    pub fn residual_mass(&self, scale: f64, other: &Self, other_scale: f64) -> f64 {
        let Some((own, other)) = self.dense().zip(other.dense()) else {
            let mut sum = 0.0;
            self.for_each_pair(other, |_, a, b| sum += (scale * a - other_scale * b).max(0.0));
            return sum;
        };
        // Lanes let the compiler use vector instructions.
        let ((own, own_rest), (other, other_rest)) = (own.as_chunks::<8>(), other.as_chunks::<8>());
        let mut lanes = [0.0; 8];
        for (own, other) in own.iter().zip(other) {
            for i in 0..8 {
                let left = scale * own[i] - other_scale * other[i];
                lanes[i] += if left > 0.0 { left } else { 0.0 };
            }
        }
        let rest = own_rest.iter().zip(other_rest).map(|(a, b)| (scale * a - other_scale * b).max(0.0));
        rest.sum::<f64>() + lanes.iter().sum::<f64>()
    }

    /// Σ (`scale`·self − `covered`)+ over the vocabulary.
    pub fn excess_mass(&self, scale: f64, covered: impl Fn(Token) -> f64) -> f64 {
        self.support().map(|(token, p)| (scale * p - covered(token)).max(0.0)).sum()
    }

    /// (`scale`·self − `covered`)+ normalised, shape `[vocabulary]`: the law of [`Distribution::sample_excess`].
    pub fn excess_law(&self, scale: f64, covered: impl Fn(Token) -> f64) -> Vec<f64> {
        let mut law = Excess { target: self, scale, covered }.weights();
        let total: f64 = law.iter().sum();
        law.iter_mut().for_each(|p| *p /= total);
        law
    }
}
