//! Optimal transport by maximum flow.
//!
//! Problem: find the rule with the largest acceptance, for any drafting scheme whose tuples can be
//! enumerated.
//! Source: Thomas and Pal 2025 (Global Resolution), section 5.2. Network: source → token i
//! (capacity p_i) → token sets that contain i → sink (capacity: probability of the set).
//! Complexity: one maximum flow with an edge per token set and token in it.
//! Deviations: (1) tuples with the same set of tokens are merged.

use crate::program::{Deadline, check_seconds};
use crate::sets::{Part, TokenSets};
use crate::transport::{Transport, WholeTransport};
use polydraft::coupling::{Rule, RuleSettings};
use polydraft::{Error, Problem, Result};
use serde::{Deserialize, Serialize};

/// Settings of the rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum number of edges between tokens and token sets (40 bytes each). Default 4,000,000.
    pub max_variables: usize,
    /// Time limit per node in seconds. Default 60.
    pub seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_variables: 4_000_000, seconds: 60.0 }
    }
}

impl RuleSettings for Settings {
    fn build(&self) -> Result<Box<dyn Rule>> {
        check_edges(self.max_variables)?;
        check_seconds(self.seconds)?;
        let Self { max_variables, seconds } = *self;
        Ok(Box::new(WholeTransport::new("max-flow", move |name, problem: &Problem| {
            let deadline = Deadline::after(seconds);
            let sets = TokenSets::new(name, &problem.proposal, Part::All, max_variables)?;
            Transport::by_flow(name, problem.target, sets, deadline)
        })))
    }
}

/// Checks that edge indices fit in 32 bits; each edge has two.
pub(crate) fn check_edges(edges: usize) -> Result<()> {
    if (1..=500_000_000).contains(&edges) {
        return Ok(());
    }
    let expected = "from 1 to 500000000";
    Err(Error::Setting { setting: "max_variables", expected, got: edges.to_string() })
}
