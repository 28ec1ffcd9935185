//! Global Resolution: optimal transport for i.i.d. drafts by small convex problems.
//!
//! Problem: as in [`crate::slackness`], H* splits the tuples into an inner and an outer system, and
//! the system of the drawn tuple must be solved.
//! Source: Thomas and Pal 2025 (Global Resolution), algorithm 1, sections 5.1 and 6, appendix K.
//! First, H* by sorting. Then p', the acceptance of each token outside H*, by consecutive
//! differences of running minima of ψ. Then the potentials of a truncated convex problem
//! (`system`), by L-BFGS (`lbfgs`). Given a tuple, its tokens are accepted in proportion to
//! e^potential.
//! Complexity: a sort of the vocabulary; Σ C(|T|, j), j ≤ n, terms per evaluation, where T has at
//! most 50 tokens.
//! Deviations: (1) `mode: repaired` (ours, and the default): the truncated softmax only *selects* a
//! draft; then single-draft speculative sampling against the distribution m of the selected draft
//! decides, so the emitted distribution is exact. To compute m, a tuple with omitted tokens selects
//! the first of them, and an inner tuple always selects. Both systems are needed; if one gives up,
//! `priority` is used for the node, and counted as a fallback; (2) differences of running minima
//! are computed directly, because subtracting minima cancels; (3) for n = 1 the limit is that of n
//! = 2, and for n > 5 that of n = 5, because the paper gives none; (4) there is a time limit, as
//! for the other solvers; (5) see `system` and `lbfgs`.
//!
//! According to the paper, the emitted distribution as published is off by at most 15τ in L1. This
//! requires a gradient of at most 2τ in both systems. With the 5τ at which algorithm 1 stops, lemma
//! 6.6 gives 8τ + 2·8τ = 24τ (and 16τ of acceptance). The largest errors in the tests are below 15τ
//! and 10τ; 400,000 random cases reached 14.9τ and 5.6τ.

mod gave_up;
mod lbfgs;
mod resolver;
mod system;

pub use gave_up::GaveUp;
pub use resolver::Resolver;
pub use system::Solved;

use polydraft::coupling::canonical::Canonical;
use polydraft::coupling::{
    Emission, EmittedDistribution, Fallback, Rule, RuleSettings, naive, priority,
};
use polydraft::random::RandomSource;
use polydraft::{Draws, Error, Problem, Result, Token};
use serde::{Deserialize, Serialize};

use crate::program::check_seconds;
use crate::transport::Choice;

/// Use of the truncated solution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The solution selects a draft, and the canonical form makes the emitted distribution exact;
    /// where there is no solution, `priority` takes over.
    #[default]
    Repaired,
    /// The solution determines the emitted distribution, whose error is a small multiple of τ.
    /// Without a solution, an error.
    Published,
    /// The published walk (appendix R): only the system of the drafts is solved. If it has no
    /// solution, the token is drawn from the target, which is counted as a fallback. If one system
    /// has a solution and the other has none, the error exceeds a small multiple of τ: draws from
    /// the target are exact only for all tuples or for none.
    PublishedWalk,
}

/// Settings of the rule; the default limits are the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Error threshold τ, above 0 and below 1: maximum probability of omitted tuples, and a fifth
    /// of the gradient's L1 norm at which L-BFGS stops. Default 1e-3.
    pub tau: f64,
    /// Repaired or published. Default: repaired.
    pub mode: Mode,
    /// Maximum number of tokens in a truncated problem for 1, 2, .. drafts; the last entry also
    /// applies to more drafts. Default 50, 50, 20, 10, 10.
    pub limits: Vec<usize>,
    /// Maximum number of iterations of L-BFGS. Default 25.
    pub iterations: usize,
    /// Time limit per system in seconds. Default 60.
    pub seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tau: 1e-3,
            mode: Mode::Repaired,
            limits: vec![50, 50, 20, 10, 10],
            iterations: 25,
            seconds: 60.0,
        }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        Ok(Box::new(GlobalResolution {
            resolver: Canonical(self.resolver()?),
            mode: self.mode,
            priority: priority::Settings::default().build()?,
            naive: Box::new(naive::Naive),
            fallback: None,
            fallbacks: 0,
        }))
    }
}

impl Settings {
    /// Returns the algorithm itself, without repair or fallback.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn resolver(&self) -> Result<Resolver> {
        let refused = |setting, expected, got| Err(Error::Setting { setting, expected, got });
        if !(self.tau > 0.0 && self.tau < 1.0) {
            return refused("tau", "above 0, below 1", self.tau.to_string());
        }
        check_seconds(self.seconds)?;
        if self.iterations == 0 {
            return refused("iterations", "at least 1", "0".to_owned());
        }
        if self.limits.is_empty() {
            return refused(
                "limits",
                "a list for 1, 2, .. drafts, such as [50,50,20,10,10]",
                "[]".to_owned(),
            );
        }
        Ok(Resolver::new(self.clone()))
    }

    /// Returns the paper's bound on the L1 error of the emitted distribution as published: 15τ (see
    /// the caveat above).
    pub fn deviation_bound(&self) -> f64 {
        15.0 * self.tau
    }

    /// Returns the paper's bound on the error of the acceptance: 10τ.
    pub fn acceptance_bound(&self) -> f64 {
        10.0 * self.tau
    }

    fn limit(&self, count: usize) -> usize {
        self.limits.get(count - 1).or(self.limits.last()).copied().unwrap_or(0)
    }
}

struct GlobalResolution {
    resolver: Canonical<Resolver>,
    mode: Mode,
    priority: Box<dyn Rule>,
    naive: Box<dyn Rule>,
    /// Reason why a fallback rule was used at this node, or for these drafts.
    fallback: Option<Fallback>,
    fallbacks: u64,
}

impl GlobalResolution {
    fn fall_back(&mut self, rule: &'static str, gave_up: GaveUp) {
        self.fallbacks += 1;
        let (reason, count) = (gave_up.to_string(), self.fallbacks);
        self.fallback = Some(Fallback { rule, reason, count });
    }

    /// Returns the decision for these drafts as published, if their system has a solution.
    fn choice(&mut self, drafts: &[Token]) -> Option<Choice> {
        if self.mode == Mode::PublishedWalk {
            self.fallback = None;
            if let Err(gave_up) = self.resolver.0.solve(drafts) {
                self.fall_back("naive", gave_up);
                return None;
            }
        }
        Some(self.resolver.0.published(drafts))
    }
}

impl Rule for GlobalResolution {
    fn name(&self) -> &'static str {
        NAME
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        self.resolver.supports(draws)
    }

    fn is_exact(&self) -> bool {
        self.mode == Mode::Repaired
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        self.fallback = None;
        self.resolver.prepare(problem)?;
        if self.mode == Mode::PublishedWalk {
            return Ok(());
        }
        let Err(gave_up) = self.resolver.0.solve_both() else { return Ok(()) };
        if self.mode == Mode::Published {
            return Err(gave_up.error());
        }
        self.fall_back("priority", gave_up);
        self.priority.prepare(problem)
    }

    fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        match self.mode {
            Mode::Repaired if self.fallback.is_some() => self.priority.acceptance(problem),
            Mode::Repaired => self.resolver.acceptance(problem),
            Mode::Published => self.resolver.0.acceptance_if_complete(),
            Mode::PublishedWalk => None,
        }
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        match self.mode {
            Mode::Repaired if self.fallback.is_some() => self.priority.emit(problem, drafts, rng),
            Mode::Repaired => self.resolver.emit(problem, drafts, rng),
            _ => match self.choice(drafts) {
                Some(choice) => {
                    let wanted = |token| self.resolver.0.wanted(token);
                    choice.emit(drafts, problem.target, wanted, rng)
                }
                None => self.naive.emit(problem, drafts, rng),
            },
        }
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        match self.mode {
            Mode::Repaired if self.fallback.is_some() => {
                self.priority.distribution(problem, drafts)
            }
            Mode::Repaired => self.resolver.distribution(problem, drafts),
            _ => match self.choice(drafts) {
                Some(choice) => {
                    choice.distribution(problem.target, |token| self.resolver.0.wanted(token))
                }
                None => self.naive.distribution(problem, drafts),
            },
        }
    }
}

/// Name of the rule on the command line.
pub(crate) const NAME: &str = "global-resolution";
