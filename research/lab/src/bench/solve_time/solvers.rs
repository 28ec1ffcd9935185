//! Solvers, the columns of the table, with a common interface.

use std::time::Instant;

use anyhow::{Result, ensure};
use polydraft::coupling::priority::{self, Form};
use polydraft::coupling::{Coupling, Rule, RuleSettings};
use polydraft::{Distribution, Error, Problem, Proposal, Token, couple};
use polydraft_reference::global_resolution::{self, Mode, Resolver};
use polydraft_reference::{ReferenceKind, Solver, emitted, linear_program, max_flow, slackness};
use rand_chacha::ChaCha12Rng;

/// A solver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Column {
    LinearProgram,
    MaxFlow,
    Slackness,
    /// With its parameter τ.
    GlobalResolution(f64),
    Priority(Form),
}

/// The result of an attempt to emit a token.
#[derive(Debug, Clone)]
pub enum Attempt {
    /// A token was emitted after this number of seconds.
    Done(f64),
    /// The solver gave up after this number of seconds.
    GaveUp(f64),
    /// The time limit was reached after this number of seconds.
    Unfinished(f64),
    /// The solver was not started, for this reason.
    TooLarge(String),
}

impl Attempt {
    /// Returns the duration of the attempt in seconds.
    pub fn seconds(&self) -> f64 {
        match self {
            Self::Done(seconds) | Self::GaveUp(seconds) | Self::Unfinished(seconds) => *seconds,
            Self::TooLarge(_) => 0.0,
        }
    }
}

/// Limits of the problem size: edges of a flow network (40 bytes each), and variables of a linear
/// program.
const EDGES: usize = 20_000_000;
const VARIABLES: usize = 2_000_000;

impl Column {
    pub fn all() -> Vec<Self> {
        vec![
            Self::LinearProgram,
            Self::MaxFlow,
            Self::Slackness,
            Self::GlobalResolution(1e-3),
            Self::GlobalResolution(1e-4),
            Self::Priority(Form::Exact),
            Self::Priority(Form::Pooled),
        ]
    }

    pub fn name(&self) -> String {
        match self {
            Self::LinearProgram => format!("linear program ({})", Solver::BEST.name()),
            Self::MaxFlow => "max-flow".to_owned(),
            Self::Slackness => "slackness".to_owned(),
            Self::GlobalResolution(tau) => format!("Global Resolution, τ = {tau:e}"),
            Self::Priority(Form::Pooled) => "priority, near-linear".to_owned(),
            Self::Priority(_) => "priority, exact".to_owned(),
        }
    }

    /// Whether the published comparison uses this solver as a fallback for Global Resolution.
    pub fn takes_over(&self) -> bool {
        matches!(self, Self::LinearProgram | Self::MaxFlow | Self::Slackness)
    }

    /// Returns the maximum deviation of an acceptance from the optimum.
    pub fn tolerance(&self) -> f64 {
        match self {
            Self::GlobalResolution(tau) => 10.0 * tau,
            Self::Priority(Form::Pooled) => 1e-6,
            _ => 1e-9,
        }
    }

    /// Builds a solver that stops after about `seconds` seconds.
    pub fn build(&self, seconds: f64) -> Result<Box<dyn Solves>> {
        let rule = |rule: Result<Box<dyn Rule>, Error>| -> Result<Box<dyn Solves>> {
            Ok(Box::new(Exact { rule: rule?, acceptance: None }))
        };
        match *self {
            Self::LinearProgram => {
                let solver = Solver::BEST;
                rule(linear_program::Settings { solver, max_variables: VARIABLES, seconds }.build())
            }
            Self::MaxFlow => rule(max_flow::Settings { max_variables: EDGES, seconds }.build()),
            Self::Slackness => rule(slackness::Settings { max_variables: EDGES }.build()),
            Self::GlobalResolution(tau) => {
                let settings = global_resolution::Settings { tau, ..Default::default() };
                Ok(Box::new(settings.resolver()?))
            }
            Self::Priority(form) => rule(priority::Settings { form, ..Default::default() }.build()),
        }
    }

    /// Checks the emitted distribution on small problems, by enumeration.
    pub fn check(&self) -> Result<()> {
        let probs = |values: &[f64]| Distribution::new(values.to_vec());
        for (target, draft, count) in [
            (probs(&[0.5, 0.3, 0.2])?, probs(&[0.2, 0.3, 0.5])?, 2),
            (probs(&[0.1, 0.2, 0.3, 0.4, 0.0])?, probs(&[0.4, 0.05, 0.25, 0.1, 0.2])?, 3),
            (probs(&[0.6, 0.1, 0.1, 0.1, 0.1])?, probs(&[0.2, 0.2, 0.2, 0.2, 0.2])?, 4),
        ] {
            let problem = Problem::new(&target, Proposal::iid(&draft, count)?)?;
            let (mut rule, allowed) = match *self {
                Self::LinearProgram => {
                    let solver = Solver::BEST;
                    (
                        ReferenceKind::LinearProgram(linear_program::Settings {
                            solver,
                            ..Default::default()
                        })
                        .build()?,
                        1e-9,
                    )
                }
                Self::MaxFlow => ("max-flow".parse::<ReferenceKind>()?.build()?, 1e-9),
                Self::Slackness => ("slackness".parse::<ReferenceKind>()?.build()?, 1e-9),
                Self::GlobalResolution(tau) => {
                    let mode = Mode::Published;
                    let settings = global_resolution::Settings { tau, mode, ..Default::default() };
                    (settings.build()?, 15.0 * tau)
                }
                Self::Priority(form) => {
                    (priority::Settings { form, ..Default::default() }.build()?, 1e-9)
                }
            };
            let off = emitted(rule.as_mut(), problem)?.deviation(&problem);
            ensure!(
                off <= allowed,
                "{}: the emitted distribution is {off:e} off the target's",
                self.name()
            );
        }
        Ok(())
    }
}

/// A solver that finds the best rule for a node and emits a token with it.
pub trait Solves {
    /// Prepares and emits; only this is timed.
    fn attempt(
        &mut self,
        problem: Problem,
        drafts: &[Token],
        rng: &mut ChaCha12Rng,
    ) -> Result<Attempt>;

    /// Returns the acceptance of the last attempt's solution; `None` if it has none.
    fn acceptance(&mut self, problem: Problem, rng: &mut ChaCha12Rng) -> Option<f64>;
}

/// A rule whose solutions are always optimal, but which may fail.
struct Exact {
    rule: Box<dyn Rule>,
    /// Acceptance of the last solution.
    acceptance: Option<f64>,
}

impl Solves for Exact {
    fn attempt(
        &mut self,
        problem: Problem,
        drafts: &[Token],
        rng: &mut ChaCha12Rng,
    ) -> Result<Attempt> {
        let start = Instant::now();
        let emitted = couple(self.rule.as_mut(), problem)
            .and_then(|mut coupling: Coupling| coupling.emit(drafts, rng).map(|_| ()));
        let seconds = start.elapsed().as_secs_f64();
        self.acceptance = None;
        match emitted {
            Ok(()) => {
                self.acceptance = self.rule.acceptance(&problem);
                Ok(Attempt::Done(seconds))
            }
            Err(Error::Solver { .. }) => Ok(Attempt::Unfinished(seconds)),
            Err(Error::TooLarge { got, .. }) => Ok(Attempt::TooLarge(got)),
            Err(error) => Err(error.into()),
        }
    }

    fn acceptance(&mut self, _: Problem, _: &mut ChaCha12Rng) -> Option<f64> {
        self.acceptance
    }
}

impl Solves for Resolver {
    fn attempt(
        &mut self,
        problem: Problem,
        drafts: &[Token],
        rng: &mut ChaCha12Rng,
    ) -> Result<Attempt> {
        let start = Instant::now();
        self.prepare(&problem)?;
        let emitted = self.emit(&problem, drafts, rng);
        let seconds = start.elapsed().as_secs_f64();
        Ok(if emitted.is_ok() { Attempt::Done(seconds) } else { Attempt::GaveUp(seconds) })
    }

    fn acceptance(&mut self, _: Problem, _: &mut ChaCha12Rng) -> Option<f64> {
        self.solve_both().ok()?;
        Resolver::acceptance(self)
    }
}
