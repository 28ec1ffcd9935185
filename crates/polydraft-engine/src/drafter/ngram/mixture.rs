//! Candidates for the next token, from the longest context that occurred before to the shortest,
//! and how often the next token is among them.

use polydraft::Token;

use super::counts::{Counts, Followers};

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
/// Weight of the prior, in cases.
const PRIOR_CASES: f64 = 8.0;
/// Decay of a case's weight per later case.
const DECAY: f64 = 0.98;

/// Hit rates in this sequence, by context length and [`FollowerPattern`]: how often the next token
/// was among the followers.
#[derive(Debug, Clone)]
pub struct HitRates {
    /// (Hits, cases), decayed.
    seen: Vec<[(f64, f64); PATTERNS]>,
}

impl HitRates {
    /// Creates hit rates of contexts up to this length.
    pub fn new(order: usize) -> Self {
        Self { seen: vec![[(0.0, 0.0); PATTERNS]; order + 1] }
    }

    /// Counts a case.
    pub fn learn(&mut self, case: &Case) {
        let seen = &mut self.seen[case.length][case.pattern as usize];
        *seen = (DECAY * seen.0 + f64::from(u8::from(case.hit)), DECAY * seen.1 + 1.0);
    }

    /// Returns the probability that the next token is a follower of a context of this length.
    fn get(&self, length: usize, pattern: FollowerPattern) -> f64 {
        let (hits, cases) = self.seen[length][pattern as usize];
        (hits + PRIOR_CASES * PRIOR[length.min(PRIOR.len() - 1)][pattern as usize])
            / (cases + PRIOR_CASES)
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

/// Counts to search: the sequence's own, then a corpus's.
pub struct Sources<'a> {
    pub counts: [&'a Counts; 2],
    pub hit_rates: [&'a HitRates; 2],
}

impl<'a> Sources<'a> {
    /// Returns the followers of each context at the end of `before`, the longest first.
    fn contexts(&self, before: &[Token]) -> impl Iterator<Item = (usize, usize, &'a Followers)> {
        let counts = self.counts;
        (0..=counts[0].order().min(before.len())).rev().flat_map(move |length| {
            let context = &before[before.len() - length..];
            let found = move |source: usize| Some((source, length, counts[source].after(context)?));
            (0..counts.len()).filter_map(found)
        })
    }

    /// Returns the candidates after `before`.
    pub fn mixture(&self, before: &[Token]) -> Mixture {
        let mut mixture = Mixture::default();
        for (source, length, followers) in self.contexts(before) {
            if mixture.escape < NEGLIGIBLE {
                return mixture;
            }
            mixture.longest = mixture.longest.max(length);
            if let Some((pattern, times)) = mixture.pattern(followers) {
                mixture.add(followers, times, self.hit_rates[source].get(length, pattern));
            }
        }
        mixture
    }

    /// Returns the outcomes of the contexts searched for `token`, which followed `before` and is
    /// not counted yet.
    pub fn cases(&self, before: &[Token], token: Token) -> Vec<Case> {
        let (mut mixture, mut cases) = (Mixture::default(), Vec::new());
        for (source, length, followers) in self.contexts(before) {
            let Some((pattern, times)) = mixture.pattern(followers) else { continue };
            let hit = followers.times(token) > 0;
            cases.push(Case { source, length, pattern, hit });
            if hit {
                break;
            }
            mixture.add(followers, times, 0.0);
        }
        cases
    }
}
