//! Construction of distributions from probabilities, from the logits of all or some tokens, and
//! from stored parts.
//!
//! Every constructor fills in the values computed from the probabilities (cumulative sums, support
//! size, Σ p²) in one pass.

use pulp::{Arch, NullaryFnOnce};

use super::{BLOCK, Distribution, Sampling, sampling, sum_in_lanes};
use crate::{Error, Result, Token};

/// Probabilities below this are set to 0, because their reciprocals and the rules' ratios would
/// overflow.
const MIN_PROBABILITY: f64 = 1e-300;

/// Allowed deviation from 1 of the sum of probabilities that came from a distribution: the rounding
/// of a sum of doubles.
const ROUNDING: f64 = 1e-9;

impl Distribution {
    /// Creates a distribution from probabilities, shape `[vocabulary]`.
    ///
    /// Their sum may deviate from 1 by a few `f32` roundings (√V + 4 times `f32::EPSILON`); they
    /// are rescaled. Values below 1e-300 are set to 0.
    ///
    /// # Errors
    /// No entries; an entry that is negative, NaN or infinite (the error names it); a sum out of
    /// tolerance.
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
        mass.iter_mut().filter(|p| **p < MIN_PROBABILITY).for_each(|p| *p = 0.0);
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
    /// Settings out of range; no logits; an entry that is NaN or +∞ (the error names it); every
    /// entry −∞.
    pub fn from_logits(logits: &[f32], sampling: &Sampling) -> Result<Self> {
        let mut distribution = Self::empty();
        distribution.set_from_logits(logits, sampling)?;
        Ok(distribution)
    }

    /// In-place form of [`Distribution::from_logits`]; allocates nothing once it has stored a
    /// vector of that size.
    ///
    /// # Errors
    /// As for [`Distribution::from_logits`]; on error the old contents stay.
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
    /// or differ in number from the logits.
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

    /// In-place form of [`Distribution::from_sparse_logits`]; allocates nothing once it has stored
    /// as many tokens.
    ///
    /// # Errors
    /// As for [`Distribution::from_sparse_logits`]; on error the old contents stay.
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
            self.tokens.iter_mut().for_each(|index| *index = tokens[*index as usize]);
        } else if tokens.len() < vocabulary {
            self.tokens.extend_from_slice(tokens);
        }
        self.vocabulary = vocabulary;
        self.finish(1.0 / sum);
        if !self.is_dense() && self.support_size < self.mass.len() {
            // A sparse distribution stores no zeros.
            let mut positive = self.mass.iter().map(|p| *p > 0.0);
            self.tokens.retain(|_| positive.next().unwrap_or(false));
            self.mass.retain(|p| *p > 0.0);
            self.finish(1.0);
        }
        Ok(())
    }

    /// Creates a distribution from the logits of all tokens, or of `tokens` alone, reusing the
    /// memory of `spare`.
    ///
    /// # Errors
    /// As for [`Distribution::from_logits`] and [`Distribution::from_sparse_logits`].
    pub fn from_logits_reusing(
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

    /// Like [`Distribution::from_logits_reusing`], for a draft: at temperature 0 the probability of
    /// the most likely token at temperature 1 is attached as the [`confidence`](Self::confidence).
    ///
    /// ```
    /// use polydraft::{Distribution, Sampling};
    ///
    /// let cold = Sampling { temperature: 0.0, ..Sampling::default() };
    /// let probs = Distribution::for_draft(None, 3, None, &[0.0, 3_f32.ln(), 0.0], &cold)?;
    /// assert_eq!((probs.collision(), probs.argmax()), (1.0, 1));
    /// assert!((probs.confidence() - 0.6).abs() < 1e-6);
    /// # Ok::<(), polydraft::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Distribution::from_logits_reusing`].
    pub fn for_draft(
        spare: Option<Self>,
        vocabulary: usize,
        tokens: Option<&[Token]>,
        logits: &[f32],
        sampling: &Sampling,
    ) -> Result<Self> {
        let probs = Self::from_logits_reusing(spare, vocabulary, tokens, logits, sampling)?;
        Ok(match sampling.temperature {
            0.0 => probs.with_confidence(sampling::confidence(logits)),
            _ => probs,
        })
    }

    /// Restores a distribution from [`Distribution::parts`], bit for bit: nothing is rescaled.
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
    /// Tokens that do not ascend, are outside the vocabulary, or differ in number from the
    /// probabilities; an invalid probability; a sum further from 1 than rounding explains.
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
        // A sparse distribution stores no zeros.
        let min = if tokens.is_empty() { 0.0 } else { MIN_PROBABILITY / 2.0 };
        let valid = |p: f64| p.is_finite() && p >= min && (p == 0.0 || p >= MIN_PROBABILITY / 2.0);
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

    /// Creates a distribution with all mass on one token.
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

    /// An empty value to be filled. It is not a distribution, so it never leaves this module.
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

    /// Scales the stored probabilities and fills in everything computed from them, in one pass.
    fn finish(&mut self, scale: f64) {
        self.cumulative.clear();
        self.cumulative.resize(self.mass.len().div_ceil(BLOCK), 0.0);
        let finish = Finish { mass: &mut self.mass, cumulative: &mut self.cumulative, scale };
        (self.support_size, self.collision) = Arch::new().dispatch(finish);
    }
}

/// Checks that tokens ascend and lie within the vocabulary.
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
    /// Cumulative sum at the end of each block.
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
