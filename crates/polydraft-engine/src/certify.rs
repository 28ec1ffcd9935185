//! Is the text of speculative decoding the target's own? Tests that find out on real models.
//!
//! Problem: compare the joint law of the first tokens after a prompt, as decoding emits them, with that of the target
//! alone, which its logits give exactly.
//! Source: the G-test (log-likelihood ratio) against a known law; cells are continuations, those expected fewer than
//! five times are pooled by their prefix, so that no cell is left to chance.
//! Complexity: one decode step or more per run; one pass of the target for each prefix that is expected five times.
//! Deviations: none.

use std::collections::HashMap;

use polydraft::{Chance, Distribution, DraftTree, Sampling, Token};
use statrs::distribution::{ChiSquared, ContinuousCDF};

use crate::{Decoder, Model, Result};

/// Cells must be expected this often for the statistic to have its law.
const EXPECTED: f64 = 5.0;

/// How often each text was emitted.
pub type Counts = HashMap<Vec<Token>, usize>;

/// Decodes the first `length` tokens after `prompt` `runs` times. `progress` is called after each.
///
/// # Errors
/// Those of the decoder.
pub fn count_texts(
    decoder: &mut Decoder,
    prompt: &[Token],
    length: usize,
    runs: usize,
    chance: &mut dyn Chance,
    progress: &mut dyn FnMut(),
) -> Result<Counts> {
    let mut counts = Counts::new();
    for _ in 0..runs {
        decoder.start(prompt)?;
        let mut text = Vec::with_capacity(length);
        while text.len() < length {
            // As in use: the limit does not end with the test.
            let step = decoder.step(decoder.room(), chance)?;
            text.extend(step.emitted.iter().map(|emitted| emitted.token));
        }
        text.truncate(length);
        *counts.entry(text).or_default() += 1;
        progress();
    }
    Ok(counts)
}

/// The statistic of a G-test, which adds up over independent prompts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GTest {
    /// 2 Σ observed·ln(observed/expected).
    pub statistic: f64,
    /// Cells compared.
    pub cells: usize,
    /// Cells that can vary: all but one for each prompt.
    pub freedom: usize,
}

impl GTest {
    /// Compares texts with the target's law. All of them have `length` tokens.
    ///
    /// # Errors
    /// Failures of the model; logits that make no distribution.
    pub fn new(
        target: &mut dyn Model,
        sampling: &Sampling,
        prompt: &[Token],
        length: usize,
        counts: &Counts,
    ) -> Result<Self> {
        let runs = counts.values().sum::<usize>() as f64;
        let mut test = Self::default();
        let rest = test.compare(target, sampling, prompt, &mut Vec::new(), (1.0, length), counts, runs)?;
        test.add_cell(rest, runs);
        test.freedom = test.cells.saturating_sub(1);
        Ok(test)
    }

    /// Compares the texts that go on from `text`, whose probability and missing length are given. Returns probability
    /// and number of those that are too rare for cells of their own.
    #[allow(clippy::too_many_arguments)]
    fn compare(
        &mut self,
        target: &mut dyn Model,
        sampling: &Sampling,
        prompt: &[Token],
        text: &mut Vec<Token>,
        (probability, length): (f64, usize),
        counts: &Counts,
        runs: f64,
    ) -> Result<(f64, usize)> {
        let seen = counts.iter().filter(|(other, _)| other.starts_with(text)).map(|(_, count)| count).sum();
        if length == 0 {
            self.add_cell((probability, seen), runs);
            return Ok((0.0, 0));
        }
        let mut rest = (probability, seen);
        let law = law_after(target, sampling, &[prompt, text].concat())?;
        for (token, p) in law.support().filter(|(_, p)| probability * p * runs >= EXPECTED) {
            text.push(token);
            let own =
                counts.iter().filter(|(other, _)| other.starts_with(text)).map(|(_, n)| n).sum::<usize>();
            rest = (rest.0 - probability * p, rest.1 - own);
            let (left, count) =
                self.compare(target, sampling, prompt, text, (probability * p, length - 1), counts, runs)?;
            text.pop();
            // Its rare continuations make a cell if they are not rare together.
            if left * runs >= EXPECTED {
                self.add_cell((left, count), runs);
            } else {
                rest = (rest.0 + left, rest.1 + count);
            }
        }
        Ok((rest.0.max(0.0), rest.1))
    }

    fn add_cell(&mut self, (probability, count): (f64, usize), runs: f64) {
        // The last cell of all may be empty up to rounding.
        if probability * runs < 1e-9 && count == 0 {
            return;
        }
        self.cells += 1;
        if count > 0 {
            self.statistic += 2.0 * count as f64 * (count as f64 / (probability * runs).max(1e-300)).ln();
        }
    }

    /// Both tests together.
    pub fn and(self, other: Self) -> Self {
        Self {
            statistic: self.statistic + other.statistic,
            cells: self.cells + other.cells,
            freedom: self.freedom + other.freedom,
        }
    }

    /// The probability that texts of the target itself deviate at least as much; 1 if there is nothing to compare.
    pub fn p_value(&self) -> f64 {
        match ChiSquared::new(self.freedom as f64) {
            Ok(law) if self.freedom > 0 => law.sf(self.statistic.max(0.0)),
            _ => 1.0,
        }
    }
}

/// The target's law of the next token.
fn law_after(model: &mut dyn Model, sampling: &Sampling, text: &[Token]) -> Result<Distribution> {
    model.reset();
    model.extend(text)?;
    model.score(&DraftTree::new())?;
    Ok(Distribution::from_logits(model.logits(DraftTree::ROOT), sampling)?)
}
