//! Counts of the tokens after each context.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use polydraft::Token;

use super::hash::{IdentityHasher, key};

/// Tokens that followed one context, with their counts and the sum of these.
#[derive(Debug, Clone, Default)]
pub struct Followers {
    /// Tokens with their counts, sorted by token.
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

    /// Tokens, ascending, that followed once each, as far as is known.
    pub fn once(tokens: impl Iterator<Item = Token>) -> Self {
        let tokens: Vec<(Token, u32)> = tokens.map(|token| (token, 1)).collect();
        let total = tokens.len() as u32;
        Self { tokens, total }
    }

    /// Returns the tokens, ascending, with their counts.
    pub fn tokens(&self) -> &[(Token, u32)] {
        &self.tokens
    }

    /// Returns how often the context was followed.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns how often `token` followed.
    pub fn times(&self, token: Token) -> u32 {
        let index = self.tokens.binary_search_by_key(&token, |(known, _)| *known);
        index.map_or(0, |index| self.tokens[index].1)
    }
}

/// Followers of every context of up to `order` tokens.
///
/// Contexts are identified by a hash of 64 bits. A collision merges two contexts' counts, which
/// only lowers the acceptance rate.
#[derive(Debug, Clone)]
pub struct Counts {
    order: usize,
    after: HashMap<u64, Followers, BuildHasherDefault<IdentityHasher>>,
}

impl Counts {
    /// Creates empty counts of contexts up to this length.
    pub fn new(order: usize) -> Self {
        Self { order, after: HashMap::default() }
    }

    /// Returns the length of the longest context, in tokens.
    pub fn order(&self) -> usize {
        self.order
    }

    /// Counts that `token` followed `before`.
    pub fn add(&mut self, before: &[Token], token: Token) {
        for length in 0..=self.order.min(before.len()) {
            self.after.entry(key(&before[before.len() - length..])).or_default().add(token);
        }
    }

    /// Returns the followers of exactly this context.
    pub fn after(&self, context: &[Token]) -> Option<&Followers> {
        self.after.get(&key(context))
    }
}
