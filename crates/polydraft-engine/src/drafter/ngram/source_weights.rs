//! Weights of the sequence's own prediction against the prediction of a table.
//!
//! Problem: repetitive text is predicted best by its own contexts, the longest first; new text by a
//! table. Which kind a sequence is becomes apparent only as it grows.
//! Source: a mixture of two predictions with a changing weight (Herbster and Warmuth 1998, fixed
//! share).
//! Method: let A be the prediction of the sequence's own contexts, B that of the table merged with
//! them (`merged.rs`), and r the escape probability of A:
//!     P = w·(A + r·B) + (1 − w)·B,
//! where w is the posterior weight of the first term given the tokens so far, with the initial
//! weight w_0 and a share s that returns to it after each token x:
//!     w ← (1 − s)·w·(A + r·B)(x) / P(x) + s·w_0.
//! There are two such weights: for contexts that occurred before and are longer than any of the
//! table, and for the rest. Without w, with A's contexts of more than four tokens before B, steps
//! at temperature 0 emitted 1.17, 2.21 and 2.75 tokens per unit of cost in SmolLM2's chats, code
//! and repeating text (a step costs 1, a drafted token 0.13; draft lengths chosen by P); with w
//! 1.17, 2.29 and 2.93; without a table 1.08, 2.25 and 2.94.
//! Complexity: both predictions at each token.
//! Deviations: none.

use polydraft::Token;

use super::merged::{TABLE_ORDER, weighted_sum};
use super::mixture::Mixture;

/// w_0: initial weights; with one half for both, the speed differs by one percent.
const INITIAL: [f64; 2] = [0.2, 0.7];
/// s: part of the weight that returns to the initial one after each token: values from 0.01 to 0.1
/// perform alike.
const SHARE: f64 = 0.05;
/// Probability of a token that neither source predicts, so that no weight becomes zero.
const FLOOR: f64 = 1e-5;

/// Weights of a sequence's own prediction.
#[derive(Debug, Clone)]
pub struct SourceWeights([f64; 2]);

impl SourceWeights {
    /// Creates the initial weights.
    pub fn new() -> Self {
        Self(INITIAL)
    }

    /// Returns the weighted prediction of both sources.
    pub fn mixed(&self, mixture: Mixture, prediction: Vec<(Token, f64)>) -> Vec<(Token, f64)> {
        let weight = self.0[weight_index(&mixture)];
        let rest = 1.0 - weight + weight * mixture.escape();
        weighted_sum(&mixture.distribution(), weight, prediction.into_iter(), rest)
    }

    /// Updates the weight with the token that came next.
    pub fn learn(&mut self, mixture: &Mixture, prediction: &[(Token, f64)], token: Token) {
        let index = prediction.binary_search_by_key(&token, |(other, _)| *other);
        let by_table = index.map_or(0.0, |index| prediction[index].1);
        let by_mixture = mixture.probability(token) + mixture.escape() * by_table + FLOOR;
        let weight_index = weight_index(mixture);
        let weight = &mut self.0[weight_index];
        let part =
            *weight * by_mixture / (*weight * by_mixture + (1.0 - *weight) * (by_table + FLOOR));
        *weight = (1.0 - SHARE) * part + SHARE * INITIAL[weight_index];
    }
}

/// Returns the index of the weight that applies.
fn weight_index(mixture: &Mixture) -> usize {
    usize::from(mixture.longest() > TABLE_ORDER)
}
