//! SpecHub, and its extension to n drafts.
//!
//! Problem: every tuple contains the n − 1 most likely tokens of q (the hubs, A) and one token x
//! from the rest; accept so that the emitted token has distribution p. The optimum for these
//! drafts, α = p(A) + Σ_{x∉A} min(p(x), q(x)/(1 − q(A))), is reached.
//! Source: Sun et al. 2024 (SpecHub), algorithm 3, for n = 2; Hu et al. 2025 for the optimum of the
//! greedy scheme.
//! Complexity: one pass over the support to find the hubs and their mass; O(n) to emit (expected).
//! Deviations: (1) n − 1 hubs instead of one, for any n; (2) also for the greedy scheme; (3) the
//! paper passes the mass not accepted for x to the hub "up to p(a)"; here the residual is (p −
//! accepted)+, in which the hubs have their full p: the same distribution, and the same code for
//! any number of hubs.

use super::{Emission, EmittedDistribution, Problem, Rule, capped_ratio};
use crate::drafting::{Drafting, Draws, mass_without};
use crate::random::RandomSource;
use crate::{Result, Token};

/// The rule, with the hubs of the node that it was prepared for.
pub struct Hub {
    hubs: Vec<Token>,
    /// The draft's mass outside the hubs.
    rest: f64,
}

impl Default for Hub {
    fn default() -> Self {
        Self { hubs: Vec::new(), rest: 1.0 }
    }
}

impl Hub {
    /// The mass with which a token outside the hubs is accepted.
    fn covered(&self, problem: &Problem, token: Token) -> f64 {
        if self.hubs.contains(&token) {
            return 0.0;
        }
        let q = problem.proposal.distribution(0).probability(token);
        if q > 0.0 { problem.target.probability(token).min(q / self.rest) } else { 0.0 }
    }

    /// The index of the draft that is not a hub, and the probability of accepting it.
    fn outsider(&self, problem: &Problem, drafts: &[Token]) -> Option<(usize, f64)> {
        let index = drafts.iter().position(|token| !self.hubs.contains(token))?;
        let p = problem.target.probability(drafts[index]);
        let q = problem.proposal.distribution(0).probability(drafts[index]);
        let accept = match problem.proposal.scheme() {
            Drafting::Greedy => capped_ratio(p, q / self.rest),
            // Drawn first, with mass q …
            _ if index == 0 => capped_ratio(p, q),
            // … or after a hub, with mass q/rest − q, which covers the part of p that the other
            // kind of tuple leaves.
            _ => capped_ratio((p - q).max(0.0), q * (1.0 - self.rest) / self.rest),
        };
        Some((index, accept))
    }
}

impl Rule for Hub {
    fn name(&self) -> &'static str {
        "hub"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(self.name(), &[Drafting::Hub, Drafting::Greedy])
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let draft = problem.proposal.distribution(0);
        self.hubs = draft.most_likely(problem.proposal.count() - 1);
        self.rest = mass_without(draft, &self.hubs);
        Ok(())
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let target = problem.target;
        let hubs: f64 = self.hubs.iter().map(|&hub| target.probability(hub)).sum();
        Some(hubs + target.support().map(|(token, _)| self.covered(problem, token)).sum::<f64>())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        if let Some((index, accept)) = self.outsider(problem, drafts)
            && rng.coin(accept)
        {
            return Emission::accepted(drafts, index);
        }
        let token = problem.target.sample_excess(1.0, |t| self.covered(problem, t), rng);
        Emission {
            token,
            accepted: drafts.iter().position(|&draft| draft == token && self.hubs.contains(&draft)),
        }
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let outsider = self.outsider(problem, drafts);
        let accept = outsider.map_or(0.0, |(_, accept)| accept);
        let accepted = outsider.map(|(index, accept)| (drafts[index], accept));
        let target = problem.target;
        let mut probs =
            EmittedDistribution::new(target.vocabulary(), accepted, 1.0 - accept, || {
                target.excess_distribution(1.0, |t| self.covered(problem, t))
            });
        let hubs = drafts.iter().filter(|token| self.hubs.contains(token));
        probs.accepted += hubs.map(|&hub| probs.probabilities[hub as usize]).sum::<f64>();
        probs
    }
}
