//! Learning a table: sums of distributions over a model's output.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Deref;

use polydraft::Token;

use super::super::hash::{IdentityHasher, key};
use super::super::merged::{ContextTable, TABLE_ORDER, VisitedContext, predict};
use super::{NgramTable, Order, SHARE_UNIT, check, fingerprint};
use crate::{Result, Vocabulary};

/// Maximum number of stored followers of a context; more for the empty context, which occurs
/// everywhere.
const MAX_FOLLOWERS: usize = 48;
const MAX_FOLLOWERS_OF_EMPTY: usize = 128;
/// Maximum number of contexts of all lengths: about 400 MB, reached after a million tokens or more.
const MAX_CONTEXTS: usize = 3_000_000;
/// Minimum share of a stored follower in the visits to its context. Others are predicted by the
/// shorter context.
const MIN_SHARE: f64 = 0.005;

/// A table that is being learned.
#[derive(Debug, Clone)]
pub struct NgramLearner {
    vocabulary: (usize, u64),
    learned: u64,
    orders: Vec<ContextMap>,
    /// Maximum number of contexts.
    pub(super) max_contexts: usize,
}

/// Contexts of one length.
type ContextMap = HashMap<u64, Visited, BuildHasherDefault<IdentityHasher>>;

#[derive(Debug, Clone, Default)]
struct Visited {
    times: u32,
    /// Followers with their sums of probabilities, sorted by token.
    followers: Vec<(Token, f32)>,
}

impl Visited {
    fn add(&mut self, likeliest: &[(Token, f32)], most: usize) {
        self.times = self.times.saturating_add(1);
        for &(token, p) in likeliest {
            match self.followers.binary_search_by_key(&token, |(known, _)| *known) {
                Ok(index) => self.followers[index].1 += p,
                Err(index) => self.followers.insert(index, (token, p)),
            }
        }
        if self.followers.len() > 2 * most {
            self.followers = self.largest(0.0, most);
        }
    }

    /// Returns the `most` largest followers with a sum of at least `least`, ascending.
    fn largest(&self, least: f64, most: usize) -> Vec<(Token, f32)> {
        let mut largest = self.followers.clone();
        largest.retain(|(_, sum)| f64::from(*sum) >= least);
        // The sort is stable: of equal followers the first remain.
        largest.sort_by_key(|(_, sum)| Reverse(sum.to_bits()));
        largest.truncate(most);
        largest.sort_unstable_by_key(|(token, _)| *token);
        largest
    }
}

/// Maximum number of stored followers of a context of this length; while learning, twice as many.
fn max_followers(length: usize) -> usize {
    if length == 0 { MAX_FOLLOWERS_OF_EMPTY } else { MAX_FOLLOWERS }
}

impl ContextTable for NgramLearner {
    fn find(&self, length: usize, key: u64) -> Option<VisitedContext> {
        let visited = self.orders.get(length)?.get(&key)?;
        let followers = visited.followers.iter().map(|(token, sum)| (*token, f64::from(*sum)));
        Some((f64::from(visited.times), followers.collect()))
    }
}

impl NgramLearner {
    /// Creates an empty learner for a model with this vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let orders = vec![HashMap::default(); TABLE_ORDER + 1];
        Self { vocabulary: fingerprint(vocabulary), learned: 0, orders, max_contexts: MAX_CONTEXTS }
    }

    /// Continues from a table.
    ///
    /// # Errors
    /// A table of a different vocabulary.
    pub fn from_table(table: &NgramTable, vocabulary: &Vocabulary) -> Result<Self> {
        table.check(vocabulary)?;
        let mut learner = Self { learned: table.learned, ..Self::new(vocabulary) };
        for (order, stored) in learner.orders.iter_mut().zip(&table.orders) {
            for (key, times) in stored.keys.iter().zip(&stored.visits) {
                let followers = stored.find(*key).unwrap_or_default().1;
                let followers = followers.into_iter().map(|(token, sum)| (token, sum as f32));
                order.insert(*key, Visited { times: *times, followers: followers.collect() });
            }
        }
        Ok(learner)
    }

    /// Returns the number of tokens whose distributions were learned.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// Learns the likeliest tokens after `before` with their probabilities, each token once. Above
    /// three million contexts, those that did not recur are evicted.
    pub fn learn(&mut self, before: &[Token], likeliest: &[(Token, f32)]) {
        self.learned += 1;
        for (length, order) in self.orders.iter_mut().enumerate().take(before.len() + 1) {
            let visited = order.entry(key(&before[before.len() - length..])).or_default();
            visited.add(likeliest, max_followers(length));
        }
        if self.contexts() > self.max_contexts {
            self.decay();
        }
    }

    /// Checks that the learner is for a model with this vocabulary.
    ///
    /// # Errors
    /// A different vocabulary.
    pub fn check(&self, vocabulary: &Vocabulary) -> Result<()> {
        check(self.vocabulary, vocabulary)
    }

    /// Returns the number of contexts of all lengths.
    pub fn contexts(&self) -> usize {
        self.orders.iter().map(HashMap::len).sum()
    }

    /// Halves all counts and evicts contexts that were visited once: recurring contexts stay, and
    /// newer visits weigh more.
    pub(super) fn decay(&mut self) {
        for order in &mut self.orders {
            order.retain(|_, visited| {
                let half = visited.times / 2;
                // Half of an odd count is rounded down; the sums are scaled by the same factor, so
                // that they do not exceed the visits.
                let factor = half as f32 / visited.times as f32;
                visited.followers.iter_mut().for_each(|(_, sum)| *sum *= factor);
                visited.times = half;
                visited.times > 0
            });
            order.shrink_to_fit();
        }
    }

    /// Returns the overlap of these probabilities with the current prediction: a lower bound of the
    /// acceptance rate of a token drafted after `before`.
    pub fn overlap(&self, before: &[Token], likeliest: &[(Token, f32)]) -> f64 {
        let prediction = predict(before, self, &[]);
        let total: f64 = prediction.iter().map(|(_, p)| p).sum();
        let common = |(token, p): &(Token, f32)| {
            let index = prediction.binary_search_by_key(token, |(known, _)| *known);
            index.map_or(0.0, |index| f64::from(*p).min(prediction[index].1 / total))
        };
        likeliest.iter().map(common).sum()
    }

    /// Returns the table learned so far, without negligible followers.
    pub fn table(&self) -> NgramTable {
        let orders =
            self.orders.iter().enumerate().map(|(length, map)| to_order(length, map)).collect();
        NgramTable { vocabulary: self.vocabulary, learned: self.learned, orders }
    }

    /// Returns the table while other threads continue to learn: they wait at most for the copy of
    /// the contexts of one length.
    pub(in crate::drafter::ngram) fn table_with<L: Deref<Target = Self>>(
        lock: impl Fn() -> L,
    ) -> NgramTable {
        let vocabulary = lock().vocabulary;
        // A separate statement: a thread must not wait for a lock that it holds.
        let learned = lock().learned;
        let copied = |length: usize| {
            let map = lock().orders[length].clone();
            to_order(length, &map)
        };
        NgramTable { vocabulary, learned, orders: (0..=TABLE_ORDER).map(copied).collect() }
    }
}

fn to_order(length: usize, map: &ContextMap) -> Order {
    let mut keys: Vec<u64> = map.keys().copied().collect();
    keys.sort_unstable();
    let mut order = Order::default();
    for key in keys {
        let visited = &map[&key];
        let least = if length == 0 { 0.0 } else { MIN_SHARE * f64::from(visited.times) };
        order.keys.push(key);
        order.visits.push(visited.times);
        for (token, sum) in visited.largest(least, max_followers(length)) {
            let share =
                (f64::from(sum) / f64::from(visited.times) * SHARE_UNIT).round().min(SHARE_UNIT);
            if share > 0.0 {
                order.tokens.push(token);
                order.shares.push(share as u16);
            }
        }
        order.ends.push(order.tokens.len() as u32);
    }
    order
}
