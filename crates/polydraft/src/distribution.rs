//! Checked probability vectors over a vocabulary.

mod excess;
mod make;
mod mix;
mod sample;
mod sampling;

pub use sampling::Sampling;

use crate::Token;

/// Tokens per entry of the table of cumulative sums.
const BLOCK: usize = 256;

/// A probability vector over the tokens `0..vocabulary`: finite, ≥ 0, summing to 1.
///
/// It stores its support: after top-k, top-p or min-p only the remaining tokens are stored, and
/// work is proportional to their number. Probabilities are `f64`; logits come in as `f32`.
///
/// ```
/// use polydraft::{Distribution, Sampling};
///
/// let probs = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// assert_eq!((probs.probability(1), probs.argmax()), (0.3, 0));
/// // From logits, the two most likely tokens only.
/// let logits = [2.0_f32.ln(), 3.0_f32.ln(), 0.0];
/// let two = Sampling { top_k: Some(2), ..Sampling::default() };
/// let probs = Distribution::from_logits(&logits, &two)?;
/// assert!((probs.probability(1) - 0.6).abs() < 1e-6 && probs.probability(2) == 0.0);
/// assert!(Distribution::new(vec![0.5, 0.4]).is_err());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    vocabulary: usize,
    /// The stored tokens, ascending; empty if all are stored (then a probability may be 0).
    tokens: Vec<Token>,
    /// The probabilities of the stored tokens.
    mass: Vec<f64>,
    /// Sum of `mass` up to the end of each block of [`BLOCK`] entries.
    cumulative: Vec<f64>,
    support_size: usize,
    /// Σ p².
    collision: f64,
    scratch: sampling::Scratch,
}

impl Distribution {
    /// Number of tokens in the vocabulary, including those with probability 0.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The probability of a token; 0 outside the vocabulary.
    #[inline]
    pub fn probability(&self, token: Token) -> f64 {
        if self.is_dense() {
            self.mass.get(token as usize).copied().unwrap_or(0.0)
        } else {
            self.tokens.binary_search(&token).map_or(0.0, |index| self.mass[index])
        }
    }

    /// The tokens of positive probability, ascending, with their probabilities.
    pub fn support(&self) -> impl Iterator<Item = (Token, f64)> + '_ {
        let dense = self.is_dense();
        let listed = self.mass.iter().enumerate();
        listed
            .filter(|(_, p)| **p > 0.0)
            .map(move |(i, &p)| (if dense { i as Token } else { self.tokens[i] }, p))
    }

    /// Returns the dense probabilities, shape `[vocabulary]`.
    pub fn to_vec(&self) -> Vec<f64> {
        let mut all = vec![0.0; self.vocabulary];
        self.support().for_each(|(token, p)| all[token as usize] = p);
        all
    }

    /// The token of highest probability, the lowest id on a tie.
    pub fn argmax(&self) -> Token {
        self.support().fold((0, 0.0), |best, next| if next.1 > best.1 { next } else { best }).0
    }

    /// Number of tokens of positive probability.
    pub fn support_size(&self) -> usize {
        self.support_size
    }

    /// The `count` most likely tokens (fewer if the support is smaller), most likely first, the
    /// lower id on a tie.
    pub fn most_likely(&self, count: usize) -> Vec<Token> {
        let mut best: Vec<(Token, f64)> = Vec::with_capacity(count.min(self.support_size));
        if count > 0 {
            for (token, p) in self.support() {
                if best.len() < count || best.last().is_some_and(|last| p > last.1) {
                    best.truncate(count - 1);
                    best.insert(best.partition_point(|b| b.1 >= p), (token, p));
                }
            }
        }
        best.into_iter().map(|(token, _)| token).collect()
    }

    /// The smallest set of most likely tokens whose probabilities sum to at least `probability`
    /// (the set of top-p sampling), ascending. For 1, all tokens of positive probability.
    pub fn nucleus(&self, probability: f64) -> Vec<Token> {
        let mut candidates: Vec<(f64, Token)> =
            self.support().map(|(token, p)| (p, token)).collect();
        if probability < 1.0 {
            let length = sampling::smallest_prefix(&mut candidates, probability);
            candidates.truncate(length);
        }
        let mut tokens: Vec<Token> = candidates.into_iter().map(|(_, token)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// The stored tokens, ascending, and their probabilities. The token list is empty if the whole
    /// vocabulary is stored (then a probability may be 0).
    pub fn parts(&self) -> (&[Token], &[f64]) {
        (&self.tokens, &self.mass)
    }

    /// Half the L1 distance.
    pub fn total_variation(&self, other: &Self) -> f64 {
        let mut sum = 0.0;
        self.for_each_pair(other, |_, a, b| sum += (a - b).abs());
        0.5 * sum
    }

    /// Σ min(a, b): the acceptance of single-draft speculative sampling.
    pub fn overlap(&self, other: &Self) -> f64 {
        let mut sum = 0.0;
        self.for_each_pair(other, |_, a, b| sum += a.min(b));
        sum
    }

    /// The collision probability Σ p²: the probability that two draws are equal.
    pub fn collision(&self) -> f64 {
        self.collision
    }

    /// Attaches the draft's own estimate of the probability that the drawn token is accepted
    /// ([`confidence`](Self::confidence)), where it has a better one than the distribution implies.
    ///
    /// ```
    /// let probs = polydraft::Distribution::new(vec![0.5, 0.5])?.with_confidence(0.1);
    /// assert_eq!((probs.collision(), probs.confidence()), (0.5, 0.1));
    /// # Ok::<(), polydraft::Error>(())
    /// ```
    #[must_use]
    pub fn with_confidence(mut self, confidence: f64) -> Self {
        self.scratch.confidence =
            Some(if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) });
        self
    }

    /// The draft's confidence in its proposal, from 0 to 1: the estimate set by
    /// [`Distribution::with_confidence`] (or by [`Distribution::for_draft`] at temperature 0),
    /// otherwise the collision probability Σ p².
    pub fn confidence(&self) -> f64 {
        self.stated_confidence().unwrap_or_else(|| self.collision())
    }

    /// The confidence, if one was set explicitly.
    pub(crate) fn stated_confidence(&self) -> Option<f64> {
        self.scratch.confidence
    }

    /// Calls `visit(token, p in self, p in other)` for every token stored in either, ascending.
    pub(crate) fn for_each_pair(&self, other: &Self, mut visit: impl FnMut(Token, f64, f64)) {
        if self.is_dense() && other.is_dense() && self.vocabulary == other.vocabulary {
            let pairs = self.mass.iter().zip(&other.mass).enumerate();
            pairs.for_each(|(token, (&a, &b))| visit(token as Token, a, b));
            return;
        }
        let (mut left, mut right) = (self.support().peekable(), other.support().peekable());
        loop {
            match (left.peek().copied(), right.peek().copied()) {
                (None, None) => return,
                (Some((t, a)), None) => {
                    visit(t, a, 0.0);
                    left.next();
                }
                (None, Some((u, b))) => {
                    visit(u, 0.0, b);
                    right.next();
                }
                (Some((t, a)), Some((u, b))) => {
                    visit(t.min(u), if t <= u { a } else { 0.0 }, if u <= t { b } else { 0.0 });
                    if t <= u {
                        left.next();
                    }
                    if u <= t {
                        right.next();
                    }
                }
            }
        }
    }

    /// Returns true if the whole vocabulary is stored.
    fn is_dense(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The probabilities, shape `[vocabulary]`, if the whole vocabulary is stored.
    pub(crate) fn dense(&self) -> Option<&[f64]> {
        self.is_dense().then_some(&self.mass[..])
    }

    /// The stored probabilities: of all tokens, or of [`Distribution::stored_tokens`].
    pub(crate) fn stored(&self) -> &[f64] {
        &self.mass
    }

    /// The stored tokens, ascending; empty if the whole vocabulary is stored.
    pub(crate) fn stored_tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The index of a token in [`Distribution::stored`], if it is stored.
    pub(crate) fn position(&self, token: Token) -> Option<usize> {
        if self.is_dense() {
            Some(token as usize).filter(|position| *position < self.mass.len())
        } else {
            self.tokens.binary_search(&token).ok()
        }
    }
}

/// Σ f(value) in eight lanes, which vectorises and rounds less than one long chain of additions.
#[inline(always)]
fn sum_in_lanes(values: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f(value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&value| f(value)).sum::<f64>()
}

#[cfg(test)]
mod tests;
