//! Draws from a residual distribution: (target − covered)+ normalised.
//!
//! Problem: every lossless rule that rejects ends with a draw from the part of the target that its
//! acceptances do not cover.
//! Source: Leviathan et al. 2023, Chen et al. 2023 (the residual); rejection sampling from the
//! target: ours.
//! Complexity: a rule that rejects with probability ρ leaves an excess of mass ρ, and a draw from
//! the target falls into it with probability ρ, so the expected number of tries per *emitted* token
//! is at most 1. After [`TRIES`] tries one pass over the target finishes exactly; either way the
//! distribution is that of the excess.

use pulp::{Arch, NullaryFnOnce};

use super::{BLOCK, Distribution, sum_in_lanes};
use crate::Token;
use crate::random::{Outcomes, RandomSource};

/// Rejection-sampling tries before the excess is computed in full.
const TRIES: usize = 48;

struct Excess<'a, F> {
    target: &'a Distribution,
    scale: f64,
    covered: F,
}

impl<F: Fn(Token) -> f64> Excess<'_, F> {
    fn excess(&self, token: Token, probability: f64) -> f64 {
        (self.scale * probability - (self.covered)(token)).max(0.0)
    }
}

impl<F: Fn(Token) -> f64> Outcomes for Excess<'_, F> {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        for _ in 0..TRIES {
            let token = self.target.draw(uniform);
            let probability = self.target.probability(token as Token);
            if uniform() * self.scale * probability < self.excess(token as Token, probability) {
                return token;
            }
        }
        let total: f64 = self.target.support().map(|(token, p)| self.excess(token, p)).sum();
        let mut left = uniform() * total;
        let mut last = None;
        for (token, probability) in self.target.support() {
            let excess = self.excess(token, probability);
            if excess > 0.0 {
                last = Some(token as usize);
                if left < excess {
                    break;
                }
                left -= excess;
            }
        }
        // The excess is empty only where rounding leads to a draw that exact arithmetic never
        // makes.
        last.unwrap_or_else(|| self.target.draw(uniform))
    }

    fn weights(&self) -> Vec<f64> {
        let mut weights = vec![0.0; self.target.vocabulary];
        for (token, p) in self.target.support() {
            weights[token as usize] = self.excess(token, p);
        }
        if weights.iter().all(|w| *w == 0.0) { self.target.to_vec() } else { weights }
    }

    fn are_tokens(&self) -> bool {
        true
    }
}

/// Kernel: Σ (scale·a − other_scale·b)+.
struct ResidualMass<'a> {
    a: &'a [f64],
    scale: f64,
    b: &'a [f64],
    other_scale: f64,
}

impl NullaryFnOnce for ResidualMass<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let Self { a, scale, b, other_scale } = self;
        // Lanes let the compiler use vector instructions.
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
        let mut lanes = [0.0; 8];
        for (a, b) in a.iter().zip(b) {
            for i in 0..8 {
                let excess = scale * a[i] - other_scale * b[i];
                lanes[i] += if excess > 0.0 { excess } else { 0.0 };
            }
        }
        let rest = a_rest.iter().zip(b_rest).map(|(a, b)| (scale * a - other_scale * b).max(0.0));
        rest.sum::<f64>() + lanes.iter().sum::<f64>()
    }
}

/// Kernel: the mass of all tokens but the given ones, which ascend.
struct MassOutside<'a> {
    mass: &'a [f64],
    tokens: &'a [Token],
}

impl NullaryFnOnce for MassOutside<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        let (mut sum, mut start, mut tokens) = (0.0, 0, self.tokens);
        let mut buffer = [0.0; BLOCK];
        for block in self.mass.chunks(BLOCK) {
            // Zeroes the excluded tokens and adds up the rest. Subtracting would lose a small
            // remainder to rounding.
            let remaining = &mut buffer[..block.len()];
            remaining.copy_from_slice(block);
            let (here, rest) =
                tokens.split_at(tokens.partition_point(|token| (*token as usize) < start + BLOCK));
            here.iter().for_each(|token| remaining[*token as usize - start] = 0.0);
            sum += sum_in_lanes(remaining, |p| p);
            (tokens, start) = (rest, start + BLOCK);
        }
        sum
    }
}

impl Distribution {
    /// Draws from (`scale`·self − `covered`)+ normalised; from `self` if that is 0 everywhere.
    pub fn sample_excess<C: RandomSource + ?Sized>(
        &self,
        scale: f64,
        covered: impl Fn(Token) -> f64,
        rng: &mut C,
    ) -> Token {
        rng.choose(&Excess { target: self, scale, covered }) as Token
    }

    /// Draws from (`scale`·self − `other_scale`·other)+ normalised; from `self` if that is 0
    /// everywhere.
    pub fn sample_residual<C: RandomSource + ?Sized>(
        &self,
        scale: f64,
        other: &Self,
        other_scale: f64,
        rng: &mut C,
    ) -> Token {
        self.sample_excess(scale, |token| other_scale * other.probability(token), rng)
    }

    /// Σ (`scale`·self − `other_scale`·other)+.
    pub fn residual_mass(&self, scale: f64, other: &Self, other_scale: f64) -> f64 {
        if let Some((a, b)) = self.dense().zip(other.dense()) {
            return Arch::new().dispatch(ResidualMass { a, scale, b, other_scale });
        }
        if self.dense().is_some() {
            let stored = other.stored_tokens().iter().zip(other.stored());
            let excess = stored
                .map(|(&token, q)| (scale * self.probability(token) - other_scale * q).max(0.0));
            return excess.sum::<f64>() + scale * self.mass_outside(other);
        }
        let mut sum = 0.0;
        self.for_each_pair(other, |_, a, b| sum += (scale * a - other_scale * b).max(0.0));
        sum
    }

    /// The mass of the tokens that are not stored in `other`.
    pub(crate) fn mass_outside(&self, other: &Self) -> f64 {
        match (self.dense(), other.dense()) {
            (_, Some(_)) => 0.0,
            (Some(mass), None) => {
                Arch::new().dispatch(MassOutside { mass, tokens: other.stored_tokens() })
            }
            (None, None) => {
                let mut sum = 0.0;
                self.for_each_pair(other, |_, a, b| sum += if b > 0.0 { 0.0 } else { a });
                sum
            }
        }
    }

    /// Σ (`scale`·self − `covered`)+ over the vocabulary.
    pub fn excess_mass(&self, scale: f64, covered: impl Fn(Token) -> f64) -> f64 {
        self.support().map(|(token, p)| (scale * p - covered(token)).max(0.0)).sum()
    }

    /// (`scale`·self − `covered`)+ normalised, shape `[vocabulary]`: the distribution of
    /// [`Distribution::sample_excess`].
    pub fn excess_distribution(&self, scale: f64, covered: impl Fn(Token) -> f64) -> Vec<f64> {
        let mut probs = Excess { target: self, scale, covered }.weights();
        let total: f64 = probs.iter().sum();
        probs.iter_mut().for_each(|p| *p /= total);
        probs
    }
}
