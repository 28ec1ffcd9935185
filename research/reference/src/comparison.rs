//! Compares verifiers on the same drafts by their expected numbers of tokens; nothing is sampled.
//!
//! ```
//! use polydraft::{Distribution, Draft, Draws, Form, Growth};
//! use polydraft_reference::comparison::Comparison;
//! use rand::SeedableRng;
//!
//! let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
//! let mut draft = Draft::new();
//! draft.draw(0, Distribution::new(vec![0.2, 0.3, 0.5])?, Growth::Fresh(Draws::iid(2)), &mut rng)?;
//! let target = vec![Distribution::new(vec![0.5, 0.3, 0.2])?; draft.tree().len()];
//!
//! let verifiers = ["nested-priority".parse()?, "specinfer".parse()?];
//! let mut comparison = Comparison::new(&verifiers, &Form::paths(2), None, 0)?;
//! comparison.look(&draft, &target)?;
//! let sample = comparison.sample(0).expect("something was looked at");
//! assert!(sample.tokens.iter().all(|tokens| (1.0..=2.0).contains(tokens)));
//! # Ok::<(), polydraft::Error>(())
//! ```

mod expected;
mod hands;
mod orders;

use polydraft::{
    Draft, DraftTree, Error, Form, Outcome, RandomSource, Result, TargetDistributions, Verifier,
};
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha12Rng;
use rayon::prelude::*;

use expected::Subject;
use hands::{Hand, deal};
use polydraft::VerifierKind;

pub use hands::{Dealt, Part};

/// Returns the verifiers of `all` that are exact for trees of this form, without duplicates.
/// Single-path verifiers run on each of several paths.
///
/// # Errors
/// Settings out of range.
pub fn exact_for(all: &[VerifierKind], form: &Form) -> Result<Vec<VerifierKind>> {
    let mut exact = Vec::new();
    for kind in all {
        if Subject::new(kind, form)?.is_some() && !exact.contains(kind) {
            exact.push(kind.clone());
        }
    }
    Ok(exact)
}

/// Compares verifiers on the drafts of one sequence.
pub struct Comparison {
    /// Verifiers, each with the part of a draft that it evaluates.
    subjects: Vec<(Part, Subject)>,
    /// Distinct parts.
    parts: Vec<Part>,
    /// Random generator for subsampling.
    random: ChaCha12Rng,
    positions: usize,
    /// Number of positions at which nothing was drafted.
    without: usize,
    /// Number of drafts at the other positions, and number of drafted tokens at all positions.
    drafts: usize,
    nodes: usize,
    /// Sum of each verifier's expected tokens over positions.
    tokens: Vec<f64>,
}

impl Comparison {
    /// Creates a comparison on trees of this form, or on subsamples of `paths` paths. `seed`
    /// determines the subsamples.
    ///
    /// # Errors
    /// A verifier that is not exact for these drafts; settings out of range.
    pub fn new(
        verifiers: &[VerifierKind],
        form: &Form,
        paths: Option<usize>,
        seed: u64,
    ) -> Result<Self> {
        let part = Part { paths, depth: None };
        let all: Vec<_> = verifiers.iter().map(|kind| (kind.clone(), part)).collect();
        Self::of_parts(&all, form, seed)
    }

    /// Creates a comparison in which each verifier evaluates its own part of the trees.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn of_parts(verifiers: &[(VerifierKind, Part)], form: &Form, seed: u64) -> Result<Self> {
        let subject = |(kind, part): &(VerifierKind, Part)| {
            let own = part.paths.map(Form::paths);
            let form = own.as_ref().unwrap_or(form);
            let subject = Subject::new(kind, form)?.ok_or_else(|| Error::Unsupported {
                operation: "comparison",
                expected: format!("verifiers that are exact for {form}"),
                got: kind.to_string(),
            })?;
            // A single-path verifier runs on each path.
            let paths = if subject.is_alone() { Some(1) } else { part.paths };
            Ok((Part { paths, ..*part }, subject))
        };
        let subjects = verifiers.iter().map(subject).collect::<Result<Vec<_>>>()?;
        // The part with the most paths comes first; its drafts are counted.
        let mut parts: Vec<Part> = Vec::new();
        for (part, _) in &subjects {
            if !parts.contains(part) {
                parts.push(*part);
            }
        }
        parts.sort_by_key(|part| std::cmp::Reverse(part.paths));
        let (random, tokens) = (ChaCha12Rng::seed_from_u64(seed), vec![0.0; subjects.len()]);
        Ok(Self { subjects, parts, random, positions: 0, without: 0, drafts: 0, nodes: 0, tokens })
    }

    /// Adds the expected tokens of each verifier for this draft; one token if nothing was drafted.
    ///
    /// # Errors
    /// Errors of the verifiers.
    pub fn look(&mut self, draft: &Draft, target: &dyn TargetDistributions) -> Result<()> {
        if draft.draws(DraftTree::ROOT).is_none() {
            self.tokens.iter_mut().for_each(|sum| *sum += 1.0);
            self.without += 1;
            self.positions += 1;
            return Ok(());
        }
        let mut several = Vec::new();
        for part in &self.parts {
            several.push(part.hands(draft, &mut self.random)?);
        }
        let parts = &self.parts;
        let subjects = self.subjects.par_iter_mut();
        let tokens = subjects.map(|(part, subject)| {
            let own = parts.iter().zip(&several).find(|(other, _)| *other == part);
            subject.tokens(draft, own.map_or(&[][..], |(_, hands)| hands), target)
        });
        let tokens = tokens.collect::<Result<Vec<_>>>()?;
        self.tokens.iter_mut().zip(tokens).for_each(|(sum, tokens)| *sum += tokens);
        let nodes = |draft: &Draft| draft.tree().len() - 1;
        match several.first().filter(|hands| !hands.is_empty()) {
            None => {
                self.drafts += 1;
                self.nodes += nodes(draft);
            }
            Some(hands) => {
                for Hand { draft, times, .. } in hands {
                    self.drafts += times;
                    self.nodes += times * nodes(draft);
                }
            }
        }
        self.positions += 1;
        Ok(())
    }

    /// Returns the results for the sequence after prompt number `prompt`; `None` if no position was
    /// evaluated.
    pub fn sample(&self, prompt: usize) -> Option<Sample> {
        let Self { positions, without, nodes, .. } = *self;
        // Positions without a draft count as many empty drafts as other positions have drafts.
        let drafts = match positions - without {
            0 => positions,
            with => self.drafts + self.drafts * without / with,
        };
        let tokens = self.tokens.iter().map(|sum| sum / positions as f64).collect();
        (positions > 0).then_some(Sample { prompt, positions, drafts, nodes, tokens })
    }
}

/// Returns a verifier's outcome on a draft that was made for a comparison. If `paths` is given, the
/// verifier runs on one random subsample of that many paths; a single-path verifier runs on one
/// path. Nodes of the outcome are those of `draft`.
///
/// # Errors
/// Errors of the verifier.
pub fn decide(
    verifier: &mut dyn Verifier,
    draft: &Draft,
    paths: Option<usize>,
    random: &mut ChaCha12Rng,
    target: &dyn TargetDistributions,
    rng: &mut dyn RandomSource,
) -> Result<Outcome> {
    let hands = if draft.draws(DraftTree::ROOT).is_none() {
        Vec::new()
    } else if verifier.supports(draft.form()).is_err() {
        deal(draft, 1, None, None)?
    } else {
        paths.map_or(Ok(Vec::new()), |paths| deal(draft, paths, None, Some(random)))?
    };
    let Ok(Hand { draft: own, nodes, .. }) = hands.choose_weighted(random, |hand| hand.times)
    else {
        return verifier.verify(draft, target, rng);
    };
    let mut outcome = verifier.verify(own, &Dealt { nodes, target }, rng)?;
    outcome.accepted.iter_mut().for_each(|node| *node = nodes[*node]);
    Ok(outcome)
}

/// Results for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Index of the prompt.
    pub prompt: usize,
    /// Number of positions.
    pub positions: usize,
    /// Number of drafts at all positions.
    pub drafts: usize,
    /// Number of drafted tokens at all positions.
    pub nodes: usize,
    /// Mean over positions of each verifier's expected tokens.
    pub tokens: Vec<f64>,
}

/// Returns the mean of `value_of` over sequences, weighted by their numbers of positions, and its
/// standard error over repetitions with other sequences after the same prompts. If a prompt has
/// only one sequence, the variance between prompts is included. With a single sequence the error is
/// NaN.
pub fn mean(samples: &[Sample], value_of: impl Fn(&Sample) -> f64) -> (f64, f64) {
    let positions: f64 = samples.iter().map(|sample| sample.positions as f64).sum();
    let mean = samples.iter().map(|sample| sample.positions as f64 * value_of(sample)).sum::<f64>()
        / positions;
    // The error is that of a ratio of sums, because the number of positions of a sequence is random
    // too.
    let off =
        |sample: &Sample| (sample.prompt, sample.positions as f64 * (value_of(sample) - mean));
    let mut off: Vec<(usize, f64)> = samples.iter().map(off).collect();
    off.sort_by_key(|(prompt, _)| *prompt);
    let by_prompt = || off.chunk_by(|a, b| a.0 == b.0);
    let squares = match by_prompt().all(|outputs| outputs.len() > 1) {
        true => by_prompt().map(spread).sum(),
        false => spread(&off),
    };
    (mean, squares.sqrt() / positions)
}

/// Returns the estimated variance of the sum of the values.
fn spread(values: &[(usize, f64)]) -> f64 {
    let count = values.len() as f64;
    let sum: f64 = values.iter().map(|(_, value)| value).sum();
    let squares: f64 = values.iter().map(|(_, value)| (value - sum / count).powi(2)).sum();
    squares * count / (count - 1.0)
}

#[cfg(test)]
mod tests {
    use polydraft::{Distribution, Draws, Growth};

    use super::*;

    #[test]
    fn errors_are_within_prompts() {
        let sample = |prompt, value| Sample {
            prompt,
            positions: 1,
            drafts: 1,
            nodes: 1,
            tokens: vec![value],
        };
        // Prompts differ by 10, sequences of the same prompt by 1 and 3.
        let samples = [sample(0, 1.0), sample(0, 2.0), sample(1, 11.0), sample(1, 14.0)];
        let (value, error) = mean(&samples, |sample| sample.tokens[0]);
        assert_eq!(value, 7.0);
        // Var = (2·(0.5² + 0.5²) + 2·(1.5² + 1.5²))/4².
        assert!((error - (10.0_f64 / 16.0).sqrt()).abs() < 1e-12, "{error}");
        // One sequence each: the error is over prompts.
        let (_, error) = mean(&[samples[0].clone(), samples[2].clone()], |sample| sample.tokens[0]);
        assert!((error - 5.0).abs() < 1e-12, "{error}");
    }

    /// Sequences are weighted by their numbers of calls, and the error is that of the ratio of
    /// sums.
    #[test]
    fn weighs_outputs_by_their_positions() {
        let sample = |positions, value| Sample {
            prompt: 0,
            positions,
            drafts: 1,
            nodes: 1,
            tokens: vec![value],
        };
        // 12 tokens each, in 4 and in 6 calls: 24 tokens in 10 calls.
        let samples = [sample(4, 3.0), sample(6, 2.0)];
        let (value, error) = mean(&samples, |sample| sample.tokens[0]);
        assert!((value - 2.4).abs() < 1e-12, "{value}");
        // Deviations 4·0.6 and 6·(−0.4): (2·(2.4² + 2.4²))^½/10.
        assert!((error - 23.04_f64.sqrt() / 10.0).abs() < 1e-12, "{error}");
        assert!(mean(&samples[..1], |sample| sample.tokens[0]).1.is_nan());
    }

    /// If nothing is drafted, one token is emitted. Equal paths count several times.
    #[test]
    fn every_draft_counts_and_none_does_too() {
        let probs = |tokens: [f64; 2]| Distribution::new(tokens.to_vec()).expect("a distribution");
        let mut random = ChaCha12Rng::seed_from_u64(0);
        let mut same = Draft::new();
        same.draw(0, probs([1.0, 0.0]), Growth::Fresh(Draws::iid(3)), &mut random).expect("drawn");
        let target = vec![probs([1.0, 0.0]); 2];
        for (paths, drafts) in [(Some(1), 3), (None, 1)] {
            let kinds = ["nested-priority".parse().expect("a name")];
            let form = Form::paths(paths.unwrap_or(3));
            let mut comparison = Comparison::new(&kinds, &form, paths, 0).expect("a comparison");
            assert!(comparison.sample(0).is_none());
            comparison.look(&Draft::new(), &target).expect("looked");
            assert_eq!(comparison.sample(0).map(|s| (s.drafts, s.nodes)), Some((1, 0)));
            comparison.look(&same, &target).expect("looked");
            let expected = Sample {
                prompt: 7,
                positions: 2,
                drafts: 2 * drafts,
                nodes: drafts,
                tokens: vec![1.5],
            };
            assert_eq!(comparison.sample(7), Some(expected));
        }
    }
}
