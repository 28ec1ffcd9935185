//! Recursive rejection: each rejected draft leaves a residual target for the next.
//!
//! Problem: drafts drawn one after the other, i.i.d., without replacement, or each from its own
//! distribution; try them in turn with single-draft speculative sampling against the residual
//! target.
//! Source: Miao et al. 2023 (SpecInfer), multi-step speculative sampling; Jeon et al. 2024 (RSD)
//! and Chen et al. 2024 (Sequoia) without replacement.
//! Complexity: one pass per rejected draft, which stores the residual only for distinct drafts; a
//! sort of the support for the acceptance of two drafts without replacement.
//! Deviations: (1) drafts from one distribution: see `residual`.

use super::{Emission, EmittedDistribution, Problem, Rule, capped_ratio};
use crate::drafting::{Drafting, Draws, remaining_mass};
use crate::random::RandomSource;
use crate::residual::Residual;
use crate::{Distribution, Result, Token};

/// The residual of the target after rejections.
enum TargetResidual {
    /// Drafts from one distribution.
    SharedDraft(Residual),
    /// Distinct drafts: the dense residual, shape `[vocabulary]`, and its sum.
    Distinct(Vec<f64>, f64),
}

impl TargetResidual {
    fn new(problem: &Problem) -> Self {
        match problem.proposal.scheme() {
            Drafting::Distinct => Self::Distinct(problem.target.to_vec(), 1.0),
            _ => Self::SharedDraft(Residual::default()),
        }
    }

    fn mass(&self) -> f64 {
        match self {
            Self::SharedDraft(residual) => residual.mass,
            Self::Distinct(_, mass) => *mass,
        }
    }

    /// The unnormalised residual of a token.
    fn at(&self, problem: &Problem, token: Token) -> f64 {
        match self {
            Self::SharedDraft(residual) => {
                let q = problem.proposal.distribution(0).probability(token);
                residual.at(problem.target.probability(token), q)
            }
            Self::Distinct(masses, _) => masses[token as usize],
        }
    }

    /// The probability of accepting draft `index` after all before it were rejected.
    fn accept(&self, problem: &Problem, drafts: &[Token], index: usize) -> f64 {
        let q = problem.proposal.distribution(index).probability(drafts[index]);
        capped_ratio(
            self.at(problem, drafts[index]) * drawable_mass(problem, &drafts[..index]),
            self.mass() * q,
        )
    }

    /// Updates the residual after the rejection of draft `index`, before which `removed` were
    /// drawn.
    fn reject(&mut self, problem: &Problem, removed: &[Token], index: usize) {
        let draft = problem.proposal.distribution(index);
        match self {
            Self::SharedDraft(residual) => {
                residual.reject(problem.target, draft, drawable_mass(problem, removed))
            }
            Self::Distinct(masses, mass) => {
                draft.support().for_each(|(t, q)| {
                    masses[t as usize] = (masses[t as usize] - *mass * q).max(0.0)
                });
                *mass = masses.iter().sum();
            }
        }
    }
}

/// The mass of the draft's distribution without the drafts `before`, where draws are without
/// replacement.
fn drawable_mass(problem: &Problem, before: &[Token]) -> f64 {
    if problem.proposal.scheme() != Drafting::WithoutReplacement || before.is_empty() {
        return 1.0;
    }
    remaining_mass(problem.proposal.distribution(0), before)
}

/// The acceptance of two drafts without replacement.
///
/// A first draft x is rejected with mass (q(x) − p(x))+, which leaves r = (p − q)+ normalised for
/// every x. The second is drawn from q/(1 − q(x)), and no token with r > 0 can be rejected first: Σ
/// over x of (q(x) − p(x))+ · Σ min(r, q/(1 − q(x))).
fn acceptance_of_two(target: &Distribution, draft: &Distribution) -> f64 {
    let mut first = 0.0;
    // Tokens of the residual, by r/q without the normalisation; and the rejected masses.
    let (mut residual_tokens, mut rejected) = (Vec::new(), Vec::new());
    for (token, q) in draft.support() {
        let p = target.probability(token);
        first += p.min(q);
        match p > q {
            true => residual_tokens.push(((p - q) / q, p - q, q)),
            false if q > p => rejected.push((q - p, remaining_mass(draft, &[token]))),
            false => {}
        }
    }
    let new: f64 = target.support().map(|(t, p)| (p - draft.probability(t)).max(0.0)).sum();
    if new <= 0.0 || draft.support_size() < 2 {
        return first;
    }
    residual_tokens.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    // Σ r over the first tokens, and Σ q over the rest.
    let mut below = vec![(0.0, 0.0); residual_tokens.len() + 1];
    for (i, (_, r, _)) in residual_tokens.iter().enumerate() {
        below[i + 1].0 = below[i].0 + r / new;
    }
    for (i, (_, _, q)) in residual_tokens.iter().enumerate().rev() {
        below[i].1 = below[i + 1].1 + q;
    }
    let second = rejected.iter().map(|(mass, open)| {
        let (r, q) = below[residual_tokens.partition_point(|(ratio, _, _)| ratio * open <= new)];
        mass * (r + q / open)
    });
    first + second.sum::<f64>()
}

/// The rule for all supported drafting schemes.
#[derive(Default)]
pub struct Recursive;

impl Rule for Recursive {
    fn name(&self) -> &'static str {
        "recursive"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(
            self.name(),
            &[Drafting::Iid, Drafting::WithoutReplacement, Drafting::Distinct],
        )
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    /// A rejection leaves (residual mass after)/(before), and the product of these telescopes.
    /// Without replacement the residuals of a third draft depend on the first, so there is no
    /// formula.
    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let count = problem.proposal.count();
        if problem.proposal.scheme() == Drafting::WithoutReplacement && count > 1 {
            return (count == 2)
                .then(|| acceptance_of_two(problem.target, problem.proposal.distribution(0)));
        }
        let mut residual = TargetResidual::new(problem);
        (0..count).for_each(|index| residual.reject(problem, &[], index));
        Some(1.0 - residual.mass())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let mut residual = TargetResidual::new(problem);
        for index in 0..drafts.len() {
            if rng.coin(residual.accept(problem, drafts, index)) {
                return Emission::accepted(drafts, index);
            }
            residual.reject(problem, &drafts[..index], index);
        }
        let covered = |token| problem.target.probability(token) - residual.at(problem, token);
        Emission::rejected(problem.target.sample_excess(1.0, covered, rng))
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let mut residual = TargetResidual::new(problem);
        let mut remaining = 1.0;
        let mut accepted = Vec::with_capacity(drafts.len());
        for index in 0..drafts.len() {
            let mass = remaining * residual.accept(problem, drafts, index);
            accepted.push((drafts[index], mass));
            remaining -= mass;
            residual.reject(problem, &drafts[..index], index);
        }
        let covered = |token| problem.target.probability(token) - residual.at(problem, token);
        EmittedDistribution::new(problem.target.vocabulary(), accepted, remaining, || {
            problem.target.excess_distribution(1.0, covered)
        })
    }
}
