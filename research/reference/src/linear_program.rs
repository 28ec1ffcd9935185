//! Optimal transport by linear program: the oracle for everything else.
//!
//! Problem: find the rule with the largest acceptance, for any drafting scheme whose tuples can be
//! enumerated.
//! Source: Sun et al. 2023 (SpecTr), section 3; Hu et al. 2025 for the program with inequalities.
//! Complexity: a linear program with a variable per token set and token in it: Σ j·C(k, j), j ≤ n,
//! for n i.i.d. drafts from k tokens.
//! Deviations: (1) tuples with the same set of tokens are merged; the papers' tables have V^n
//! tuples.

use crate::program::{Deadline, Solver, check_seconds};
use crate::sets::{Part, TokenSets};
use crate::transport::{Transport, WholeTransport};
use polydraft::coupling::{Rule, RuleSettings};
use polydraft::{Error, Problem, Result};
use serde::{Deserialize, Serialize};

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Solver of the program. Default: microlp.
    pub solver: Solver,
    /// Maximum number of variables (pairs of a token set and a token in it). Default 50,000.
    pub max_variables: usize,
    /// Time limit per node in seconds. Default 60.
    pub seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { solver: Solver::Microlp, max_variables: 50_000, seconds: 60.0 }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        self.solver.validate()?;
        check_seconds(self.seconds)?;
        if self.max_variables == 0 {
            let got = "0".to_owned();
            return Err(Error::Setting { setting: "max_variables", expected: "at least 1", got });
        }
        let Self { solver, max_variables, seconds } = *self;
        Ok(Box::new(WholeTransport::new("linear-program", move |name, problem: &Problem| {
            let deadline = Deadline::after(seconds);
            let sets = TokenSets::new(name, &problem.proposal, Part::All, max_variables)?;
            Transport::by_program(name, problem.target, sets, solver, deadline)
        })))
    }
}
