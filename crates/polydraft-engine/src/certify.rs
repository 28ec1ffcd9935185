//! Statistical tests, on real models, that speculative decoding keeps the target's distribution.
//!
//! Problem: compare the joint distribution of the first tokens after a prompt, as the decode loop
//! emits them, with the target's own, which follows exactly from its logits.
//! Source: the G-test (log-likelihood ratio) against a known distribution. A cell is one
//! continuation; continuations expected fewer than five times are pooled by their prefix, because
//! the test needs cells of a minimum size.
//! Complexity: one or more decode steps per run; one target pass for each prefix that is expected
//! five times.
//! Deviations: none.

use std::collections::HashMap;

use polydraft::conformance::statistics::{GTest, MIN_EXPECTED};
use polydraft::{
    Distribution, Draft, DraftTree, Form, Outcome, RandomSource, Sampling, TargetDistributions,
    Token, Verifier,
};

use crate::{Engine, Model, Request, Result};

/// Number of times each sequence was emitted.
pub type Counts = HashMap<Vec<Token>, u64>;

/// Decodes the first `length` tokens of `runs` requests and counts the resulting sequences.
/// `request` builds the request of a run; its token limit should exceed `length`, so that the limit
/// does not coincide with the end of the test. `goes_on` is called after each run and returns
/// whether to continue.
///
/// # Errors
/// Errors of the engine and of `request`.
pub fn count_sequences<'c, E: From<crate::Error>>(
    engine: &mut Engine,
    length: usize,
    runs: usize,
    request: &mut dyn FnMut(usize) -> std::result::Result<Request<'c>, E>,
    goes_on: &mut dyn FnMut() -> bool,
) -> std::result::Result<Counts, E> {
    let mut counts = Counts::new();
    for run in 0..runs {
        let mut session = engine.open(request(run)?)?;
        let mut stepped = Ok(());
        while stepped.is_ok() && session.tokens().len() < length && !session.is_done() {
            stepped = engine.step(&mut [&mut session]);
        }
        let closed = engine.close(session);
        stepped?;
        let mut tokens = closed?.tokens;
        tokens.truncate(length);
        *counts.entry(tokens).or_default() += 1;
        if !goes_on() {
            break;
        }
    }
    Ok(counts)
}

/// Compares sequences of `length` tokens after `prompt` with the target's distribution.
///
/// # Errors
/// Failures of the model; logits that are not a valid distribution.
pub fn compare(
    target: &mut dyn Model,
    sampling: &Sampling,
    prompt: &[Token],
    length: usize,
    counts: &Counts,
) -> Result<GTest> {
    let runs = counts.values().sum::<u64>() as f64;
    let mut cells = Cells { target, sampling, prompt, counts, runs, cells: Vec::new() };
    let rest = cells.divide(&mut Vec::new(), 1.0, length)?;
    // The remaining cell may be empty up to rounding.
    if rest.0 * runs > 1e-9 || rest.1 > 0 {
        cells.cells.push(rest);
    }
    Ok(GTest::new(cells.cells))
}

/// Sequences grouped by prefix: cells that are too rare are pooled with similar ones.
struct Cells<'a> {
    target: &'a mut dyn Model,
    sampling: &'a Sampling,
    prompt: &'a [Token],
    counts: &'a Counts,
    runs: f64,
    /// (Probability, number of sequences).
    cells: Vec<(f64, u64)>,
}

impl Cells<'_> {
    fn count_with_prefix(&self, prefix: &[Token]) -> u64 {
        self.counts
            .iter()
            .filter(|(other, _)| other.starts_with(prefix))
            .map(|(_, count)| count)
            .sum()
    }

    /// Divides the sequences that begin with `prefix`, which has this probability, into cells.
    /// Returns the probability and the number of the sequences that are too rare for cells of their
    /// own.
    fn divide(
        &mut self,
        prefix: &mut Vec<Token>,
        probability: f64,
        length: usize,
    ) -> Result<(f64, u64)> {
        let count = self.count_with_prefix(prefix);
        if length == 0 {
            self.cells.push((probability, count));
            return Ok((0.0, 0));
        }
        let mut rest = (probability, count);
        let probs =
            distribution_after(self.target, self.sampling, &[self.prompt, prefix].concat())?;
        let runs = self.runs;
        for (token, p) in probs.support().filter(|(_, p)| probability * p * runs >= MIN_EXPECTED) {
            prefix.push(token);
            rest = (rest.0 - probability * p, rest.1 - self.count_with_prefix(prefix));
            let (left, left_count) = self.divide(prefix, probability * p, length - 1)?;
            prefix.pop();
            // Rare continuations of one prefix become one cell if their sum is large enough.
            if left * self.runs >= MIN_EXPECTED {
                self.cells.push((left, left_count));
            } else {
                rest = (rest.0 + left, rest.1 + left_count);
            }
        }
        Ok((rest.0.max(0.0), rest.1))
    }
}

/// Returns the target's next-token distribution after `tokens`.
///
/// # Errors
/// Failures of the model; logits that are not a valid distribution.
pub fn distribution_after(
    model: &mut dyn Model,
    sampling: &Sampling,
    tokens: &[Token],
) -> Result<Distribution> {
    let sequence = model.open()?;
    let probs = model.extend(sequence, tokens).and_then(|()| {
        model.score(&[(sequence, &DraftTree::new())])?;
        Ok(Distribution::from_logits(model.logits(sequence, DraftTree::ROOT), sampling)?)
    });
    model.close(sequence);
    probs
}

/// A verifier with a planted fault, to check that a test detects it: after a rejection it draws
/// from the target instead of the residual. This is the most common mistake, and readers of the
/// output would not notice it.
pub struct WrongResidual(pub Box<dyn Verifier>);

impl Verifier for WrongResidual {
    fn supports(&self, form: &Form) -> polydraft::Result<()> {
        self.0.supports(form)
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> polydraft::Result<Outcome> {
        let mut outcome = self.0.verify(draft, target, rng)?;
        let end = outcome.accepted.last().copied().unwrap_or(DraftTree::ROOT);
        outcome.token = target.target(end)?.sample(rng);
        Ok(outcome)
    }
}
