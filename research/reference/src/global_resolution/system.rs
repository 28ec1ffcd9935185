//! The outer or the inner system, truncated to a few tokens: a convex problem with one potential
//! per token.
//!
//! Problem: outer: Σ_ω Pr(ω) log Σ_{i∈ω∖H*} e^{a_i} − Σ p'_i a_i over tuples inside H* ∪ T but not
//! inside H*; inner: Σ_ω Pr(ω) log(1 + Σ_{i∈ω} e^{a_i}) − Σ p_i a_i over tuples inside T ⊆ H*.
//! Where the gradient is 0, accepting a tuple's tokens in proportion to e^a accepts every token
//! with exactly its wanted probability (p' in the outer system, p in the inner one).
//! Source: Thomas and Pal 2025 (Global Resolution), theorems 6.4 and 6.5, appendix K.
//! Complexity: Σ C(|T|, j), j ≤ n, terms per evaluation.
//! Deviations: (1) T is the smallest set of tokens with the largest q that omits tuples of
//! probability at most τ; the paper does not specify T; (2) the probability of a term is a sum of
//! positive terms (see `sets`); (3) potentials start at 0.

use super::gave_up::GaveUp;
use super::{Settings, lbfgs};
use crate::program::Deadline;
use crate::sets::for_each_iid_set;
use polydraft::Token;

/// Statistics of the solution.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Solved {
    /// Number of tokens in the truncated problem.
    pub tokens: usize,
    /// Number of iterations of L-BFGS.
    pub iterations: usize,
    /// L1 norm of the gradient.
    pub gradient: f64,
}

/// Kind of the system, and masses of q for choosing the truncated set T.
pub(super) struct Truncation {
    pub outer: bool,
    /// Mass of tokens that tuples may contain freely: q(H*) for the outer system, 0 for the inner
    /// one.
    pub free: f64,
    /// Mass of all tokens that tuples may contain: 1 for the outer system, q(H*) for the inner one.
    pub full: f64,
}

/// A solved system.
pub(super) struct System {
    outer: bool,
    /// T, ascending.
    tokens: Vec<Token>,
    potentials: Vec<f64>,
    /// For each token of T: probability that it is selected from a tuple without tokens outside of
    /// T.
    selected: Vec<f64>,
    /// Probability of the omitted tuples, and q of the omitted tokens.
    left_out: (f64, f64),
    /// Probability that a tuple is inside T and accepted.
    accepted: f64,
    solved: Solved,
}

/// Terms c·log(slack + Σ e^a), stored contiguously.
#[derive(Default)]
struct Terms {
    members: Vec<u32>,
    ends: Vec<usize>,
    coefficients: Vec<f64>,
    slack: f64,
}

impl Terms {
    /// Calls `visit(members, coefficient, Σ over members of `weights`)` for every term.
    fn each(&self, weights: &[f64], mut visit: impl FnMut(&[u32], f64, f64)) {
        let mut start = 0;
        for (&end, &coefficient) in self.ends.iter().zip(&self.coefficients) {
            let members = &self.members[start..end];
            start = end;
            visit(
                members,
                coefficient,
                members.iter().map(|member| weights[*member as usize]).sum(),
            );
        }
    }
}

impl System {
    /// Chooses T from `tokens` (token, q, wanted probability), and minimises.
    pub fn new(
        settings: &Settings,
        count: usize,
        truncation: Truncation,
        mut tokens: Vec<(Token, f64, f64)>,
    ) -> Result<Self, GaveUp> {
        let Truncation { outer, free, full } = truncation;
        let system = if outer { "outer" } else { "inner" };
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut rest: f64 = tokens.iter().map(|token| token.1).sum();
        let power = count as f64;
        let out = |rest: f64| full.powf(power) - (full - rest).max(0.0).powf(power);
        let mut needed = 0;
        while needed < tokens.len() && out(rest) > settings.tau {
            rest -= tokens[needed].1;
            needed += 1;
        }
        let limit = settings.limit(count);
        if needed > limit {
            return Err(GaveUp::TooManyTokens { system, needed, limit });
        }
        // Summed again, because subtraction has lost precision.
        let rest: f64 = tokens[needed..].iter().map(|token| token.1).sum();
        tokens.truncate(needed);
        tokens.sort_by_key(|token| token.0);

        let mut terms = Terms { slack: if outer { 0.0 } else { 1.0 }, ..Terms::default() };
        let masses: Vec<f64> = tokens.iter().map(|token| token.1).collect();
        for_each_iid_set(&masses, free, count, |members, probability| {
            terms.members.extend(members.iter().map(|member| *member as u32));
            terms.ends.push(terms.members.len());
            terms.coefficients.push(probability);
        });
        let wanted: Vec<f64> = tokens.iter().map(|token| token.2).collect();
        let mut potentials = vec![0.0; tokens.len()];
        let threshold = 5.0 * settings.tau;
        let mut weights = vec![0.0; tokens.len()];
        let deadline = Deadline::after(settings.seconds);
        let goes_on = || !deadline.is_over();
        let end = lbfgs::minimise(
            &mut potentials,
            settings.iterations,
            threshold,
            goes_on,
            |point, gradient| {
                weights.iter_mut().zip(point).for_each(|(weight, a)| *weight = a.exp());
                gradient.iter_mut().zip(&wanted).for_each(|(gradient, wanted)| *gradient = -wanted);
                let mut value: f64 =
                    -point.iter().zip(&wanted).map(|(a, wanted)| a * wanted).sum::<f64>();
                terms.each(&weights, |members, coefficient, sum| {
                    value += coefficient * (terms.slack + sum).ln();
                    let share = coefficient / (terms.slack + sum);
                    members
                        .iter()
                        .for_each(|m| gradient[*m as usize] += share * weights[*m as usize]);
                });
                value
            },
        );
        if end.gradient.is_nan() || end.gradient > threshold {
            if deadline.is_over() {
                return Err(GaveUp::OutOfTime { system, seconds: settings.seconds });
            }
            let lbfgs::End { iterations, gradient } = end;
            return Err(GaveUp::NotConverged { system, gradient, threshold, iterations });
        }

        let weights: Vec<f64> = potentials.iter().map(|a: &f64| a.exp()).collect();
        let mut selected = vec![0.0; tokens.len()];
        let mut accepted = 0.0;
        terms.each(&weights, |members, coefficient, sum| {
            accepted += coefficient * sum / (sum + terms.slack);
            members
                .iter()
                .for_each(|m| selected[*m as usize] += coefficient * weights[*m as usize] / sum);
        });
        let solved =
            Solved { tokens: tokens.len(), iterations: end.iterations, gradient: end.gradient };
        let left_out = (out(rest).max(0.0), rest);
        let tokens = tokens.into_iter().map(|token| token.0).collect();
        Ok(Self { outer, tokens, potentials, selected, left_out, accepted, solved })
    }

    pub fn solved(&self) -> Solved {
        self.solved
    }

    /// Whether no tuple is omitted.
    pub fn is_complete(&self) -> bool {
        self.left_out.1 == 0.0
    }

    /// Returns the probability that a tuple is inside T and accepted.
    pub fn accepted(&self) -> f64 {
        self.accepted
    }

    /// Returns the weight of "reject" relative to e^potential.
    pub fn slack(&self) -> f64 {
        if self.outer { 0.0 } else { 1.0 }
    }

    /// Whether a token is in T.
    pub fn is_retained(&self, token: Token) -> bool {
        self.tokens.binary_search(&token).is_ok()
    }

    /// Returns the potential of a token; 0 outside of T.
    pub fn potential(&self, token: Token) -> f64 {
        self.tokens.binary_search(&token).map_or(0.0, |index| self.potentials[index])
    }

    /// Returns the probability that a token of draft probability q is selected (repaired mode). A
    /// tuple with omitted tokens selects the first of them, which is distributed like the omitted
    /// tokens.
    pub fn selected(&self, token: Token, q: f64) -> f64 {
        match self.tokens.binary_search(&token) {
            Ok(index) => self.selected[index],
            Err(_) => self.left_out.0 * (q / self.left_out.1),
        }
    }
}
