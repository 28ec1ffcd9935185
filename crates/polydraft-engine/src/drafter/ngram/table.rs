//! N-grams of text that the target wrote itself, with its distributions in place of counts.
//!
//! Problem: n-grams of one sequence know nothing where it says something new, and counts of drawn
//! tokens take millions of them to say anything.
//! Source: ours.
//! Method: whoever lets a model write knows its distribution p after each token. So every context
//! of up to [`ORDER`] tokens is followed, instead of by the token that was drawn, by the likeliest
//! ones with their probabilities, as it would be by counts on average. What a context's sums of
//! probabilities leave open, of its visits, goes to the shorter one (`merged.rs`). Overlap with the
//! target's distribution, SmolLM2's answers at temperature 1, after 64,000 tokens of its own:
//! 0.246, with counts of drawn tokens 0.200.
//! Complexity: a search in each order.
//! Deviations: none.

mod file;
mod learn;

use polydraft::Token;

use super::merged::{ContextTable, TABLE_ORDER, VisitedContext};
use crate::{Error, Result, Vocabulary};
pub use learn::NgramLearner;

/// What a follower's part of its context's visits is a multiple of.
const SHARE_UNIT: f64 = 65535.0;

/// A table of n-grams: for `--draft FILE`, made by `polydraft learn`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramTable {
    /// Of the target's vocabulary: how many tokens it has, and a hash of their strings.
    vocabulary: (usize, u64),
    /// Tokens whose distributions it was made of.
    learned: u64,
    /// By the length of contexts, from 0 on.
    orders: Vec<Order>,
}

/// Contexts of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Order {
    /// Their hashes, ascending.
    keys: Vec<u64>,
    /// How often each was visited.
    visits: Vec<u32>,
    /// Where its followers end.
    ends: Vec<u32>,
    /// The followers of all, those of each ascending.
    tokens: Vec<Token>,
    /// The part of its context's visits that each has, in units of [`UNIT`].
    shares: Vec<u16>,
}

impl Order {
    fn find(&self, key: u64) -> Option<VisitedContext> {
        let index = self.keys.binary_search(&key).ok()?;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        let visits = f64::from(self.visits[index]);
        let range = begin..self.ends[index] as usize;
        let shares =
            self.shares[range.clone()].iter().map(|share| f64::from(*share) / SHARE_UNIT * visits);
        Some((visits, self.tokens[range].iter().copied().zip(shares).collect()))
    }
}

impl ContextTable for NgramTable {
    fn find(&self, length: usize, key: u64) -> Option<VisitedContext> {
        self.orders.get(length)?.find(key)
    }
}

impl NgramTable {
    /// What comes after a text, by the table alone: ascending tokens with their probabilities,
    /// which sum to one or less.
    #[cfg(test)]
    fn prediction(&self, before: &[Token]) -> Vec<(Token, f64)> {
        super::merged::predict(before, self, &[])
    }

    /// Tokens whose distributions it was made of.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// Contexts of all lengths.
    pub fn contexts(&self) -> usize {
        self.orders.iter().map(|order| order.keys.len()).sum()
    }

    /// Checks that it was learned with this vocabulary.
    ///
    /// # Errors
    /// Another vocabulary.
    pub fn check(&self, vocabulary: &Vocabulary) -> Result<()> {
        check(self.vocabulary, vocabulary)
    }
}

/// That what was learned from a model of one vocabulary is for one of this.
fn check(expected: (usize, u64), vocabulary: &Vocabulary) -> Result<()> {
    match expected == fingerprint(vocabulary) {
        true => Ok(()),
        false => Err(Error::NgramTable {
            problem: format!(
                "it was learned from a model range another vocabulary, range {} tokens: expected the \
                 target's, range {}",
                expected.0,
                vocabulary.size()
            ),
        }),
    }
}

/// What tells a vocabulary from others.
fn fingerprint(vocabulary: &Vocabulary) -> (usize, u64) {
    let size = vocabulary.size();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for id in 0..size as Token {
        let bytes = vocabulary.token(id).unwrap_or_default().bytes();
        // No byte of a text is 255.
        for byte in bytes.chain([255]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    (size, hash)
}

#[cfg(test)]
mod tests;
