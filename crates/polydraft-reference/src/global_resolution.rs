//! Global Resolution: optimal transport for i.i.d. drafts by small convex problems.
//!
//! Problem: as for [`crate::slackness`]: H* splits the tuples into an inner and an outer system, and the system that holds
//! the drawn tuple has to be solved.
//! Source: Thomas and Pal 2025 (Global Resolution), algorithm 1, sections 5.1 and 6, appendix K. H* by sorting; what
//! each token outside H* is accepted with, p', by consecutive differences of running minima of ψ; then the potentials of
//! a truncated convex problem (`system`), by L-BFGS (`lbfgs`). Given a tuple its tokens are accepted in proportion to
//! e^potential.
//! Complexity: a sort of the vocabulary; Σ C(|T|, j), j ≤ n, terms an evaluation, T at most 50 tokens large.
//! Deviations: (1) `mode: repaired` (ours, and the default): the truncated softmax only *selects* a draft, and
//! single-draft speculative sampling against the law m of that selection decides, so the emitted law is exact. To know
//! m, a tuple with tokens outside of T selects the first draft of those, and an inner tuple always selects. Both systems
//! are needed; where one gives up, `priority` takes over for the node, which is counted; (2) differences of running
//! minima are computed as such, not by subtracting minima, which cancels; (3) n = 1 has the limit of n = 2, n > 5 that of
//! n = 5; the paper gives none; (4) see `system` and `lbfgs`.
//!
//! As published the law is off by at most 15τ in L1, says the paper; that is what follows if both systems meet
//! a gradient of 2τ. With the 5τ at which algorithm 1 stops, lemma 6.6 gives 8τ + 2·8τ = 24τ (and 16τ of acceptance). The
//! tests measure less than 15τ and 10τ in all their cases.

mod lbfgs;
mod resolver;
mod system;

pub use resolver::{GaveUp, Resolver};
pub use system::Solved;

use crate::transport::Choice;
use polydraft::chance::Chance;
use polydraft::coupling::{Emission, Fallback, Law, TokenRule, priority};
use polydraft::{Error, Problem, Result, Token};
use serde::{Deserialize, Serialize};

/// What is done with the truncated solution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The solution selects a draft, and the canonical form makes the law exact; where there is no solution, `priority`
    /// takes over.
    #[default]
    Repaired,
    /// The solution is the law, off by some τ; where there is none, an error.
    Published,
}

/// Settings of the rule; the limits are the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Error threshold, above 0 and below 1: the probability of the tuples left out, and a fifth of the gradient's L1 norm
    /// that is good enough. Default 1e-3.
    pub tau: f64,
    /// Repaired or published. Default: repaired.
    pub mode: Mode,
    /// Most tokens in a truncated problem for 1, 2, .. drafts; the last one also for more. Default 50, 50, 20, 10, 10.
    pub limits: Vec<usize>,
    /// Most iterations of L-BFGS. Default 25.
    pub iterations: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { tau: 1e-3, mode: Mode::Repaired, limits: vec![50, 50, 20, 10, 10], iterations: 25 }
    }
}

/// Most terms of a truncated problem: 2 million take a second an evaluation.
const TERMS: f64 = 2e6;

impl Settings {
    /// Makes the rule ready to work.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn build(&self) -> Result<Box<dyn TokenRule>> {
        Ok(Box::new(GlobalResolution {
            resolver: self.resolver()?,
            mode: self.mode,
            priority: priority::Settings::default().build()?,
            fallback: None,
            fallbacks: 0,
        }))
    }

    /// The algorithm itself, without anything that repairs or takes over.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn resolver(&self) -> Result<Resolver> {
        let refused = |setting, expected, got| Err(Error::Setting { setting, expected, got });
        if !(self.tau > 0.0 && self.tau < 1.0) {
            return refused("tau", "above 0, below 1", self.tau.to_string());
        }
        if self.iterations == 0 {
            return refused("iterations", "at least 1", "0".to_owned());
        }
        let terms = |(index, limit): (usize, &usize)| crate::sets::pairs(*limit, index + 1);
        if self.limits.is_empty() || self.limits.iter().enumerate().map(terms).any(|terms| terms > TERMS) {
            let expected =
                "a list for 1, 2, .. drafts, such as [50,50,20,10,10], of at most 2 million terms each";
            return refused("limits", expected, format!("{:?}", self.limits));
        }
        Ok(Resolver::new(self.clone()))
    }

    fn limit(&self, count: usize) -> usize {
        self.limits.get(count - 1).or(self.limits.last()).copied().unwrap_or(0)
    }
}

struct GlobalResolution {
    resolver: Resolver,
    mode: Mode,
    priority: Box<dyn TokenRule>,
    /// Why `priority` works at this node.
    fallback: Option<Fallback>,
    fallbacks: u64,
}

impl GlobalResolution {
    fn choice(&self, drafts: &[Token]) -> Choice {
        match self.mode {
            Mode::Repaired => self.resolver.repaired(drafts),
            Mode::Published => self.resolver.published(drafts),
        }
    }

    fn served(&self, token: Token) -> f64 {
        match self.mode {
            Mode::Repaired => self.resolver.selected(token),
            Mode::Published => self.resolver.covered(token),
        }
    }
}

impl TokenRule for GlobalResolution {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        self.fallback = None;
        self.resolver.prepare(problem)?;
        let Err(gave_up) = self.resolver.solve_both() else { return Ok(()) };
        if self.mode == Mode::Published {
            return Err(gave_up.error());
        }
        self.fallbacks += 1;
        let fallback = Fallback { rule: "priority", reason: gave_up.to_string(), count: self.fallbacks };
        self.fallback = Some(fallback);
        self.priority.prepare(problem)
    }

    fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        if self.fallback.is_some() {
            return self.priority.acceptance(problem);
        }
        match self.mode {
            Mode::Repaired => {
                Some(problem.target.support().map(|(token, p)| p.min(self.resolver.selected(token))).sum())
            }
            Mode::Published => self.resolver.acceptance_if_complete(),
        }
    }

    fn emit(&mut self, problem: &Problem, drafts: &[Token], chance: &mut dyn Chance) -> Emission {
        if self.fallback.is_some() {
            return self.priority.emit(problem, drafts, chance);
        }
        self.choice(drafts).emit(drafts, problem.target, |token| self.served(token), chance)
    }

    fn law(&mut self, problem: &Problem, drafts: &[Token]) -> Law {
        if self.fallback.is_some() {
            return self.priority.law(problem, drafts);
        }
        self.choice(drafts).law(problem.target, |token| self.served(token))
    }
}

/// The name that users type.
pub(crate) const NAME: &str = "global-resolution";
