//! K-SEQ, sequential selection with a common discount.
//!
//! Problem: n i.i.d. drafts from q; accept one of them so that the emitted token has distribution
//! p.
//! Source: Sun et al. 2023 (SpecTr), algorithm 2. α = 1 − (1 − β(ρ))^n with β(ρ) = Σ min(q, p/ρ),
//! at least (1 − 1/e) of the optimum.
//! Complexity: a handful of passes over the support to find ρ; O(n) to emit (expected).
//! Deviations: (1) ρ* is found by Newton's method inside a bracket instead of bisection; (2) a
//! given ρ is raised to ρ* at nodes where it is smaller: the rule is not valid below (theorem 1).

use super::{Emission, EmittedDistribution, Problem, Rule, RuleSettings, capped_ratio};
use crate::drafting::{Drafting, Draws};
use crate::random::RandomSource;
use crate::{Distribution, Error, Result, Token};
use serde::{Deserialize, Serialize};

/// Settings of the rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The factor ρ by which ratios of the distributions are divided, at least 1; the number of
    /// drafts is always valid. Default: none, which means ρ*, the best one at each node. A smaller
    /// value is invalid and replaced by ρ*.
    pub rho: Option<f64>,
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        let min_rho = self.rho.unwrap_or(1.0);
        if !(min_rho >= 1.0 && min_rho.is_finite()) {
            let (expected, got) = ("a number of at least 1", min_rho.to_string());
            return Err(Error::Setting { setting: "rho", expected, got });
        }
        Ok(Box::new(KSeq { min_rho, rho: 1.0, cover: 0.0, acceptance: 0.0 }))
    }
}

struct KSeq {
    /// Lower bound of ρ.
    min_rho: f64,
    rho: f64,
    /// The emitted mass of an accepted token is `cover`·min(q, p/ρ).
    cover: f64,
    acceptance: f64,
}

/// Σ min(ρq, p) and Σ q over the tokens with ρq < p.
fn clipped(target: &Distribution, draft: &Distribution, rho: f64) -> (f64, f64) {
    let (mut mass, mut slope) = (0.0, 0.0);
    let Some((p, q)) = target.dense().zip(draft.dense()) else {
        for (token, q) in draft.support() {
            let p = target.probability(token);
            mass += p.min(rho * q);
            slope += if rho * q < p { q } else { 0.0 };
        }
        return (mass, slope);
    };
    // Lanes let the compiler use vector instructions.
    let (mut masses, mut slopes) = ([0.0; 8], [0.0; 8]);
    let ((p, p_rest), (q, q_rest)) = (p.as_chunks::<8>(), q.as_chunks::<8>());
    for (p, q) in p.iter().zip(q) {
        for i in 0..8 {
            let scaled = rho * q[i];
            let below = scaled < p[i];
            masses[i] += if below { scaled } else { p[i] };
            slopes[i] += if below { q[i] } else { 0.0 };
        }
    }
    for (p, q) in p_rest.iter().zip(q_rest) {
        mass += p.min(rho * q);
        slope += if rho * q < *p { *q } else { 0.0 };
    }
    (mass + masses.iter().sum::<f64>(), slope + slopes.iter().sum::<f64>())
}

impl KSeq {
    /// Sets ρ; returns Σ min(ρq, p) and Σ q over the tokens with ρq < p.
    fn set_rho(&mut self, problem: &Problem, rho: f64) -> (f64, f64) {
        let (mass, slope) = clipped(problem.target, problem.proposal.distribution(0), rho);
        let beta = (mass / rho).min(1.0);
        let acceptance = 1.0 - (1.0 - beta).powf(problem.proposal.count() as f64);
        let cover = if beta > 0.0 { acceptance / beta } else { 0.0 };
        *self = Self { min_rho: self.min_rho, rho, cover, acceptance };
        (mass, slope)
    }

    /// The probability that a token is emitted by acceptance; the residual is p minus this.
    fn covered(&self, problem: &Problem, token: Token) -> f64 {
        let (p, q) = (
            problem.target.probability(token),
            problem.proposal.distribution(0).probability(token),
        );
        self.cover * q.min(p / self.rho)
    }

    fn accept(&self, problem: &Problem, token: Token) -> f64 {
        let (p, q) = (
            problem.target.probability(token),
            problem.proposal.distribution(0).probability(token),
        );
        capped_ratio(p, self.rho * q)
    }
}

impl Rule for KSeq {
    fn name(&self) -> &'static str {
        "k-seq"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(self.name(), &[Drafting::Iid])
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let n = problem.proposal.count() as f64;
        // excess(ρ) = 1 − (1 − β)^n − ρβ decreases from ≥ 0 at 1 to ≤ 0 at n.
        let (mut low, mut high, mut rho) = (1.0, n, 1.0);
        // Newton needs about five passes; bisection, its safeguard, at most sixty.
        for _ in 0..100 {
            let (mass, slope) = self.set_rho(problem, rho);
            let beta = (mass / rho).min(1.0);
            let excess = self.acceptance - mass;
            if excess > 0.0 {
                low = rho
            } else {
                high = rho
            }
            let derivative =
                n * (1.0 - beta).powf(n - 1.0) * (slope * rho - mass) / (rho * rho) - slope;
            let newton = rho - excess / derivative;
            let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
            if excess.abs() <= 2e-16 || (next - rho).abs() <= 1e-15 * rho {
                break;
            }
            rho = next;
        }
        if self.min_rho > self.rho {
            self.set_rho(problem, self.min_rho);
        }
        Ok(())
    }

    fn acceptance(&mut self, _: &Problem) -> Option<f64> {
        Some(self.acceptance)
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let accepted = drafts.iter().position(|&token| rng.coin(self.accept(problem, token)));
        match accepted {
            Some(index) => Emission::accepted(drafts, index),
            None => Emission::rejected(problem.target.sample_excess(
                1.0,
                |t| self.covered(problem, t),
                rng,
            )),
        }
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let mut remaining = 1.0;
        let accepted: Vec<_> = drafts
            .iter()
            .map(|&token| {
                let mass = remaining * self.accept(problem, token);
                remaining -= mass;
                (token, mass)
            })
            .collect();
        let target = problem.target;
        EmittedDistribution::new(target.vocabulary(), accepted, remaining, || {
            target.excess_distribution(1.0, |t| self.covered(problem, t))
        })
    }
}
