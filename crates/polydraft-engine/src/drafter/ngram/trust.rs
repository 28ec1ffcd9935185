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

use super::merged::{ORDER, merged};
use super::mixture::Mixture;

/// The weights before anything was said: with one half of both, the speeds differ by a hundredth.
const BEFORE: [f64; 2] = [0.2, 0.7];
/// The part of the weight that returns there after each token: from 0.01 to 0.1 are alike.
const SHARE: f64 = 0.05;
/// The probability of a token that neither has, so that none is ruled out.
const FLOOR: f64 = 1e-5;

/// The weights of a sequence's own prediction.
#[derive(Debug, Clone)]
pub struct Trust([f64; 2]);

impl Trust {
    /// Before anything was said.
    pub fn new() -> Self {
        Self(BEFORE)
    }

    /// The prediction of both.
    pub fn mixed(&self, own: Mixture, known: Vec<(Token, f64)>) -> Vec<(Token, f64)> {
        let weight = self.0[kind(&own)];
        let rest = 1.0 - weight + weight * own.left();
        merged(&own.distribution(), weight, known.into_iter(), rest)
    }

    /// That this token came.
    pub fn learn(&mut self, own: &Mixture, known: &[(Token, f64)], came: Token) {
        let place = known.binary_search_by_key(&came, |(token, _)| *token);
        let by_table = place.map_or(0.0, |place| known[place].1);
        let by_own = own.probability(came) + own.left() * by_table + FLOOR;
        let kind = kind(own);
        let weight = &mut self.0[kind];
        let part = *weight * by_own / (*weight * by_own + (1.0 - *weight) * (by_table + FLOOR));
        *weight = (1.0 - SHARE) * part + SHARE * BEFORE[kind];
    }
}

/// Which of the weights is meant.
fn kind(own: &Mixture) -> usize {
    usize::from(own.longest() > ORDER)
}
