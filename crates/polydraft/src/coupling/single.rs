//! Single-draft speculative sampling.
//!
//! Problem: one draft x ~ q; emit y ~ p with y = x as often as possible.
//! Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2.
//! Complexity: O(1) to emit (expected), one pass for the acceptance Σ min(p, q).
//! Deviations: none.

use super::Problem;
use super::canonical::Selector;
use crate::drafting::{Drafting, Draws};
use crate::random::RandomSource;
use crate::{Error, Result, Token};

/// The selector of single-draft rules: m is the draft's distribution.
#[derive(Default)]
pub struct Single;

impl Selector for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(self.name(), &Drafting::DRAWN)?;
        if draws.count == 1 {
            return Ok(());
        }
        let (expected, got) = ("1 draft".to_owned(), draws.count.to_string());
        Err(Error::Unsupported { operation: self.name(), expected, got })
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    fn select(&mut self, _: &Problem, _: &[Token], _: &mut dyn RandomSource) -> usize {
        0
    }

    fn selection(&mut self, _: &Problem, _: &[Token]) -> Vec<f64> {
        vec![1.0]
    }

    fn selected(&self, problem: &Problem, token: Token) -> f64 {
        problem.proposal.distribution(0).probability(token)
    }
}
