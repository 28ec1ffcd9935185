//! Candidates for the next token, from the longest context that occurred before to the shortest,
//! and how often the next token is among them.

use std::borrow::Cow;

use polydraft::Token;

use super::counts::{Counts, Followers};
use super::suffixes::{Match, Suffixes};

/// Pattern of a context's followers, those of longer contexts excluded.
#[derive(Debug, Clone, Copy)]
enum FollowerPattern {
    /// One token, once.
    Once,
    /// One token, twice.
    Twice,
    /// One token, more often.
    Often,
    /// Several tokens, most of them once.
    Scattered,
    /// Several tokens, at least twice each on average.
    Repeated,
}

const PATTERNS: usize = 5;

impl FollowerPattern {
    /// Classifies a context that was followed `times` times by `tokens` distinct tokens.
    fn new(tokens: usize, times: u32) -> Self {
        match (tokens, times) {
            (1, 1) => Self::Once,
            (1, 2) => Self::Twice,
            (1, _) => Self::Often,
            _ if (times as usize) < 2 * tokens => Self::Scattered,
            _ => Self::Repeated,
        }
    }
}

/// Prior hit rate by context length and [`FollowerPattern`]: how often the next token was a
/// follower of this context if it followed none of the longer contexts. The last row also holds for
/// longer contexts. Counted over 9,000 tokens of SmolLM2's chats and of code, at temperatures 0,
/// 0.7 and 1.
const PRIOR: [[f64; PATTERNS]; 9] = [
    [0.30, 0.30, 0.30, 0.30, 0.40],
    [0.20, 0.35, 0.70, 0.20, 0.50],
    [0.40, 0.70, 0.85, 0.32, 0.80],
    [0.55, 0.85, 0.92, 0.48, 0.80],
    [0.70, 0.85, 0.92, 0.50, 0.80],
    [0.75, 0.85, 0.92, 0.60, 0.80],
    [0.75, 0.90, 0.92, 0.60, 0.80],
    [0.75, 0.90, 0.92, 0.60, 0.80],
    [0.90, 0.97, 0.98, 0.80, 0.90],
];
/// Prior hit rates of longer matches than the longest counted context, by their number of tokens.
const LONG: [(usize, [f64; PATTERNS]); 4] = [
    (16, [0.95, 0.97, 0.98, 0.85, 0.90]),
    (32, [0.97, 0.97, 0.98, 0.90, 0.90]),
    (64, [0.985, 0.985, 0.985, 0.90, 0.90]),
    (usize::MAX, [0.99, 0.99, 0.99, 0.90, 0.90]),
];
/// Weight of the prior, in cases.
const PRIOR_CASES: f64 = 8.0;
/// Decay of a case's weight per later case.
const DECAY: f64 = 0.98;

/// Hit rates in this sequence, by context length and [`FollowerPattern`]: how often the next token
/// was among the followers.
#[derive(Debug, Clone)]
pub struct HitRates {
    /// Length of the longest counted context.
    order: usize,
    /// (Hits, cases), decayed: of contexts by length, then of longer matches.
    seen: Vec<[(f64, f64); PATTERNS]>,
}

impl HitRates {
    /// Creates hit rates of contexts up to this length.
    pub fn new(order: usize) -> Self {
        Self { order, seen: vec![[(0.0, 0.0); PATTERNS]; order + 1 + LONG.len()] }
    }

    /// Counts a case.
    pub fn learn(&mut self, case: &Case) {
        let row = self.row(case.length);
        let seen = &mut self.seen[row][case.pattern as usize];
        *seen = (DECAY * seen.0 + f64::from(u8::from(case.hit)), DECAY * seen.1 + 1.0);
    }

    /// Returns the probability that the next token is a follower of a context of this length.
    fn get(&self, length: usize, pattern: FollowerPattern) -> f64 {
        let row = self.row(length);
        let (hits, cases) = self.seen[row][pattern as usize];
        let prior = match row.checked_sub(self.order + 1) {
            Some(long) => LONG[long].1,
            None => PRIOR[length.min(PRIOR.len() - 1)],
        };
        (hits + PRIOR_CASES * prior[pattern as usize]) / (cases + PRIOR_CASES)
    }

    fn row(&self, length: usize) -> usize {
        match length <= self.order {
            true => length,
            false => self.order + 1 + LONG.partition_point(|(most, _)| *most < length),
        }
    }
}

/// Outcome of one context with followers that did not follow any of the longer contexts.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Index in [`Sources`].
    pub source: usize,
    length: usize,
    pattern: FollowerPattern,
    /// Whether the next token was one of these followers.
    hit: bool,
}

/// Candidates: followers of the longest context, then the followers of each shorter context that
/// are not among them yet.
#[derive(Debug)]
pub struct Mixture {
    /// Ascending tokens with their probabilities.
    probs: Vec<(Token, f64)>,
    /// Probability that the next token is none of the candidates.
    escape: f64,
    /// Tokens of the longest context that occurred before.
    longest: usize,
}

impl Default for Mixture {
    fn default() -> Self {
        Self { probs: Vec::new(), escape: 1.0, longest: 0 }
    }
}

/// Escape probability below which shorter contexts are not searched.
const NEGLIGIBLE: f64 = 1e-4;

impl Mixture {
    /// Returns the pattern of a context's new followers and how often they followed; none if none
    /// is new.
    fn pattern(&self, followers: &Followers) -> Option<(FollowerPattern, u32)> {
        let known =
            self.probs.iter().map(|(token, _)| followers.times(*token)).filter(|times| *times > 0);
        let all = (followers.tokens().len(), followers.total());
        let (tokens, times) = known.fold(all, |(tokens, all), times| (tokens - 1, all - times));
        (tokens > 0).then(|| (FollowerPattern::new(tokens, times), times))
    }

    /// Adds the new followers, one of which comes next with probability `hit_rate` if no earlier
    /// candidate does.
    fn add(&mut self, followers: &Followers, times: u32, hit_rate: f64) {
        let weight = self.escape * hit_rate;
        self.escape -= weight;
        let mut merged = Vec::with_capacity(self.probs.len() + followers.tokens().len());
        let mut known = self.probs.iter().copied().peekable();
        for &(token, count) in followers.tokens() {
            while let Some(smaller) = known.next_if(|(other, _)| *other < token) {
                merged.push(smaller);
            }
            let new = (token, weight * f64::from(count) / f64::from(times));
            merged.push(known.next_if(|(other, _)| *other == token).unwrap_or(new));
        }
        merged.extend(known);
        self.probs = merged;
    }

    /// Returns the tokens with their probabilities, ascending. The sum is below one by the escape
    /// probability.
    pub fn distribution(self) -> Vec<(Token, f64)> {
        self.probs
    }

    /// Returns the probability of a token.
    pub fn probability(&self, token: Token) -> f64 {
        let index = self.probs.binary_search_by_key(&token, |(known, _)| *known);
        index.map_or(0.0, |index| self.probs[index].1)
    }

    /// Returns the length of the longest context that occurred before, in tokens.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the probability that the next token is none of the candidates.
    pub fn escape(&self) -> f64 {
        self.escape
    }
}

/// Texts to search: the sequence's own, then a corpus's.
pub struct Sources<'a> {
    pub counts: [&'a Counts; 2],
    pub suffixes: [&'a Suffixes; 2],
    pub hit_rates: [&'a HitRates; 2],
}

impl<'a> Sources<'a> {
    /// Returns the followers of each context at the end of `before`, the longest first. `matches`
    /// are the longest ones that the texts have.
    fn contexts(
        &self,
        before: &[Token],
        matches: [Match; 2],
    ) -> impl Iterator<Item = (usize, usize, Cow<'a, Followers>)> {
        let Self { counts, suffixes, .. } = *self;
        let order = counts[0].order();
        let mut long = [0, 1];
        long.sort_by_key(|source: &usize| std::cmp::Reverse(matches[*source].len()));
        let long = long.into_iter().filter(move |source| matches[*source].len() > order);
        let long = long.map(move |source| {
            let found = matches[source];
            let followers = Followers::once(suffixes[source].followers(found));
            (source, found.len(), Cow::Owned(followers))
        });
        let contexts = (0..=order.min(before.len())).rev().flat_map(move |length| {
            let context = &before[before.len() - length..];
            let found = move |source: usize| {
                Some((source, length, Cow::Borrowed(counts[source].after(context)?)))
            };
            (0..counts.len()).filter_map(found)
        });
        long.chain(contexts)
    }

    /// Returns the candidates after `before`, with these longest matches.
    pub fn mixture(&self, before: &[Token], matches: [Match; 2]) -> Mixture {
        let mut mixture = Mixture::default();
        for (source, length, followers) in self.contexts(before, matches) {
            if mixture.escape < NEGLIGIBLE {
                return mixture;
            }
            mixture.longest = mixture.longest.max(length);
            if let Some((pattern, times)) = mixture.pattern(&followers) {
                mixture.add(&followers, times, self.hit_rates[source].get(length, pattern));
            }
        }
        mixture
    }

    /// Returns the outcomes of the contexts searched for `token`, which followed `before` and is
    /// not counted yet.
    pub fn cases(&self, before: &[Token], matches: [Match; 2], token: Token) -> Vec<Case> {
        let (mut mixture, mut cases) = (Mixture::default(), Vec::new());
        for (source, length, followers) in self.contexts(before, matches) {
            let Some((pattern, times)) = mixture.pattern(&followers) else { continue };
            let hit = followers.times(token) > 0;
            cases.push(Case { source, length, pattern, hit });
            if hit {
                break;
            }
            mixture.add(&followers, times, 0.0);
        }
        cases
    }
}
