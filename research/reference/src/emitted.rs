//! The distribution of a rule's emitted token over all drafts, by enumeration.
//!
//! Problem: compute the distribution of the emitted token and the acceptance from the rule's
//! implementation.
//! Method: enumerate every random decision of drafting and of the rule. Source: ours.
//! Complexity: number of tuples times number of decision sequences.

use polydraft::coupling::{Rule, couple};
use polydraft::{Error, Problem, Result, enumerate};

use crate::sets::how_many;

/// Result of an enumeration.
#[derive(Debug, Clone, PartialEq)]
pub struct Emitted {
    /// Distribution of the emitted token, shape `[vocabulary]`.
    pub probs: Vec<f64>,
    /// Probability that a draft is accepted.
    pub acceptance: f64,
}

/// Maximum number of enumerated tuples.
const TUPLES: f64 = 100_000.0;

/// Enumerates a rule on a problem.
///
/// # Errors
/// More than 100,000 tuples; a problem that the rule does not support.
pub fn emitted(rule: &mut dyn Rule, problem: Problem) -> Result<Emitted> {
    let bound = problem.proposal.tuple_bound();
    if bound > TUPLES {
        let expected = format!("at most {TUPLES} tuples of drafts");
        return Err(Error::TooLarge { operation: "enumeration", expected, got: how_many(bound) });
    }
    let mut coupling = couple(rule, problem)?;
    let mut all = Emitted { probs: vec![0.0; problem.target.vocabulary()], acceptance: 0.0 };
    for (drawn, drafts) in problem.proposal.tuples() {
        for (decided, emission) in enumerate(|rng| coupling.emit(&drafts, rng)) {
            let emission = emission?;
            all.probs[emission.token as usize] += drawn * decided;
            if emission.accepted.is_some() {
                all.acceptance += drawn * decided;
            }
        }
    }
    Ok(all)
}

impl Emitted {
    /// Returns Σ |emitted − target|.
    pub fn deviation(&self, problem: &Problem) -> f64 {
        (0..)
            .zip(&self.probs)
            .map(|(token, probs)| (probs - problem.target.probability(token)).abs())
            .sum()
    }
}
