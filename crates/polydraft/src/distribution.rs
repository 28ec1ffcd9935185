//! Checked probability vectors over a vocabulary.

mod excess;
mod sampling;

pub use sampling::Sampling;

use pulp::{Arch, NullaryFnOnce};

use crate::random::{Outcomes, RandomSource};
use crate::{Error, Result, Token};

/// Smaller probabilities count as 0: their reciprocals, and the ratios that rules are made of,
/// would not be numbers.
const LEAST: f64 = 1e-300;

/// How far the sum of probabilities that were a law before may be from 1: double rounding of so
/// many numbers.
const ROUNDING: f64 = 1e-9;

/// Tokens per entry of the table of cumulative sums.
const BLOCK: usize = 256;

/// A probability vector over the tokens `0..vocabulary`: finite, ≥ 0, summing to 1.
///
/// It remembers its support: after top-k, top-p or min-p only the tokens that are left are stored,
/// and work is proportional to their number. Probabilities are `f64`; logits come in as `f32`.
///
/// ```
/// use polydraft::{Distribution, Sampling};
///
/// let probs = Distribution::new(vec![0.5, 0.3, 0.2])?;
/// assert_eq!((probs.probability(1), probs.argmax()), (0.3, 0));
/// // From logits, the two likeliest tokens only.
/// let logits = [2.0_f32.ln(), 3.0_f32.ln(), 0.0];
/// let probs = Distribution::from_logits(&logits, &Sampling { top_k: Some(2), ..Sampling::default() })?;
/// assert!((probs.probability(1) - 0.6).abs() < 1e-6 && probs.probability(2) == 0.0);
/// assert!(Distribution::new(vec![0.5, 0.4]).is_err());
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    vocabulary: usize,
    /// The tokens stored, ascending; empty if all are (then a probability may be 0).
    tokens: Vec<Token>,
    /// The probabilities of the tokens stored.
    mass: Vec<f64>,
    /// Sum of `mass` up to the end of each block of [`BLOCK`] entries.
    cumulative: Vec<f64>,
    support_size: usize,
    /// Σ p².
    collision: f64,
    scratch: sampling::Scratch,
}

impl Distribution {
    /// Checks probabilities, shape `[vocabulary]`.
    ///
    /// Their sum may deviate from 1 by a few `f32` roundings (√V + 4 times `f32::EPSILON`), which
    /// is removed. What is below 1e-300 counts as 0.
    ///
    /// # Errors
    /// No entries; an entry that is negative, NaN or infinite (it is named); a wrong sum.
    pub fn new(probabilities: Vec<f64>) -> Result<Self> {
        let tolerance = f64::from(f32::EPSILON) * (4.0 + (probabilities.len() as f64).sqrt());
        Self::checked(probabilities, tolerance)
    }

    /// Like [`Distribution::new`], but accepts a sum within 1e-3 of 1 and normalises it.
    ///
    /// # Errors
    /// As for [`Distribution::new`].
    pub fn normalized(probabilities: Vec<f64>) -> Result<Self> {
        Self::checked(probabilities, 1e-3)
    }

    fn checked(mut mass: Vec<f64>, tolerance: f64) -> Result<Self> {
        let operation = "distribution";
        if mass.is_empty() || mass.len() > Token::MAX as usize {
            let expected = "from 1 to 2^32 - 1".to_owned();
            return Err(Error::Length { operation, expected, got: mass.len() });
        }
        if let Some(index) = mass.iter().position(|p| !(*p >= 0.0 && p.is_finite())) {
            return Err(Error::Entry {
                operation,
                index,
                expected: "finite and not negative",
                got: mass[index],
            });
        }
        mass.iter_mut().filter(|p| **p < LEAST).for_each(|p| *p = 0.0);
        let sum: f64 = mass.iter().sum();
        if sum.is_nan() || (sum - 1.0).abs() > tolerance {
            return Err(Error::Sum { operation, tolerance, got: sum });
        }
        let vocabulary = mass.len();
        let positive = mass.iter().filter(|p| **p > 0.0).count();
        let mut tokens = Vec::new();
        if positive <= vocabulary / 4 {
            tokens = (0..vocabulary as Token).filter(|&t| mass[t as usize] > 0.0).collect();
            mass.retain(|p| *p > 0.0);
        }
        let mut distribution = Self { vocabulary, tokens, mass, ..Self::empty() };
        distribution.finish(1.0 / sum);
        Ok(distribution)
    }

    /// The softmax of logits, shape `[vocabulary]`, after the filters of `sampling`.
    ///
    /// # Errors
    /// Settings out of range; no logits; an entry that is NaN or +∞ (it is named); every entry −∞.
    pub fn from_logits(logits: &[f32], sampling: &Sampling) -> Result<Self> {
        let mut distribution = Self::empty();
        distribution.set_from_logits(logits, sampling)?;
        Ok(distribution)
    }

    /// [`Distribution::from_logits`] in place: allocates nothing once it has held a vector of that
    /// size.
    ///
    /// # Errors
    /// As for [`Distribution::from_logits`]; the old contents are kept.
    pub fn set_from_logits(&mut self, logits: &[f32], sampling: &Sampling) -> Result<()> {
        let sum = sampling::fill(self, logits, sampling)?;
        self.finish(1.0 / sum);
        Ok(())
    }

    /// The softmax of the logits of some tokens, ascending, after the filters of `sampling`; the
    /// vocabulary's other tokens have probability 0.
    ///
    /// # Errors
    /// As for [`Distribution::from_logits`]; tokens that do not ascend, are outside the vocabulary,
    /// or of another number than the logits.
    pub fn from_sparse_logits(
        vocabulary: usize,
        tokens: &[Token],
        logits: &[f32],
        sampling: &Sampling,
    ) -> Result<Self> {
        let mut distribution = Self::empty();
        distribution.set_from_sparse_logits(vocabulary, tokens, logits, sampling)?;
        Ok(distribution)
    }

    /// [`Distribution::from_sparse_logits`] in place: allocates nothing once it has held as many
    /// tokens.
    ///
    /// # Errors
    /// As for [`Distribution::from_sparse_logits`]; the old contents are kept.
    pub fn set_from_sparse_logits(
        &mut self,
        vocabulary: usize,
        tokens: &[Token],
        logits: &[f32],
        sampling: &Sampling,
    ) -> Result<()> {
        let operation = "distribution from some tokens' logits";
        if tokens.len() != logits.len() {
            let expected = format!("{}, one for each token,", tokens.len());
            return Err(Error::Length { operation, expected, got: logits.len() });
        }
        check_ascending(operation, vocabulary, tokens)?;
        let sum = sampling::fill(self, logits, sampling)?;
        if !self.is_dense() {
            self.tokens.iter_mut().for_each(|place| *place = tokens[*place as usize]);
        } else if tokens.len() < vocabulary {
            self.tokens.extend_from_slice(tokens);
        }
        self.vocabulary = vocabulary;
        self.finish(1.0 / sum);
        if !self.is_dense() && self.support_size < self.mass.len() {
            // Of what is stored sparsely, nothing has probability 0.
            let mut positive = self.mass.iter().map(|p| *p > 0.0);
            self.tokens.retain(|_| positive.next().unwrap_or(false));
            self.mass.retain(|p| *p > 0.0);
            self.finish(1.0);
        }
        Ok(())
    }

    /// The law of logits, of all tokens or of `tokens` alone, in the memory of a law that is not
    /// needed any more, if there is one.
    ///
    /// # Errors
    /// As for [`Distribution::from_logits`] and [`Distribution::from_sparse_logits`].
    pub fn remade(
        spare: Option<Self>,
        vocabulary: usize,
        tokens: Option<&[Token]>,
        logits: &[f32],
        sampling: &Sampling,
    ) -> Result<Self> {
        let mut probs = spare.unwrap_or_else(Self::empty);
        match tokens {
            None => probs.set_from_logits(logits, sampling)?,
            Some(tokens) => probs.set_from_sparse_logits(vocabulary, tokens, logits, sampling)?,
        }
        Ok(probs)
    }

    /// [`Distribution::remade`] for a draft, whose [`confidence`](Self::sureness) at temperature 0 is
    /// kept beside its law.
    ///
    /// ```
    /// use polydraft::{Distribution, Sampling};
    ///
    /// let cold = Sampling { temperature: 0.0, ..Sampling::default() };
    /// let probs = Distribution::drafted(None, 3, None, &[0.0, 3_f32.ln(), 0.0], &cold)?;
    /// assert!((probs.collision(), probs.argmax()) == (1.0, 1) && (probs.confidence() - 0.6).abs() < 1e-6);
    /// # Ok::<(), polydraft::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Distribution::remade`].
    pub fn drafted(
        spare: Option<Self>,
        vocabulary: usize,
        tokens: Option<&[Token]>,
        logits: &[f32],
        sampling: &Sampling,
    ) -> Result<Self> {
        let probs = Self::remade(spare, vocabulary, tokens, logits, sampling)?;
        Ok(match sampling.temperature {
            0.0 => probs.with_confidence(sampling::confidence(logits)),
            _ => probs,
        })
    }

    /// The same law of a draft that knows better than its law how likely what it draws is right
    /// ([`confidence`](Self::sureness)).
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

    /// A law from what [`Distribution::parts`] gave, to the last bit: nothing is scaled.
    ///
    /// ```
    /// use polydraft::Distribution;
    ///
    /// let probs = Distribution::new(vec![0.1, 0.0, 0.2, 0.7, 0.0, 0.0])?;
    /// let (tokens, mass) = probs.parts();
    /// assert_eq!(Distribution::from_parts(6, tokens.to_vec(), mass.to_vec())?, probs);
    /// # Ok::<(), polydraft::Error>(())
    /// ```
    ///
    /// # Errors
    /// Tokens that do not ascend, are outside the vocabulary, or of another number than the
    /// probabilities; a probability that is none; a sum that is further from 1 than rounding.
    pub fn from_parts(vocabulary: usize, tokens: Vec<Token>, mass: Vec<f64>) -> Result<Self> {
        let operation = "distribution from its parts";
        let stored = if tokens.is_empty() { vocabulary } else { tokens.len() };
        if mass.len() != stored || stored == 0 || vocabulary > Token::MAX as usize {
            return Err(Error::Length {
                operation,
                expected: stored.max(1).to_string(),
                got: mass.len(),
            });
        }
        check_ascending(operation, vocabulary, &tokens)?;
        // Of what is stored sparsely, nothing has probability 0.
        let least = if tokens.is_empty() { 0.0 } else { LEAST / 2.0 };
        let valid = |p: f64| p.is_finite() && p >= least && (p == 0.0 || p >= LEAST / 2.0);
        if let Some(index) = mass.iter().position(|p| !valid(*p)) {
            let got = mass[index];
            return Err(Error::Entry { operation, index, expected: "a probability", got });
        }
        let mut distribution = Self { vocabulary, tokens, mass, ..Self::empty() };
        distribution.finish(1.0);
        let sum = distribution.cumulative.last().copied().unwrap_or(0.0);
        if (sum - 1.0).abs() > ROUNDING {
            return Err(Error::Sum { operation, tolerance: ROUNDING, got: sum });
        }
        Ok(distribution)
    }

    /// All mass on one token.
    ///
    /// # Errors
    /// A token outside the vocabulary.
    pub fn one_hot(vocabulary: usize, token: Token) -> Result<Self> {
        if token as usize >= vocabulary {
            return Err(Error::Token { operation: "one-hot distribution", vocabulary, got: token });
        }
        let mut distribution =
            Self { vocabulary, tokens: vec![token], mass: vec![1.0], ..Self::empty() };
        distribution.finish(1.0);
        Ok(distribution)
    }

    /// A value to be filled; not a distribution, so never handed out.
    fn empty() -> Self {
        let scratch = sampling::Scratch::default();
        Self {
            vocabulary: 0,
            tokens: Vec::new(),
            mass: Vec::new(),
            cumulative: Vec::new(),
            support_size: 0,
            collision: 0.0,
            scratch,
        }
    }

    /// Scales what is stored and fills everything that is computed from it, in one pass.
    fn finish(&mut self, scale: f64) {
        self.cumulative.clear();
        self.cumulative.resize(self.mass.len().div_ceil(BLOCK), 0.0);
        let finish = Finish { mass: &mut self.mass, cumulative: &mut self.cumulative, scale };
        (self.support_size, self.collision) = Arch::new().dispatch(finish);
    }

    /// Number of tokens in the vocabulary, of probability 0 or not.
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

    /// All probabilities, shape `[vocabulary]`.
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

    /// The smallest set of most likely tokens with at least this probability, ascending; all of
    /// positive probability for 1.
    pub fn likeliest(&self, probability: f64) -> Vec<Token> {
        let mut candidates: Vec<(f64, Token)> =
            self.support().map(|(token, p)| (p, token)).collect();
        if probability < 1.0 {
            let kept = sampling::smallest_prefix(&mut candidates, probability);
            candidates.truncate(kept);
        }
        let mut tokens: Vec<Token> = candidates.into_iter().map(|(_, token)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    /// What is stored: tokens, ascending, and the probability of each; no tokens if all of the
    /// vocabulary are (then a probability may be 0).
    pub fn parts(&self) -> (&[Token], &[f64]) {
        (&self.tokens, &self.mass)
    }

    /// Draws a token. Time is logarithmic in the size of the support, plus a constant.
    pub fn sample<C: RandomSource + ?Sized>(&self, rng: &mut C) -> Token {
        rng.choose(self) as Token
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

    /// Σ p²: the probability that two draws are equal.
    pub fn collision(&self) -> f64 {
        self.collision
    }

    /// How sure a draft is of what it proposes, from 0 to 1: how likely what is drawn is right,
    /// where it was said ([`Distribution::with_confidence`]; [`Distribution::drafted`] at temperature
    /// 0); else Σ p², the probability that two draws are equal.
    pub fn confidence(&self) -> f64 {
        self.stated_confidence().unwrap_or_else(|| self.collision())
    }

    /// Where it was said.
    pub(crate) fn stated_confidence(&self) -> Option<f64> {
        self.scratch.confidence
    }

    /// Calls `visit(token, own probability, other's probability)` for every token stored in either,
    /// ascending.
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

    /// Whether every token is stored.
    fn is_dense(&self) -> bool {
        self.tokens.is_empty()
    }

    /// All probabilities, shape `[vocabulary]`, if they are stored that way.
    pub(crate) fn dense(&self) -> Option<&[f64]> {
        self.is_dense().then_some(&self.mass[..])
    }

    /// The probabilities stored: of all tokens, or of those that [`Distribution::stored_tokens`]
    /// names.
    pub(crate) fn stored(&self) -> &[f64] {
        &self.mass
    }

    /// The tokens stored, ascending; empty if all are.
    pub(crate) fn stored_tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The index of a token in [`Distribution::stored`].
    pub(crate) fn position(&self, token: Token) -> Option<usize> {
        if self.is_dense() {
            Some(token as usize).filter(|position| *position < self.mass.len())
        } else {
            self.tokens.binary_search(&token).ok()
        }
    }
}

/// # Errors
/// Tokens that do not ascend, or are outside the vocabulary.
fn check_ascending(operation: &'static str, vocabulary: usize, tokens: &[Token]) -> Result<()> {
    if let Some(got) = tokens.iter().copied().find(|token| *token as usize >= vocabulary) {
        return Err(Error::Token { operation, vocabulary, got });
    }
    if let Some(index) = tokens.windows(2).position(|pair| pair[0] >= pair[1]) {
        let (index, got) = (index + 1, f64::from(tokens[index + 1]));
        return Err(Error::Entry { operation, index, expected: "larger than the one before", got });
    }
    Ok(())
}

/// Scales the masses, sums them up block by block, counts the positive ones, and sums their
/// squares.
struct Finish<'a> {
    mass: &'a mut [f64],
    /// One for each block.
    cumulative: &'a mut [f64],
    scale: f64,
}

impl NullaryFnOnce for Finish<'_> {
    type Output = (usize, f64);

    #[inline(always)]
    fn call(self) -> (usize, f64) {
        let (mut sum, mut support, mut collision) = (0.0, 0.0, 0.0);
        for (block, cumulative) in self.mass.chunks_mut(BLOCK).zip(self.cumulative) {
            block.iter_mut().for_each(|p| *p *= self.scale);
            sum += sum_in_lanes(block, |p| p);
            support += sum_in_lanes(block, |p| if p > 0.0 { 1.0 } else { 0.0 });
            collision += sum_in_lanes(block, |p| p * p);
            *cumulative = sum;
        }
        (support as usize, collision)
    }
}

impl Outcomes for Distribution {
    fn draw(&self, uniform: &mut dyn FnMut() -> f64) -> usize {
        let position = uniform() * self.cumulative.last().copied().unwrap_or(0.0);
        let block =
            self.cumulative.partition_point(|&sum| sum <= position).min(self.cumulative.len() - 1);
        let mut left = position - if block == 0 { 0.0 } else { self.cumulative[block - 1] };
        let mut last = block * BLOCK;
        for (index, &mass) in self.mass.iter().enumerate().skip(last).take(BLOCK) {
            if mass > 0.0 {
                last = index;
                if left < mass {
                    break;
                }
                left -= mass;
            }
        }
        if self.is_dense() { last } else { self.tokens[last] as usize }
    }

    fn weights(&self) -> Vec<f64> {
        self.to_vec()
    }

    fn are_tokens(&self) -> bool {
        true
    }
}

/// Σ f(value) in eight lanes: vectorises, and rounds less than one long chain.
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
