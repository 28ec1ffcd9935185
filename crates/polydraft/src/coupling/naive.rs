//! Naive speculative sampling: the baseline of all rules.
//!
//! Problem: draw y from the target; it counts as accepted if it was drafted.
//! Source: Miao et al. 2023 (SpecInfer), naive sampling (NSS). α = Σ p_i Pr(i is drafted).
//! Complexity: O(log V + n) to emit, one pass for the acceptance.
//! Deviations: none.

use super::{Emission, EmittedDistribution, Problem, Rule};
use crate::drafting::{Drafting, Draws, hit_probability, mass_without};
use crate::random::RandomSource;
use crate::{Result, Token};

/// The naive rule.
#[derive(Default)]
pub struct Naive;

impl Rule for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn supports(&self, _: Draws) -> Result<()> {
        Ok(())
    }

    fn prepare(&mut self, _: &Problem) -> Result<()> {
        Ok(())
    }

    fn acceptance(&mut self, problem: &Problem) -> Option<f64> {
        let (target, proposal) = (problem.target, &problem.proposal);
        let (draft, count) = (proposal.distribution(0), proposal.count());
        let drafted: Box<dyn Fn(Token) -> f64> =
            match proposal.scheme() {
                Drafting::Iid => Box::new(|token| hit_probability(draft.probability(token), count)),
                Drafting::Distinct => Box::new(|token| {
                    1.0 - (0..count)
                        .map(|i| 1.0 - proposal.distribution(i).probability(token))
                        .product::<f64>()
                }),
                Drafting::Greedy | Drafting::Hub => {
                    let hubs = draft.most_likely(count - 1);
                    let rest = mass_without(draft, &hubs);
                    let drawn = move |q: f64| if rest > 0.0 { q / rest } else { 0.0 };
                    Box::new(move |token| {
                        if hubs.contains(&token) { 1.0 } else { drawn(draft.probability(token)) }
                    })
                }
                Drafting::TopK => {
                    let drafted = draft.most_likely(count);
                    Box::new(move |token| f64::from(u8::from(drafted.contains(&token))))
                }
                Drafting::WithoutReplacement if count == 1 => {
                    Box::new(|token| draft.probability(token))
                }
                Drafting::WithoutReplacement => return None,
            };
        Some(target.support().map(|(token, p)| p * drafted(token)).sum())
    }

    fn emit(
        &mut self,
        problem: &Problem,
        drafts: &[Token],
        rng: &mut dyn RandomSource,
    ) -> Emission {
        let token = problem.target.sample(rng);
        Emission { token, accepted: drafts.iter().position(|draft| *draft == token) }
    }

    fn distribution(&mut self, problem: &Problem, drafts: &[Token]) -> EmittedDistribution {
        let probabilities = problem.target.to_vec();
        let first = |index: usize| !drafts[..index].contains(&drafts[index]);
        let accepted = (0..drafts.len())
            .filter(|&i| first(i))
            .map(|i| probabilities[drafts[i] as usize])
            .sum();
        EmittedDistribution { probabilities, accepted }
    }
}
