//! The race: draws without replacement at the best acceptance of any rule.
//!
//! Problem: draws without replacement are not independent, so priorities (`priority`) do not apply;
//! recursive rejection loses 0.036 of acceptance at two draws on the demo pair.
//! Source: ours: one node of pooled verification; `crate::race`, `docs/theory.md`. For two draws
//! the acceptance is the optimum of Hu et al. 2025 within 1e-5; more draws are taken in pairs, each
//! with the best acceptance given the pairs before.
//! Complexity: three passes over the support for each pair.

use super::{Emission, EmittedDistribution, Problem, Rule};
use crate::drafting::{Drafting, Draws};
use crate::race::layer::{Drawn, Layer};
use crate::random::RandomSource;
use crate::{Result, Token};

/// The rule, with its buffers.
#[derive(Debug, Default)]
pub struct Race {
    layer: Layer,
}

impl Race {
    /// Divides the unit among drafts. Returns the share of each.
    fn divide(&mut self, problem: &Problem, drafts: &[Token]) -> Vec<f64> {
        let drawn = self.start(problem, drafts);
        self.layer.divide(&[Some(drawn)]);
        let mut known: Vec<Token> = Vec::new();
        let share = |token: &Token| match known.contains(token) {
            true => 0.0,
            false => {
                known.push(*token);
                self.layer.weight(0, *token)
            }
        };
        drafts.iter().map(share).collect()
    }

    fn start<'a>(&mut self, problem: &Problem<'a>, tokens: &'a [Token]) -> Drawn<'a> {
        let draft = problem.proposal.distribution(0);
        self.layer.start(&[(1.0, Some((problem.target, draft)))]);
        Drawn { draft, draws: problem.proposal.draws(), tokens }
    }
}

impl Rule for Race {
    fn name(&self) -> &'static str {
        "race"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        let schemes = Drafting::ALL.into_iter().filter(|scheme| *scheme != Drafting::Distinct);
        draws.require(self.name(), &schemes.collect::<Vec<_>>())
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    /// In closed form where one race decides: not for more than two draws without replacement.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let draws = problem.proposal.draws();
        if draws.scheme == Drafting::WithoutReplacement && draws.count > 2 {
            return None;
        }
        // Which tokens were drawn does not matter for the first race, but their number.
        let draft = problem.proposal.distribution(0);
        let tokens = match draws.scheme {
            Drafting::Iid => vec![draft.argmax(); draws.count],
            _ => draft.most_likely(draws.count),
        };
        let drawn = self.start(problem, &tokens);
        self.layer.prepare(&[Some(drawn)], 0);
        Some(self.layer.accepted())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let mut shares = self.divide(problem, drafts);
        shares.push(self.layer.capacity());
        let index = rng.pick(&shares);
        if index < drafts.len() {
            return Emission::accepted(drafts, index);
        }
        Emission::rejected(self.layer.emit(0, problem.target, rng))
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let shares = self.divide(problem, drafts);
        let accepted = drafts.iter().copied().zip(shares);
        EmittedDistribution::new(
            problem.target.vocabulary(),
            accepted,
            self.layer.capacity(),
            || self.layer.rest(0, problem.target),
        )
    }
}
