//! Solutions of the optimal transport problem for a tuple of drafts, and rules that use them.
//!
//! Problem: find s(i, ω) ≥ 0 for tokens i of tuples ω with Σ_ω s(i, ω) ≤ p_i and Σ_i s(i, ω) ≤
//! Pr(ω), and Σ s as large as possible. Given ω, token i is emitted with probability s(i, ω)/Pr(ω);
//! otherwise a token is drawn from (p − Σ_ω s)+, normalised.
//! Source: Sun et al. 2023 (SpecTr), with inequalities as in Hu et al. 2025.
//! Deviations: (1) a solver's result is corrected to satisfy both constraints, first by token, then
//! by tuple: its errors reduce acceptance, but never change the distribution.

use crate::dinic::Network;
use crate::program::{Deadline, Program, Solver};
use crate::sets::{Part, TokenSets};
use polydraft::coupling::{Emission, EmittedDistribution, Rule};
use polydraft::random::RandomSource;
use polydraft::{Distribution, Draws, Problem, Result, Token};

/// The solution s, by token set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transport {
    sets: TokenSets,
    /// s of each token in each set, in the order of `sets.tokens()`.
    shares: Vec<f64>,
    /// Tokens of all sets, ascending, and Σ s of each.
    tokens: Vec<Token>,
    served: Vec<f64>,
}

impl Transport {
    /// Solves the problem by maximum flow.
    pub fn by_flow(
        operation: &'static str,
        target: &Distribution,
        sets: TokenSets,
        deadline: Deadline,
    ) -> Result<Self> {
        let (tokens, locations) = sets.distinct();
        let first_set = tokens.len();
        let (source, sink) = (first_set + sets.len(), first_set + sets.len() + 1);
        let mut network = Network::new(sink + 1, locations.len() + tokens.len() + sets.len());
        for set in 0..sets.len() {
            for &location in &locations[sets.range(set)] {
                network.edge(location as usize, first_set + set, f64::INFINITY, 0.0);
            }
        }
        for (location, &token) in tokens.iter().enumerate() {
            network.edge(source, location, target.probability(token), 0.0);
        }
        for set in 0..sets.len() {
            network.edge(first_set + set, sink, sets.probability(set), 0.0);
        }
        network.fill(source, sink, operation, deadline)?;
        // Each edge has two indices.
        let shares = (0..locations.len()).map(|entry| network.flow(2 * entry)).collect();
        Ok(Self::within(target, sets, shares))
    }

    /// Solves the problem by linear program.
    pub fn by_program(
        operation: &'static str,
        target: &Distribution,
        sets: TokenSets,
        solver: Solver,
        deadline: Deadline,
    ) -> Result<Self> {
        let (tokens, locations) = sets.distinct();
        let demand: Vec<f64> = tokens.iter().map(|token| target.probability(*token)).collect();
        let mut program = Program::default();
        let mut of_token = vec![Vec::new(); tokens.len()];
        for set in 0..sets.len() {
            let probability = sets.probability(set);
            let row: Vec<_> = locations[sets.range(set)]
                .iter()
                .map(|&location| {
                    let variable =
                        program.variable(1.0, probability.min(demand[location as usize]));
                    of_token[location as usize].push((variable, 1.0));
                    (variable, 1.0)
                })
                .collect();
            if row.len() > 1 {
                program.at_most(row, probability);
            }
        }
        for (row, &demand) in of_token.into_iter().zip(&demand) {
            program.at_most(row, demand);
        }
        let shares = program.solve(operation, solver, deadline)?;
        Ok(Self::within(target, sets, shares))
    }

    /// Reduces shares until they satisfy the constraints.
    fn within(target: &Distribution, sets: TokenSets, mut shares: Vec<f64>) -> Self {
        let (tokens, locations) = sets.distinct();
        let mut served = vec![0.0; tokens.len()];
        for set in 0..sets.len() {
            let range = sets.range(set);
            for (share, &location) in shares[range.clone()].iter_mut().zip(&locations[range]) {
                // NaN counts as 0.
                *share = if *share > 0.0 { share.min(sets.probability(set)) } else { 0.0 };
                served[location as usize] += *share;
            }
        }
        let scale = |(token, served): (&Token, &f64)| {
            let demand = target.probability(*token);
            if *served > demand { demand / served } else { 1.0 }
        };
        let scales: Vec<f64> = tokens.iter().zip(&served).map(scale).collect();
        shares
            .iter_mut()
            .zip(&locations)
            .for_each(|(share, &location)| *share *= scales[location as usize]);
        served.fill(0.0);
        for set in 0..sets.len() {
            let range = sets.range(set);
            let (shares, probability) = (&mut shares[range.clone()], sets.probability(set));
            let used: f64 = shares.iter().sum();
            if used > probability {
                shares.iter_mut().for_each(|share| *share *= probability / used);
            }
            for (share, &location) in shares.iter().zip(&locations[range]) {
                served[location as usize] += share;
            }
        }
        Self { sets, shares, tokens, served }
    }

    /// Returns the acceptance, Σ s.
    pub fn acceptance(&self) -> f64 {
        self.shares.iter().sum()
    }

    /// Returns Σ s of one token.
    pub fn served(&self, token: Token) -> f64 {
        self.tokens.binary_search(&token).map_or(0.0, |location| self.served[location])
    }

    /// Returns the acceptance probabilities of the tokens of a set, given the set; empty for a set
    /// that is never drawn.
    pub fn choice(&self, tokens: &[Token]) -> Choice {
        let accepted = self.sets.find(tokens).map(|set| {
            let probability = self.sets.probability(set);
            let range = self.sets.range(set);
            let shares = self.sets.tokens()[range.clone()].iter().zip(&self.shares[range]);
            shares.map(|(&token, share)| (token, share / probability)).collect()
        });
        Choice { accepted: accepted.unwrap_or_default() }
    }
}

/// A rule that solves the full transport problem at every node, with `solve`.
pub(crate) struct WholeTransport<F> {
    name: &'static str,
    solve: F,
    transport: Transport,
}

impl<F> WholeTransport<F> {
    pub fn new(name: &'static str, solve: F) -> Self {
        Self { name, solve, transport: Transport::default() }
    }

    fn choice(&self, drafts: &[Token]) -> Choice {
        self.transport.choice(&Part::All.key(drafts).unwrap_or_default())
    }
}

impl<F: Fn(&'static str, &Problem) -> Result<Transport> + Send> Rule for WholeTransport<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn supports(&self, _: Draws) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self, problem: &Problem) -> Result<()> {
        self.transport = (self.solve)(self.name, problem)?;
        Ok(())
    }

    fn acceptance(&mut self, _: &Problem) -> Option<f64> {
        Some(self.transport.acceptance())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        self.choice(drafts).emit(drafts, problem.target, |token| self.transport.served(token), rng)
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        self.choice(drafts).distribution(problem.target, |token| self.transport.served(token))
    }
}

/// Decision of a rule for a tuple: accept one of its tokens, or none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    /// Distinct tokens of the tuple, each with the probability of accepting it.
    pub accepted: Vec<(Token, f64)>,
}

impl Choice {
    /// Draws the accepted token, if any.
    pub fn decide(&self, drafts: &[Token], rng: &mut dyn RandomSource) -> Option<Emission> {
        let mut weights: Vec<f64> =
            self.accepted.iter().map(|(_, probability)| *probability).collect();
        weights.push((1.0 - weights.iter().sum::<f64>()).max(0.0));
        let (token, _) = *self.accepted.get(rng.pick(&weights))?;
        Some(Emission { token, accepted: drafts.iter().position(|draft| *draft == token) })
    }

    /// Draws the emitted token; after a rejection from (`target` − `served`)+, normalised.
    pub fn emit(
        &self,
        drafts: &[Token],
        target: &Distribution,
        served: impl Fn(Token) -> f64,
        rng: &mut dyn RandomSource,
    ) -> Emission {
        self.decide(drafts, rng).unwrap_or_else(|| Self::reject(target, served, rng))
    }

    /// Draws the token emitted after a rejection.
    pub fn reject(
        target: &Distribution,
        served: impl Fn(Token) -> f64,
        rng: &mut dyn RandomSource,
    ) -> Emission {
        Emission { token: target.sample_excess(1.0, served, rng), accepted: None }
    }

    /// Returns the distribution of the token that [`Choice::emit`] draws.
    pub fn distribution(
        &self,
        target: &Distribution,
        served: impl Fn(Token) -> f64,
    ) -> EmittedDistribution {
        let accepted: f64 = self.accepted.iter().map(|(_, probability)| probability).sum();
        let rejected = (1.0 - accepted).max(0.0);
        let total = accepted + rejected;
        let mut probabilities = if rejected > 0.0 {
            target.excess_distribution(1.0, served)
        } else {
            vec![0.0; target.vocabulary()]
        };
        probabilities.iter_mut().for_each(|p| *p *= rejected / total);
        for &(token, probability) in &self.accepted {
            probabilities[token as usize] += probability / total;
        }
        EmittedDistribution { probabilities, accepted: accepted / total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sets::Part;
    use polydraft::Proposal;

    /// Whatever a solver returns (negative, infinite, NaN), the emitted distribution is the
    /// target's.
    #[test]
    fn incorrect_solutions_only_cost_acceptance() {
        let target = Distribution::new(vec![0.1, 0.4, 0.0, 0.5]).unwrap();
        let draft = Distribution::new(vec![0.3, 0.3, 0.2, 0.2]).unwrap();
        let proposal = Proposal::iid(&draft, 2).unwrap();
        for answers in [
            vec![0.02],
            vec![1.0],
            vec![-0.5, 1.0, f64::NAN],
            vec![f64::INFINITY, 0.01, 1e300],
            vec![0.0],
            vec![0.3, -1e-9, 0.01, 0.05, 7.0],
        ] {
            let sets = TokenSets::new("test", &proposal, Part::All, 100).unwrap();
            let shares =
                (0..sets.tokens().len()).map(|entry| answers[entry % answers.len()]).collect();
            let transport = Transport::within(&target, sets, shares);
            let mut emitted = [0.0; 4];
            let mut accepted = 0.0;
            for (probability, drafts) in proposal.tuples() {
                let choice = transport.choice(&Part::All.key(&drafts).unwrap());
                let probs = choice.distribution(&target, |token| transport.served(token));
                accepted += probability * probs.accepted;
                (0..4).for_each(|token| emitted[token] += probability * probs.probabilities[token]);
            }
            for (token, emitted) in (0..).zip(emitted) {
                assert!(
                    (emitted - target.probability(token)).abs() < 1e-14,
                    "{answers:?} {token} {emitted}"
                );
            }
            assert!((accepted - transport.acceptance()).abs() < 1e-14);
        }
    }
}
