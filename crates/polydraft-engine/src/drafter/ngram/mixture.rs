//! From the longest context that occurred to the shortest: candidates, and how often the next token
//! is among them.

use polydraft::Token;

use super::counts::{Counts, Followers};

/// How a context was followed, by tokens that no longer context was followed by.
#[derive(Debug, Clone, Copy)]
enum Kind {
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

const KINDS: usize = 5;

impl Kind {
    /// Of this many tokens, so many times in all.
    fn of(tokens: usize, times: u32) -> Self {
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
const BEFORE: [[f64; KINDS]; 9] = [
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
const CASES: f64 = 8.0;
/// How much a case weighs against the next one.
const MEMORY: f64 = 0.98;

/// For every length of context and [`Kind`], how often the next token was among those that had
/// followed, in this sequence.
#[derive(Debug, Clone)]
pub struct Worth {
    /// (Hits, cases), older ones weighing less.
    seen: Vec<[(f64, f64); KINDS]>,
}

impl Worth {
    /// Of contexts up to this length.
    pub fn new(order: usize) -> Self {
        Self { seen: vec![[(0.0, 0.0); KINDS]; order + 1] }
    }

    /// Counts a case.
    pub fn learn(&mut self, case: &Case) {
        let seen = &mut self.seen[case.length][case.kind as usize];
        *seen = (MEMORY * seen.0 + f64::from(u8::from(case.hit)), MEMORY * seen.1 + 1.0);
    }

    /// The probability that the next token is among those that followed a context of this length.
    fn of(&self, length: usize, kind: Kind) -> f64 {
        let (hits, cases) = self.seen[length][kind as usize];
        (hits + CASES * BEFORE[length.min(BEFORE.len() - 1)][kind as usize]) / (cases + CASES)
    }
}

/// A context that was followed by tokens which none of the longer ones was followed by.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Of [`Sources`].
    pub source: usize,
    length: usize,
    kind: Kind,
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
    left: f64,
    /// Tokens of the longest context that occurred before.
    longest: usize,
}

impl Default for Mixture {
    fn default() -> Self {
        Self { probs: Vec::new(), left: 1.0, longest: 0 }
    }
}

/// A probability that is not worth looking further.
const NEGLIGIBLE: f64 = 1e-4;

impl Mixture {
    /// What kind of context this is, and how often it was followed by tokens that are new here;
    /// none where none is new.
    fn kind(&self, followers: &Followers) -> Option<(Kind, u32)> {
        let known =
            self.probs.iter().map(|(token, _)| followers.times(*token)).filter(|times| *times > 0);
        let all = (followers.tokens().len(), followers.total());
        let (tokens, times) = known.fold(all, |(tokens, all), times| (tokens - 1, all - times));
        (tokens > 0).then(|| (Kind::of(tokens, times), times))
    }

    /// Adds the new ones, of which one comes with probability `worth` if none of those before does.
    fn add(&mut self, followers: &Followers, times: u32, worth: f64) {
        let weight = self.left * worth;
        self.left -= weight;
        let mut merged = Vec::with_capacity(self.probs.len() + followers.tokens().len());
        let mut before = self.probs.iter().copied().peekable();
        for &(token, count) in followers.tokens() {
            while let Some(known) = before.next_if(|(known, _)| *known < token) {
                merged.push(known);
            }
            let new = (token, weight * f64::from(count) / f64::from(times));
            merged.push(before.next_if(|(known, _)| *known == token).unwrap_or(new));
        }
        merged.extend(before);
        self.probs = merged;
    }

    /// The tokens with their probabilities, ascending; less than one together, for it may be
    /// another.
    pub fn distribution(self) -> Vec<(Token, f64)> {
        self.probs
    }

    /// The probability of a token.
    pub fn probability(&self, token: Token) -> f64 {
        let place = self.probs.binary_search_by_key(&token, |(known, _)| *known);
        place.map_or(0.0, |place| self.probs[place].1)
    }

    /// Tokens of the longest context that occurred before.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The probability that it is another.
    pub fn left(&self) -> f64 {
        self.left
    }
}

/// What is looked up: the sequence's own counts, then a corpus's.
pub struct Sources<'a> {
    pub counts: [&'a Counts; 2],
    pub worth: [&'a Worth; 2],
}

impl<'a> Sources<'a> {
    /// What followed each context at the end of `text`, the longest first.
    fn contexts(&self, text: &[Token]) -> impl Iterator<Item = (usize, usize, &'a Followers)> {
        let counts = self.counts;
        (0..=counts[0].order().min(text.len())).rev().flat_map(move |length| {
            let context = &text[text.len() - length..];
            let found = move |source: usize| Some((source, length, counts[source].after(context)?));
            (0..counts.len()).filter_map(found)
        })
    }

    /// The candidates after `text`.
    pub fn mixture(&self, text: &[Token]) -> Mixture {
        let mut mixture = Mixture::default();
        for (source, length, followers) in self.contexts(text) {
            if mixture.left < NEGLIGIBLE {
                return mixture;
            }
            mixture.longest = mixture.longest.max(length);
            if let Some((kind, times)) = mixture.kind(followers) {
                mixture.add(followers, times, self.worth[source].of(length, kind));
            }
        }
        mixture
    }

    /// The outcomes of `token`, which followed `text` and is not counted there yet, for the
    /// contexts that were looked up.
    pub fn cases(&self, text: &[Token], token: Token) -> Vec<Case> {
        let (mut mixture, mut cases) = (Mixture::default(), Vec::new());
        for (source, length, followers) in self.contexts(text) {
            let Some((kind, times)) = mixture.kind(followers) else { continue };
            let hit = followers.times(token) > 0;
            cases.push(Case { source, length, kind, hit });
            if hit {
                break;
            }
            mixture.add(followers, times, 0.0);
        }
        cases
    }
}
