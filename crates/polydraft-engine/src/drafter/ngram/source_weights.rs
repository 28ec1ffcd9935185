//! How far a sequence is trusted to say what it said before, against what is known beforehand.
//!
//! Problem: text that repeats itself is foreseen best by its own contexts, the longest first; new
//! text by a table. Which of the two a text is shows only as it comes.
//! Source: a mixture of two predictions whose weight may change (Herbster and Warmuth 1998, fixed
//! share).
//! Method: with A the prediction of the sequence's own contexts, B that of the table, merged with
//! them (`merged.rs`), and r what A leaves open,
//!     P = w·(A + r·B) + (1 − w)·B,
//! where w is the part of the former that their probabilities of the tokens so far speak for:
//!     w ← (1 − s)·w·(A + r·B)(x) / P(x) + s·w_0.
//! There are two such weights: where the context that occurred before is longer than any of the
//! table, and elsewhere. Without w, with A's contexts of more than four tokens before B, steps at
//! temperature 0 emitted 1.17, 2.21 and 2.75 tokens a unit of cost in SmolLM2's chats, code and
//! repeating text (a step costs 1, a drafted token 0.13; drafts as long as P says); with w 1.17,
//! 2.29 and 2.93; without a table 1.08, 2.25 and 2.94.
//! Complexity: both predictions at each token.
//! Deviations: none.

use polydraft::Token;

use super::merged::{TABLE_ORDER, weighted_sum};
use super::mixture::Mixture;

/// The weights before anything was said: with one half of both, the speeds differ by a hundredth.
const INITIAL: [f64; 2] = [0.2, 0.7];
/// The part of the weight that returns there after each token: from 0.01 to 0.1 are alike.
const SHARE: f64 = 0.05;
/// The probability of a token that neither has, so that none is ruled out.
const FLOOR: f64 = 1e-5;

/// The weights of a sequence's own prediction.
#[derive(Debug, Clone)]
pub struct SourceWeights([f64; 2]);

impl SourceWeights {
    /// Before anything was said.
    pub fn new() -> Self {
        Self(INITIAL)
    }

    /// The prediction of both.
    pub fn mixed(&self, mixture: Mixture, prediction: Vec<(Token, f64)>) -> Vec<(Token, f64)> {
        let weight = self.0[weight_index(&mixture)];
        let rest = 1.0 - weight + weight * mixture.escape();
        weighted_sum(&mixture.distribution(), weight, prediction.into_iter(), rest)
    }

    /// That this token came.
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

/// Which of the weights is meant.
fn weight_index(mixture: &Mixture) -> usize {
    usize::from(mixture.longest() > TABLE_ORDER)
}
