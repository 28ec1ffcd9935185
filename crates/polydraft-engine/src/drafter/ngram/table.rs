//! N-grams of the target's own output, with sums of its probabilities in place of counts.
//!
//! Problem: n-grams of one sequence predict nothing new, and counts of drawn tokens need millions
//! of tokens before they predict anything.
//! Source: ours.
//! Method: while a model generates, its distribution p after each token is known. For every context
//! of up to [`TABLE_ORDER`] tokens, the table adds up the probabilities of the likeliest next
//! tokens: the expectation of a count of drawn tokens. Visits that the sums of probabilities do not
//! cover go to the shorter context (`merged.rs`). Overlap with the target's distribution, SmolLM2's
//! answers at temperature 1, after 64,000 tokens of its own output: 0.246; with counts of drawn
//! tokens: 0.200.
//! Complexity: one search per order.
//! Deviations: none.

mod file;
mod learn;

use polydraft::Token;

use super::merged::{ContextTable, TABLE_ORDER, VisitedContext};
use crate::{Error, Result, Vocabulary};
pub use learn::NgramLearner;

/// Unit of a follower's share of its context's visits.
const SHARE_UNIT: f64 = 65535.0;

/// A table of n-grams, for `--draft FILE`; made by `polydraft learn`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramTable {
    /// The target's vocabulary: number of tokens, and a hash of their strings.
    vocabulary: (usize, u64),
    /// Number of tokens whose distributions were learned.
    learned: u64,
    /// Contexts by length, from 0 on.
    orders: Vec<Order>,
}

/// Contexts of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Order {
    /// Hashes of the contexts, ascending.
    keys: Vec<u64>,
    /// Number of visits to each context.
    visits: Vec<u32>,
    /// End index of each context's followers.
    ends: Vec<u32>,
    /// Followers of all contexts; the followers of each context ascend.
    tokens: Vec<Token>,
    /// Share of each follower in the visits to its context, in units of 1 / [`SHARE_UNIT`].
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
    /// Predicts the token after `before` by the table alone: ascending tokens with probabilities,
    /// whose sum is at most one.
    #[cfg(test)]
    fn prediction(&self, before: &[Token]) -> Vec<(Token, f64)> {
        super::merged::predict(before, self, &[])
    }

    /// Returns the number of tokens whose distributions were learned.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// Returns the number of contexts of all lengths.
    pub fn contexts(&self) -> usize {
        self.orders.iter().map(|order| order.keys.len()).sum()
    }

    /// Checks that the table was learned with this vocabulary.
    ///
    /// # Errors
    /// A different vocabulary.
    pub fn check(&self, vocabulary: &Vocabulary) -> Result<()> {
        check(self.vocabulary, vocabulary)
    }
}

/// Checks that a table or learner was made with this vocabulary.
fn check(expected: (usize, u64), vocabulary: &Vocabulary) -> Result<()> {
    match expected == fingerprint(vocabulary) {
        true => Ok(()),
        false => Err(Error::NgramTable {
            problem: format!(
                "it was learned with a different vocabulary, of {} tokens: expected the target's, \
                 of {}",
                expected.0,
                vocabulary.size()
            ),
        }),
    }
}

/// Identifies a vocabulary: number of tokens, and a hash of their strings.
fn fingerprint(vocabulary: &Vocabulary) -> (usize, u64) {
    let size = vocabulary.size();
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for id in 0..size as Token {
        let bytes = vocabulary.token(id).unwrap_or_default().bytes();
        // UTF-8 never contains the byte 255, so it separates the strings.
        for byte in bytes.chain([255]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    (size, hash)
}

#[cfg(test)]
mod tests;
