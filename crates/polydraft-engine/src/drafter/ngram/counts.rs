//! Counts of the tokens after each context.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use polydraft::Token;

use super::hash::{IdentityHasher, key};

/// What followed one context: tokens and how often, and their sum.
#[derive(Debug, Clone, Default)]
pub struct Followers {
    /// Ascending.
    tokens: Vec<(Token, u32)>,
    total: u32,
}

impl Followers {
    fn add(&mut self, token: Token) {
        match self.tokens.binary_search_by_key(&token, |(known, _)| *known) {
            Ok(index) => self.tokens[index].1 += 1,
            Err(index) => self.tokens.insert(index, (token, 1)),
        }
        self.total += 1;
    }

    /// Ascending, and how often each followed.
    pub fn tokens(&self) -> &[(Token, u32)] {
        &self.tokens
    }

    /// How often the context was followed.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// How often `token` followed.
    pub fn times(&self, token: Token) -> u32 {
        let index = self.tokens.binary_search_by_key(&token, |(known, _)| *known);
        index.map_or(0, |index| self.tokens[index].1)
    }
}

/// What followed every context of up to `order` tokens.
///
/// Contexts are known by a hash of 64 bits: two of one hash would share their counts, which costs
/// acceptance only.
#[derive(Debug, Clone)]
pub struct Counts {
    order: usize,
    after: HashMap<u64, Followers, BuildHasherDefault<IdentityHasher>>,
}

impl Counts {
    /// Of contexts up to this length, with nothing read.
    pub fn new(order: usize) -> Self {
        Self { order, after: HashMap::default() }
    }

    /// Tokens of the longest context.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Counts that `token` followed `text`.
    pub fn add(&mut self, before: &[Token], token: Token) {
        for length in 0..=self.order.min(before.len()) {
            self.after.entry(key(&before[before.len() - length..])).or_default().add(token);
        }
    }

    /// What followed exactly this context.
    pub fn after(&self, context: &[Token]) -> Option<&Followers> {
        self.after.get(&key(context))
    }
}
