//! Checks that the conformance runner detects wrong rules, each with one planted fault.

use polydraft::conformance::{Case, Failure, cases};
use polydraft::coupling::{Emission, EmittedDistribution, Problem, Rule};
use polydraft::random::RandomSource;
use polydraft::{Distribution, Drafting, Draws, Result, Token};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Selects the draft of the highest id, then uses single-draft speculative sampling against the
/// distribution of the selection.
///
/// Token i is selected with probability m_i = Z_i^n − Z_{i−1}^n. The faults change what follows.
struct HighestId {
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// After a rejection, draws from the target instead of the residual.
    WrongResidual,
    /// Accepts ten per cent more often than allowed.
    AcceptsTooOften,
    /// m is wrong by a factor of 1 + 1e-6 for one token.
    WrongMass,
    /// `distribution` does not renormalise the residual.
    WrongDistribution,
    /// `acceptance` reports a value that is too large.
    OverstatedAcceptance,
    /// The accepted index is not that of the token.
    WrongIndex,
}

impl HighestId {
    fn mass(&self, problem: &Problem, token: Token) -> f64 {
        let draft = problem.proposal.distribution(0);
        let below: f64 = (0..token).map(|t| draft.probability(t)).sum();
        let count = problem.proposal.count() as i32;
        let mass = (below + draft.probability(token)).powi(count) - below.powi(count);
        if self.fault == Fault::WrongMass && token == 1 { mass * (1.0 + 1e-6) } else { mass }
    }

    fn accept(&self, problem: &Problem, token: Token) -> f64 {
        let (p, m) = (problem.target.probability(token), self.mass(problem, token));
        let accept = if p >= m { 1.0 } else { p / m };
        if self.fault == Fault::AcceptsTooOften { (1.1 * accept).min(1.0) } else { accept }
    }
}

impl Rule for HighestId {
    fn name(&self) -> &'static str {
        "highest-id"
    }

    fn supports(&self, draws: Draws) -> Result<()> {
        draws.require(self.name(), &[Drafting::Iid])
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let tokens = 0..problem.target.vocabulary() as Token;
        let sum: f64 = tokens.map(|t| self.mass(problem, t) * self.accept(problem, t)).sum();
        Some(if self.fault == Fault::OverstatedAcceptance { sum + 1e-9 } else { sum })
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let best = (0..drafts.len()).max_by_key(|&index| drafts[index]).unwrap_or(0);
        if rng.coin(self.accept(problem, drafts[best])) {
            let index = if self.fault == Fault::WrongIndex { 0 } else { best };
            return Emission { token: drafts[best], accepted: Some(index) };
        }
        let token = match self.fault {
            Fault::WrongResidual => problem.target.sample(rng),
            _ => problem.target.sample_excess(1.0, |t| self.mass(problem, t), rng),
        };
        Emission { token, accepted: None }
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let best = drafts.iter().copied().max().unwrap_or(0);
        let accept = self.accept(problem, best);
        let residual = match self.fault {
            Fault::WrongResidual => problem.target.to_vec(),
            Fault::WrongDistribution => problem
                .target
                .to_vec()
                .into_iter()
                .zip(0..)
                .map(|(p, t)| (p - self.mass(problem, t)).max(0.0))
                .collect(),
            _ => problem.target.excess_distribution(1.0, |t| self.mass(problem, t)),
        };
        let mut probabilities: Vec<f64> =
            residual.into_iter().map(|p| p * (1.0 - accept)).collect();
        probabilities[best as usize] += accept;
        EmittedDistribution { probabilities, accepted: accept }
    }
}

/// All failures over many cases.
fn failures(fault: Fault) -> Vec<Failure> {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut rule = HighestId { fault };
    let mut failures = Vec::new();
    for count in 1..=3 {
        for case in cases(3, Drafting::Iid, count, 40, &mut rng).unwrap() {
            failures.extend(case.check(&mut rule).err());
        }
    }
    failures
}

#[test]
fn accepts_the_rule_without_faults() {
    assert_eq!(failures(Fault::None), []);
}

#[test]
fn detects_wrong_emitted_distributions() {
    for fault in [Fault::WrongResidual, Fault::AcceptsTooOften, Fault::WrongMass] {
        let failures = failures(fault);
        let detected = failures
            .iter()
            .filter(|failure| matches!(failure, Failure::WrongDistribution { .. }))
            .count();
        assert!(detected > 10, "{fault:?}: {detected} of {}", failures.len());
    }
}

#[test]
fn detects_inconsistent_reported_values() {
    for fault in [Fault::WrongDistribution, Fault::OverstatedAcceptance, Fault::WrongIndex] {
        let failures = failures(fault);
        let detected = failures
            .iter()
            .filter(|failure| matches!(failure, Failure::Inconsistent { .. }))
            .count();
        assert!(detected > 10, "{fault:?}: {detected} of {}", failures.len());
    }
}

/// Reports every emitted token as an accepted draft.
struct AlwaysAccepted;

impl Rule for AlwaysAccepted {
    fn name(&self) -> &'static str {
        "always-accepted"
    }

    fn supports(&self, _: Draws) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    fn acceptance(&mut self, _: &Problem) -> Option<f64> {
        Some(1.0)
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let token = problem.target.sample(rng);
        Emission {
            token,
            accepted: Some(drafts.iter().position(|draft| *draft == token).unwrap_or(0)),
        }
    }

    fn distribution(&mut self, problem: &Problem, _: &[Token]) -> EmittedDistribution {
        EmittedDistribution { probabilities: problem.target.to_vec(), accepted: 1.0 }
    }
}

#[test]
fn detects_acceptance_of_tokens_that_were_not_drafted() {
    let probs = |values: [f64; 2]| Distribution::new(values.to_vec()).unwrap();
    let (target, draft) = (probs([0.5, 0.5]), probs([0.9, 0.1]));
    let case = Case { target, drafts: vec![draft], scheme: Drafting::Iid, count: 1 };
    assert!(matches!(case.check(&mut AlwaysAccepted), Err(Failure::Inconsistent { .. })));
}
