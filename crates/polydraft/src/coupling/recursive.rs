//! Recursive rejection: each rejected draft leaves a residual target for the next.
//!
//! Problem: drafts drawn one after the other, i.i.d., without replacement, or each from its own law; go through
//! them with single-draft speculative sampling against what the target has left.
//! Source: Miao et al. 2023 (SpecInfer), multi-step speculative sampling; Jeon et al. 2024 (RSD) and Chen et al.
//! 2024 (Sequoia) without replacement.
//! Complexity: one pass per rejected draft, without writing (distinct drafts: with writing).
//! Deviations: (1) with one law q the residual after any number of rejections is (p − c·q)+ normalised, where c
//! grows by (mass of the residual)/(mass that q has left) at each rejection; so only c is kept. Without replacement
//! the tokens removed from q are those that were rejected, whose residual is 0 from then on, so the same form holds.

use super::{Emission, Law, Problem, TokenRule, capped_ratio};
use crate::chance::Chance;
use crate::drafting::{Drafting, outside_mass};
use crate::{Distribution, Result, Token};
use serde::{Deserialize, Serialize};

/// The rule has no settings: the drafting scheme says how drafts were drawn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {}

impl Settings {
    /// Makes the rule ready to work.
    ///
    /// # Errors
    /// None.
    pub fn build(&self) -> Result<Box<dyn TokenRule>> {
        Ok(Box::new(Recursive { residual: Residual::default() }))
    }
}

/// What rejections have left of the target: (p − `spent`·q)+, or `own` for distinct drafts; its sum is `mass`.
#[derive(Default)]
struct Residual {
    spent: f64,
    mass: f64,
    own: Vec<f64>,
}

impl Residual {
    fn reset(&mut self, problem: &Problem) {
        (self.spent, self.mass) = (0.0, 1.0);
        self.own.clear();
        if problem.proposal.scheme() == Drafting::Distinct {
            self.own.resize(problem.target.vocabulary(), 0.0);
            problem.target.support().for_each(|(token, p)| self.own[token as usize] = p);
        }
    }

    /// The part of the target that is left at a token, unnormalised.
    fn of(&self, problem: &Problem, token: Token) -> f64 {
        match self.own.get(token as usize) {
            Some(left) => *left,
            None => {
                let q = problem.proposal.law(0).probability(token);
                (problem.target.probability(token) - self.spent * q).max(0.0)
            }
        }
    }

    /// The probability of accepting draft `index`, all before it having been rejected.
    fn accept(&self, problem: &Problem, drafts: &[Token], index: usize) -> f64 {
        let q = problem.proposal.law(index).probability(drafts[index]);
        capped_ratio(self.of(problem, drafts[index]) * left_to_draw(problem, &drafts[..index]), self.mass * q)
    }

    /// Takes note of the rejection of draft `index`, before which `removed` were drawn.
    fn reject(&mut self, problem: &Problem, removed: &[Token], index: usize) {
        let draft = problem.proposal.law(index);
        if self.own.is_empty() {
            self.spent += self.mass / left_to_draw(problem, removed);
            self.mass = spread(problem.target, draft, self.spent);
        } else {
            let mass = self.mass;
            draft
                .support()
                .for_each(|(t, q)| self.own[t as usize] = (self.own[t as usize] - mass * q).max(0.0));
            self.mass = self.own.iter().sum();
        }
    }
}

/// Σ (p − spent·q)+.
fn spread(target: &Distribution, draft: &Distribution, spent: f64) -> f64 {
    let Some((p, q)) = target.dense().zip(draft.dense()) else {
        return target.residual_mass(1.0, draft, spent);
    };
    let ((p, p_rest), (q, q_rest)) = (p.as_chunks::<8>(), q.as_chunks::<8>());
    let mut lanes = [0.0; 8];
    for (p, q) in p.iter().zip(q) {
        for i in 0..8 {
            let left = p[i] - spent * q[i];
            lanes[i] += if left > 0.0 { left } else { 0.0 };
        }
    }
    let rest: f64 = p_rest.iter().zip(q_rest).map(|(p, q)| (p - spent * q).max(0.0)).sum();
    rest + lanes.iter().sum::<f64>()
}

/// The mass of the draft's law that the drafts `before` have not removed.
fn left_to_draw(problem: &Problem, before: &[Token]) -> f64 {
    if problem.proposal.scheme() != Drafting::WithoutReplacement || before.is_empty() {
        return 1.0;
    }
    let law = problem.proposal.law(0);
    let left = 1.0 - before.iter().map(|&token| law.probability(token)).sum::<f64>();
    // A small difference has lost its digits.
    if left > 1e-3 { left } else { outside_mass(law, before) }
}

struct Recursive {
    residual: Residual,
}

impl TokenRule for Recursive {
    fn name(&self) -> &'static str {
        "recursive"
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        problem.require(self.name(), &[Drafting::Iid, Drafting::WithoutReplacement, Drafting::Distinct])
    }

    /// A rejection leaves (residual mass after)/(before), and the product of these telescopes. Without replacement
    /// the residuals depend on the drafts: no formula.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let count = problem.proposal.count();
        if problem.proposal.scheme() == Drafting::WithoutReplacement && count > 1 {
            return None;
        }
        self.residual.reset(problem);
        (0..count).for_each(|index| self.residual.reject(problem, &[], index));
        Some(1.0 - self.residual.mass)
    }

    fn emit(&mut self, problem: &Problem, drafts: &[Token], chance: &mut dyn Chance) -> Emission {
        self.residual.reset(problem);
        for index in 0..drafts.len() {
            if chance.coin(self.residual.accept(problem, drafts, index)) {
                return Emission::accepted(drafts, index);
            }
            self.residual.reject(problem, &drafts[..index], index);
        }
        let covered = |token| problem.target.probability(token) - self.residual.of(problem, token);
        Emission::rejected(problem.target.sample_excess(1.0, covered, chance))
    }

    fn law(&mut self, problem: &Problem, drafts: &[Token]) -> Law {
        self.residual.reset(problem);
        let mut left = 1.0;
        let mut accepted = Vec::with_capacity(drafts.len());
        for index in 0..drafts.len() {
            let mass = left * self.residual.accept(problem, drafts, index);
            accepted.push((drafts[index], mass));
            left -= mass;
            self.residual.reject(problem, &drafts[..index], index);
        }
        let covered = |token| problem.target.probability(token) - self.residual.of(problem, token);
        Law::new(problem.target.vocabulary(), accepted, left, || problem.target.excess_law(1.0, covered))
    }
}
