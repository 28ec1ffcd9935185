//! From the longest context that occurred to the shortest: candidates, and how often the next token
//! is among them.

use polydraft::Token;

use super::counts::{Counts, Followers};

/// How a context was followed, by tokens that no longer context was followed by.
#[derive(Debug, Clone, Copy)]
enum FollowerPattern {
    /// By one token, once.
    Once,
    /// By one token, twice.
    Twice,
    /// By one token, more often.
    Often,
    /// By several, most of them once.
    Scattered,
    /// By several, more than twice each on average.
    Repeated,
}

const PATTERNS: usize = 5;

impl FollowerPattern {
    /// Of this many tokens, so many times in all.
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

/// By length of the context and [`Kind`]: how often the next token was one of these tokens, where
/// it had followed none of the longer contexts; the last line holds for longer contexts too.
/// Counted over 9,000 tokens of SmolLM2's chats and of code, at temperatures 0, 0.7 and 1.
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
/// As many cases that counts.
const PRIOR_CASES: f64 = 8.0;
/// How much a case weighs against the next one.
const DECAY: f64 = 0.98;

/// For every length of context and [`Kind`], how often the next token was among those that had
/// followed, in this sequence.
#[derive(Debug, Clone)]
pub struct HitRates {
    /// (Hits, cases), older ones weighing less.
    seen: Vec<[(f64, f64); PATTERNS]>,
}

impl HitRates {
    /// Of contexts up to this length.
    pub fn new(order: usize) -> Self {
        Self { seen: vec![[(0.0, 0.0); PATTERNS]; order + 1] }
    }

    /// Counts a case.
    pub fn learn(&mut self, case: &Case) {
        let seen = &mut self.seen[case.length][case.pattern as usize];
        *seen = (DECAY * seen.0 + f64::from(u8::from(case.hit)), DECAY * seen.1 + 1.0);
    }

    /// The probability that the next token is among those that followed a context of this length.
    fn get(&self, length: usize, pattern: FollowerPattern) -> f64 {
        let (hits, cases) = self.seen[length][pattern as usize];
        (hits + PRIOR_CASES * PRIOR[length.min(PRIOR.len() - 1)][pattern as usize])
            / (cases + PRIOR_CASES)
    }
}

/// A context that was followed by tokens which none of the longer ones was followed by.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Of [`Sources`].
    pub source: usize,
    length: usize,
    pattern: FollowerPattern,
    /// Whether the next token was one of these tokens.
    hit: bool,
}

/// The candidates: tokens that followed the longest context, then those that followed a shorter one
/// and none of the longer, and so on.
#[derive(Debug)]
pub struct Mixture {
    /// Ascending tokens, and the probability of each.
    probs: Vec<(Token, f64)>,
    /// The probability that it is none of these.
    escape: f64,
    /// Tokens of the longest context that occurred before.
    longest: usize,
}

impl Default for Mixture {
    fn default() -> Self {
        Self { probs: Vec::new(), escape: 1.0, longest: 0 }
    }
}

/// A probability that is not worth looking further.
const NEGLIGIBLE: f64 = 1e-4;

impl Mixture {
    /// What kind of context this is, and how often it was followed by tokens that are new here;
    /// none where none is new.
    fn pattern(&self, followers: &Followers) -> Option<(FollowerPattern, u32)> {
        let known =
            self.probs.iter().map(|(token, _)| followers.times(*token)).filter(|times| *times > 0);
        let all = (followers.tokens().len(), followers.total());
        let (tokens, times) = known.fold(all, |(tokens, all), times| (tokens - 1, all - times));
        (tokens > 0).then(|| (FollowerPattern::new(tokens, times), times))
    }

    /// Adds the new ones, of which one comes with probability `worth` if none of those before does.
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

    /// The tokens with their probabilities, ascending; less than one together, for it may be
    /// another.
    pub fn distribution(self) -> Vec<(Token, f64)> {
        self.probs
    }

    /// The probability of a token.
    pub fn probability(&self, token: Token) -> f64 {
        let index = self.probs.binary_search_by_key(&token, |(known, _)| *known);
        index.map_or(0.0, |index| self.probs[index].1)
    }

    /// Tokens of the longest context that occurred before.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The probability that it is another.
    pub fn escape(&self) -> f64 {
        self.escape
    }
}

/// What is looked up: the sequence's own counts, then a corpus's.
pub struct Sources<'a> {
    pub counts: [&'a Counts; 2],
    pub hit_rates: [&'a HitRates; 2],
}

impl<'a> Sources<'a> {
    /// What followed each context at the end of `text`, the longest first.
    fn contexts(&self, before: &[Token]) -> impl Iterator<Item = (usize, usize, &'a Followers)> {
        let counts = self.counts;
        (0..=counts[0].order().min(before.len())).rev().flat_map(move |length| {
            let context = &before[before.len() - length..];
            let found = move |source: usize| Some((source, length, counts[source].after(context)?));
            (0..counts.len()).filter_map(found)
        })
    }

    /// The candidates after `text`.
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

    /// The outcomes of `token`, which followed `text` and is not counted there yet, for the
    /// contexts that were looked up.
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
