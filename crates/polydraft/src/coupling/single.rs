//! Single-draft speculative sampling.
//!
//! Problem: one draft x ~ q; emit y ~ p with y = x as often as possible.
//! Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
//! Complexity: O(1) to emit (expected), one pass for the acceptance Σ min(p, q).
//! Deviations: none.

use super::{Emission, Law, Problem, TokenRule, capped_ratio};
use crate::chance::Chance;
use crate::drafting::Drafting;
use crate::{Error, Result, Token};
use serde::{Deserialize, Serialize};

/// The rule has no settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {}

impl Settings {
    /// Makes the rule ready to work.
    ///
    /// # Errors
    /// None.
    pub fn build(&self) -> Result<Box<dyn TokenRule>> {
        Ok(Box::new(Single))
    }
}

struct Single;

impl TokenRule for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        problem.require(self.name(), &Drafting::DRAWN)?;
        let got = problem.proposal.count();
        if got == 1 {
            return Ok(());
        }
        let expected = "1 draft".to_owned();
        Err(Error::Unsupported { operation: self.name(), expected, got: got.to_string() })
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        Some(problem.target.overlap(problem.proposal.law(0)))
    }

    fn emit(&mut self, problem: &Problem, drafts: &[Token], chance: &mut dyn Chance) -> Emission {
        let (target, draft) = (problem.target, problem.proposal.law(0));
        if chance.coin(capped_ratio(target.probability(drafts[0]), draft.probability(drafts[0]))) {
            return Emission::accepted(drafts, 0);
        }
        Emission::rejected(target.sample_residual(1.0, draft, 1.0, chance))
    }

    fn law(&mut self, problem: &Problem, drafts: &[Token]) -> Law {
        let (target, draft) = (problem.target, problem.proposal.law(0));
        let accept = capped_ratio(target.probability(drafts[0]), draft.probability(drafts[0]));
        Law::new(target.vocabulary(), [(drafts[0], accept)], 1.0 - accept, || {
            target.excess_law(1.0, |token| draft.probability(token))
        })
    }
}
