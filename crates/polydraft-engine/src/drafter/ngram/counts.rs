//! Counts of what followed which context, and what contexts of a length are worth.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use polydraft::Token;

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
            Ok(place) => self.tokens[place].1 += 1,
            Err(place) => self.tokens.insert(place, (token, 1)),
        }
        self.total += 1;
    }

    /// The part of the cases in which `token` followed.
    fn share(&self, token: Token) -> f64 {
        let place = self.tokens.binary_search_by_key(&token, |(known, _)| *known);
        f64::from(place.map_or(0, |place| self.tokens[place].1)) / f64::from(self.total)
    }
}

/// Keys are hashes already.
#[derive(Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// What followed every context of up to `order` tokens.
///
/// Contexts are known by a hash of 64 bits: two of one hash would share their counts, which costs acceptance only.
#[derive(Debug, Clone)]
pub struct Counts {
    order: usize,
    after: HashMap<u64, Followers, BuildHasherDefault<AsIs>>,
}

/// A hash of the tokens and their number.
fn key(context: &[Token]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ context.len() as u64;
    for &token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
    }
    hash
}

impl Counts {
    /// Of contexts up to this length, with nothing read.
    pub fn new(order: usize) -> Self {
        Self { order, after: HashMap::default() }
    }

    /// Takes note that `token` followed `text`.
    pub fn add(&mut self, text: &[Token], token: Token) {
        for length in 0..=self.order.min(text.len()) {
            self.after.entry(key(&text[text.len() - length..])).or_default().add(token);
        }
    }

    /// What followed exactly this context.
    pub fn after(&self, context: &[Token]) -> Option<&Followers> {
        self.after.get(&key(context))
    }
}

/// For every length of context, the running mean of the probability that its empirical law gave to the token that came.
#[derive(Debug, Clone)]
pub struct Worth {
    /// (Sum of probabilities, number of cases), older ones weighing less.
    seen: Vec<(f64, f64)>,
}

/// How much a case weighs against the next one.
const MEMORY: f64 = 0.98;
/// As many cases in which it will have been wrong.
const DOUBT: f64 = 0.1;
/// What a context is taken to be worth before anything is known, and as how many cases that counts. Long ones are
/// seldom wrong.
const BEFORE: f64 = 2.0;

impl Worth {
    /// Of contexts up to this length.
    pub fn new(order: usize) -> Self {
        let before = |length: usize| 1.0 - 0.5 / (1.0 + length as f64 / 2.0);
        Self { seen: (0..=order).map(|length| (BEFORE * before(length), BEFORE)).collect() }
    }

    /// Takes note that `token` followed `text`, which `counts` have not been told yet.
    pub fn learn(&mut self, counts: &Counts, text: &[Token], token: Token) {
        for (length, seen) in self.seen.iter_mut().enumerate().take(text.len() + 1) {
            if let Some(followers) = counts.after(&text[text.len() - length..]) {
                *seen = (MEMORY * seen.0 + followers.share(token), MEMORY * seen.1 + 1.0);
            }
        }
    }

    /// That of contexts of this length. However often they were right, it is never certain that they are.
    pub fn of(&self, length: usize) -> f64 {
        let (sum, cases) = self.seen[length];
        (sum / (cases + DOUBT)).clamp(0.0, 1.0)
    }
}

/// A mixture of empirical laws, the weightiest first.
#[derive(Debug)]
pub struct Mixture {
    /// Ascending tokens.
    law: Vec<(Token, f64)>,
    /// The weight that is left for what comes.
    left: f64,
}

impl Default for Mixture {
    fn default() -> Self {
        Self { law: Vec::new(), left: 1.0 }
    }
}

/// Weight that is not worth another law.
const NEGLIGIBLE: f64 = 1e-4;

impl Mixture {
    /// Whether next to nothing is left for what comes.
    pub fn is_full(&self) -> bool {
        self.left < NEGLIGIBLE
    }

    /// Gives an empirical law `worth` of what is left. What nothing takes is shared out by all alike in the end.
    pub fn mix(&mut self, followers: Option<&Followers>, worth: f64) {
        let Some(followers) = followers else { return };
        let weight = self.left * worth;
        self.left -= weight;
        let part = |count: u32| weight * f64::from(count) / f64::from(followers.total);
        let mut merged = Vec::with_capacity(self.law.len() + followers.tokens.len());
        let (mut before, mut new) = (self.law.iter().peekable(), followers.tokens.iter().peekable());
        loop {
            match (before.peek(), new.peek()) {
                (None, None) => break,
                (Some(&&(token, p)), other) if other.is_none_or(|(next, _)| token <= *next) => {
                    let same = new.next_if(|(next, _)| *next == token).map_or(0.0, |&(_, count)| part(count));
                    merged.push((token, p + same));
                    before.next();
                }
                (_, Some(&&(token, count))) => {
                    merged.push((token, part(count)));
                    new.next();
                }
                (Some(_), None) => break,
            }
        }
        self.law = merged;
    }

    /// The tokens with their log-probabilities, ascending.
    pub fn logits(self) -> impl Iterator<Item = (Token, f32)> {
        self.law.into_iter().filter(|(_, p)| *p > 0.0).map(|(token, p)| (token, p.ln() as f32))
    }
}
