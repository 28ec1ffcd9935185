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
    /// The first race, which is the same for all drafts.
    first: Layer,
    /// Layer of the last drafts, where further races depend on them.
    all: Layer,
}

impl Race {
    /// Divides the unit among drafts. Returns the share of each.
    fn divide(&mut self, problem: &Problem, drafts: &[Token]) -> Vec<f64> {
        let proposal = problem.proposal;
        let drawn =
            Drawn { draft: proposal.distribution(0), draws: proposal.draws(), tokens: drafts };
        let drawn = &[Some(drawn)];
        if has_one_race(proposal.draws()) {
            self.first.take_back();
            self.first.share(drawn);
        } else {
            self.all.clone_from(&self.first);
            self.all.share(drawn);
            self.all.divide_from(drawn, 1);
        }
        let mut known: Vec<Token> = Vec::new();
        let layer = self.layer(problem);
        let share = |token: &Token| match known.contains(token) {
            true => 0.0,
            false => {
                known.push(*token);
                layer.weight(0, *token)
            }
        };
        drafts.iter().map(share).collect()
    }

    /// The layer that the last drafts divided.
    fn layer(&self, problem: &Problem) -> &Layer {
        if has_one_race(problem.proposal.draws()) { &self.first } else { &self.all }
    }
}

/// Whether one race decides.
fn has_one_race(draws: Draws) -> bool {
    draws.scheme != Drafting::WithoutReplacement || draws.count <= 2
}

impl Rule for Race {
    fn name(&self) -> &'static str {
        "race"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        let schemes = Drafting::ALL.into_iter().filter(|scheme| *scheme != Drafting::Distinct);
        draws.require(self.name(), &schemes.collect::<Vec<_>>())
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        let (draft, draws) = (problem.proposal.distribution(0), problem.proposal.draws());
        self.first.start(&[(1.0, Some((problem.target, draft)))]);
        self.first.prepare(&[Some(Drawn { draft, draws, tokens: &[] })], 0);
        Ok(())
    }

    /// In closed form where one race decides: not for more than two draws without replacement.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        has_one_race(problem.proposal.draws()).then(|| self.first.accepted())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let mut shares = self.divide(problem, drafts);
        shares.push(self.layer(problem).capacity());
        let index = rng.pick(&shares);
        if index < drafts.len() {
            return Emission::accepted(drafts, index);
        }
        Emission::rejected(self.layer(problem).emit(0, problem.target, &[], rng))
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let shares = self.divide(problem, drafts);
        let accepted = drafts.iter().copied().zip(shares);
        let layer = self.layer(problem);
        let rest = || layer.rest(0, problem.target);
        EmittedDistribution::new(problem.target.vocabulary(), accepted, layer.capacity(), rest)
    }
}
