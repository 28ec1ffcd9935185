//! Optimal transport by maximum flow.
//!
//! Problem: the rule of the largest acceptance, for any drafting scheme whose tuples can be enumerated.
//! Source: Thomas and Pal 2025 (Global Resolution), section 5.2: source → token i (p_i) → token sets that contain i → sink
//! (their probability).
//! Complexity: one maximum flow with an edge for each pair of a token set and a token in it.
//! Deviations: (1) tuples are merged by their set of tokens.

use crate::program::{Deadline, check_seconds};
use crate::sets::{Part, TokenSets};
use crate::transport::{Choice, Transport};
use polydraft::chance::Chance;
use polydraft::coupling::{Emission, Law, TokenRule};
use polydraft::{Error, Problem, Result, Token};
use serde::{Deserialize, Serialize};

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Largest number of edges between tokens and token sets (40 bytes each). Default 4,000,000.
    pub max_variables: usize,
    /// Longest time for a node, in seconds. Default 60.
    pub seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_variables: 4_000_000, seconds: 60.0 }
    }
}

impl Settings {
    /// Makes the rule ready to work.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn build(&self) -> Result<Box<dyn TokenRule>> {
        check_edges(self.max_variables)?;
        check_seconds(self.seconds)?;
        Ok(Box::new(MaxFlow { settings: self.clone(), transport: Transport::default() }))
    }
}

/// Edges are numbered in 32 bits, two numbers each.
pub(crate) fn check_edges(edges: usize) -> Result<()> {
    if (1..=500_000_000).contains(&edges) {
        return Ok(());
    }
    let expected = "from 1 to 500000000";
    Err(Error::Setting { setting: "max_variables", expected, got: edges.to_string() })
}

struct MaxFlow {
    settings: Settings,
    transport: Transport,
}

impl TokenRule for MaxFlow {
    fn name(&self) -> &'static str {
        "max-flow"
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let deadline = Deadline::after(self.settings.seconds);
        let sets = TokenSets::new(self.name(), &problem.proposal, Part::All, self.settings.max_variables)?;
        self.transport = Transport::by_flow(self.name(), problem.target, sets, deadline)?;
        Ok(())
    }

    fn acceptance(&mut self, _: &Problem) -> Option<f64> {
        Some(self.transport.acceptance())
    }

    fn emit(&mut self, problem: &Problem, drafts: &[Token], chance: &mut dyn Chance) -> Emission {
        self.choice(drafts).emit(drafts, problem.target, |token| self.transport.served(token), chance)
    }

    fn law(&mut self, problem: &Problem, drafts: &[Token]) -> Law {
        self.choice(drafts).law(problem.target, |token| self.transport.served(token))
    }
}

impl MaxFlow {
    fn choice(&self, drafts: &[Token]) -> Choice {
        self.transport.choice(&Part::All.key(drafts).unwrap_or_default())
    }
}
