//! The canonical form of a rule: select one draft, then single-draft speculative sampling on it.
//!
//! Problem: any selection of one of the drafts makes a valid rule if the distribution m of the
//! selected token is known: accept it with probability min(1, p/m), else emit from (p − m)+
//! normalised.
//! Source: Khisti et al. 2025, theorem 1: every rule of the highest acceptance can be run in this
//! form. Acceptance is Σ min(p, m).
//! Complexity: the cost of the selection, and one draw from the residual.
//! Deviations: (1) a selector may accept less than min(1, p/m), as the truncated alphabet of Khisti
//! et al. does.

use super::{Emission, EmittedDistribution, Problem, Rule, capped_ratio};
use crate::drafting::Draws;
use crate::random::RandomSource;
use crate::{Result, Token};

/// Selects one of the drafts, and reports the distribution of the selected token.
pub trait Selector: Send {
    /// The name of the rule built from it.
    fn name(&self) -> &'static str;

    /// Implements [`Rule::supports`].
    ///
    /// # Errors
    /// An unsupported drafting scheme or number of drafts.
    fn supports(&self, draws: Draws) -> Result<()>;

    /// Implements [`Rule::prepare`].
    ///
    /// # Errors
    /// A node that is too large for the settings.
    fn prepare(&mut self, problem: &Problem) -> Result<()>;

    /// Selects a draft; returns its index.
    fn select(&mut self, problem: &Problem, drafts: &[Token], rng: &mut dyn RandomSource) -> usize;

    /// The probability of each draft to be selected, given the drafts: the distribution of
    /// [`select`](Self::select).
    fn selection(&mut self, problem: &Problem, drafts: &[Token]) -> Vec<f64>;

    /// m: the probability that a token is selected, over all drafts.
    fn selected(&self, problem: &Problem, token: Token) -> f64;

    /// The probability of accepting a token once it is selected.
    fn accept(&self, problem: &Problem, token: Token) -> f64 {
        capped_ratio(problem.target.probability(token), self.selected(problem, token))
    }

    /// The part of a token's target probability that acceptances cover; values above it count as
    /// all of it.
    fn covered(&self, problem: &Problem, token: Token) -> f64 {
        self.selected(problem, token)
    }
}

/// The rule built from a selector.
#[derive(Debug, Default)]
pub struct Canonical<S>(pub S);

impl<S: Selector> Rule for Canonical<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        self.0.supports(draws)
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        self.0.prepare(problem)
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        Some(problem.target.support().map(|(token, p)| p.min(self.0.covered(problem, token))).sum())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let index = if drafts.len() > 1 { self.0.select(problem, drafts, rng) } else { 0 };
        if rng.coin(self.0.accept(problem, drafts[index])) {
            return Emission::accepted(drafts, index);
        }
        Emission::rejected(problem.target.sample_excess(
            1.0,
            |token| self.0.covered(problem, token),
            rng,
        ))
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let selection =
            if drafts.len() > 1 { self.0.selection(problem, drafts) } else { vec![1.0] };
        let mut rejection = 0.0;
        let accepted: Vec<_> = drafts
            .iter()
            .zip(selection)
            .map(|(&token, selected)| {
                let accept = self.0.accept(problem, token);
                rejection += selected * (1.0 - accept);
                (token, selected * accept)
            })
            .collect();
        let target = problem.target;
        EmittedDistribution::new(target.vocabulary(), accepted, rejection, || {
            target.excess_distribution(1.0, |token| self.0.covered(problem, token))
        })
    }
}
