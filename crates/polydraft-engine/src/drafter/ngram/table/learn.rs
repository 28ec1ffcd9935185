//! Learning a table: sums over what a model wrote.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Deref;

use polydraft::Token;

use super::super::hash::{AsIs, key};
use super::super::merged::{Contexts, ORDER, Seen, predicted};
use super::{NgramTable, Order, UNIT, check, fingerprint};
use crate::{Result, Vocabulary};

/// Followers of a context that are stored at most; of the empty one, which knows nothing.
const FOLLOWERS: usize = 48;
const FREQUENT: usize = 128;
/// Contexts of all lengths that are kept at most: some 400 MB, of a million tokens and more.
const CONTEXTS: usize = 3_000_000;
/// The part of its visits below which a follower is left to the shorter context.
const LEAST: f64 = 0.005;

/// A table that is being learned.
#[derive(Debug, Clone)]
pub struct NgramLearner {
    vocabulary: (usize, u64),
    learned: u64,
    orders: Vec<Learned>,
    /// Contexts at most.
    pub(super) most: usize,
}

/// Contexts of one length.
type Learned = HashMap<u64, Visited, BuildHasherDefault<AsIs>>;

#[derive(Debug, Clone, Default)]
struct Visited {
    times: u32,
    /// Ascending.
    followers: Vec<(Token, f32)>,
}

impl Visited {
    fn add(&mut self, likeliest: &[(Token, f32)], most: usize) {
        self.times = self.times.saturating_add(1);
        for &(token, p) in likeliest {
            match self.followers.binary_search_by_key(&token, |(known, _)| *known) {
                Ok(place) => self.followers[place].1 += p,
                Err(place) => self.followers.insert(place, (token, p)),
            }
        }
        if self.followers.len() > 2 * most {
            self.followers = self.largest(0.0, most);
        }
    }

    /// The followers that have so much, so many at most; ascending.
    fn largest(&self, least: f64, most: usize) -> Vec<(Token, f32)> {
        let mut kept = self.followers.clone();
        kept.retain(|(_, sum)| f64::from(*sum) >= least);
        // Of equal ones the first.
        kept.sort_by_key(|(_, sum)| Reverse(sum.to_bits()));
        kept.truncate(most);
        kept.sort_unstable_by_key(|(token, _)| *token);
        kept
    }
}

/// Followers of a context of this length that are stored at most; while it learns, twice as many.
fn followers(length: usize) -> usize {
    if length == 0 { FREQUENT } else { FOLLOWERS }
}

impl Contexts for NgramLearner {
    fn find(&self, length: usize, key: u64) -> Option<Seen> {
        let visited = self.orders.get(length)?.get(&key)?;
        let followers = visited.followers.iter().map(|(token, sum)| (*token, f64::from(*sum)));
        Some((f64::from(visited.times), followers.collect()))
    }
}

impl NgramLearner {
    /// With nothing learned of a model with this vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let orders = vec![HashMap::default(); ORDER + 1];
        Self { vocabulary: fingerprint(vocabulary), learned: 0, orders, most: CONTEXTS }
    }

    /// Goes on from a table.
    ///
    /// # Errors
    /// One of another vocabulary.
    pub fn from_table(table: &NgramTable, vocabulary: &Vocabulary) -> Result<Self> {
        table.check(vocabulary)?;
        let mut new = Self { learned: table.learned, ..Self::new(vocabulary) };
        for (order, of) in new.orders.iter_mut().zip(&table.orders) {
            for (key, times) in of.keys.iter().zip(&of.visits) {
                let followers = of.find(*key).unwrap_or_default().1;
                let followers = followers.into_iter().map(|(token, sum)| (token, sum as f32));
                order.insert(*key, Visited { times: *times, followers: followers.collect() });
            }
        }
        Ok(new)
    }

    /// Tokens whose distributions were learned.
    pub fn learned(&self) -> u64 {
        self.learned
    }

    /// Learns the likeliest tokens after a text and their probabilities, each token once. Above
    /// three million contexts those that did not come again are forgotten.
    pub fn learn(&mut self, text: &[Token], likeliest: &[(Token, f32)]) {
        self.learned += 1;
        for (length, order) in self.orders.iter_mut().enumerate().take(text.len() + 1) {
            let visited = order.entry(key(&text[text.len() - length..])).or_default();
            visited.add(likeliest, followers(length));
        }
        if self.contexts() > self.most {
            self.fade();
        }
    }

    /// Checks that it learns from a model with this vocabulary.
    ///
    /// # Errors
    /// Another vocabulary.
    pub fn check(&self, vocabulary: &Vocabulary) -> Result<()> {
        check(self.vocabulary, vocabulary)
    }

    /// Contexts of all lengths.
    pub fn contexts(&self) -> usize {
        self.orders.iter().map(HashMap::len).sum()
    }

    /// Halves all that was learned, and forgets contexts that were visited once: what comes again
    /// stays, and the newer counts for more.
    pub(super) fn fade(&mut self) {
        for order in &mut self.orders {
            order.retain(|_, visited| {
                let half = visited.times / 2;
                // Of an odd number less than half is left, of its sums too: no more than visits.
                let part = half as f32 / visited.times as f32;
                visited.followers.iter_mut().for_each(|(_, sum)| *sum *= part);
                visited.times = half;
                visited.times > 0
            });
            order.shrink_to_fit();
        }
    }

    /// How much of these probabilities what was learned so far has in common with them: at least so
    /// often a token that it drafts after the text is accepted.
    pub fn overlap(&self, text: &[Token], likeliest: &[(Token, f32)]) -> f64 {
        let prediction = predicted(text, self, &[]);
        let total: f64 = prediction.iter().map(|(_, p)| p).sum();
        let common = |(token, p): &(Token, f32)| {
            let place = prediction.binary_search_by_key(token, |(known, _)| *known);
            place.map_or(0.0, |place| f64::from(*p).min(prediction[place].1 / total))
        };
        likeliest.iter().map(common).sum()
    }

    /// The table of what was learned, without what is next to nothing.
    pub fn table(&self) -> NgramTable {
        let orders = self.orders.iter().enumerate().map(|(length, of)| order(length, of)).collect();
        NgramTable { vocabulary: self.vocabulary, learned: self.learned, orders }
    }

    /// The same where others are learning on: they wait no longer than a copy of one length of
    /// contexts takes.
    pub(in crate::drafter::ngram) fn table_by<L: Deref<Target = Self>>(
        lock: impl Fn() -> L,
    ) -> NgramTable {
        let vocabulary = lock().vocabulary;
        // Not in one statement: a thread must not wait for a lock that it has.
        let learned = lock().learned;
        let copied = |length: usize| {
            let of = lock().orders[length].clone();
            order(length, &of)
        };
        NgramTable { vocabulary, learned, orders: (0..=ORDER).map(copied).collect() }
    }
}

fn order(length: usize, of: &Learned) -> Order {
    let mut keys: Vec<u64> = of.keys().copied().collect();
    keys.sort_unstable();
    let mut order = Order::default();
    for key in keys {
        let visited = &of[&key];
        let least = if length == 0 { 0.0 } else { LEAST * f64::from(visited.times) };
        order.keys.push(key);
        order.visits.push(visited.times);
        for (token, sum) in visited.largest(least, followers(length)) {
            let part = (f64::from(sum) / f64::from(visited.times) * UNIT).round().min(UNIT);
            if part > 0.0 {
                order.tokens.push(token);
                order.parts.push(part as u16);
            }
        }
        order.ends.push(order.tokens.len() as u32);
    }
    order
}
