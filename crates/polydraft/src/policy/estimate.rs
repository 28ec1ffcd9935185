//! Estimated and measured times of a policy's steps.

use serde::Serialize;

use super::costs::MIN_TIMED_STEPS;
use super::{Costs, MeasuredTimes, StepContext};

/// Maximum number of samples of a sequence.
pub(super) const MAX_SAMPLES: usize = 1024;

/// Measured time of a step, relative to its estimate from the costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSample {
    /// Tokens of the target's pass.
    pub tokens: usize,
    /// Ratio for the target's pass, and everything but the draft.
    pub target: f64,
    /// Ratio for the draft's passes; `None` without any.
    pub draft: Option<f64>,
}
use crate::draft::Draft;
use crate::verify::Outcome;

/// Steps of a policy and their times. Seconds estimated from the costs do not depend on measured
/// times: a seed gives the same ones on any machine, however busy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Choices {
    /// Number of steps.
    pub steps: u64,
    /// Steps without draft passes: plain decoding.
    pub plain: u64,
    /// Seconds that plain decoding would have taken for the same tokens, estimated from the costs.
    pub plain_seconds: f64,
    /// Seconds that the steps took, estimated from the costs.
    pub seconds: f64,
    /// Measured times.
    pub clock: MeasuredTimes,
    /// Measured times of single steps, from which costs are learned ([`Costs::learn`]).
    #[serde(skip)]
    pub samples: Vec<StepSample>,
    /// Number of verified drafted tokens.
    #[serde(skip)]
    pub verified: u64,
    /// Number of rejected ones among them.
    #[serde(skip)]
    pub rejected: u64,
}

impl Choices {
    /// Speedup over plain decoding, estimated from the costs; 1 before the first step.
    pub fn gain(&self) -> f64 {
        if self.seconds > 0.0 { self.plain_seconds / self.seconds } else { 1.0 }
    }

    /// Measured estimate of the seconds that plain decoding would have taken for the same tokens;
    /// `None` if too few steps with or without drafts were timed.
    pub fn measured_plain_seconds(&self) -> Option<f64> {
        let has_drafted = self.clock.steps[1] >= MIN_TIMED_STEPS;
        let slowdown = self.clock.slowdown().filter(|_| has_drafted)?;
        Some(slowdown * self.plain_seconds)
    }
}

/// A step, with the seconds of its passes estimated from the costs.
#[derive(Debug, Clone, Default)]
struct LastStep {
    /// Tokens that the target scored.
    scored: usize,
    target: f64,
    draft: f64,
}

/// Times of the steps of a sequence, estimated from the costs.
///
/// ```
/// use polydraft::conformance::tree::{draw, random_pair, NodeTargets};
/// use polydraft::policy::{Costs, CostEstimate};
/// use polydraft::{PolicyKind, VerifierKind};
/// use rand::SeedableRng;
///
/// let json = r#"{"target": [[1, 1], [8, 1]], "draft": [[1, 0.25]]}"#;
/// let costs: Costs = serde_json::from_str(json)?;
/// let mut estimate = CostEstimate::new(costs);
/// let policy = PolicyKind::chain(2).build()?;
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
/// let pair = random_pair(2, 3, 0.5, false, &mut rng)?;
/// let draft = draw(policy.as_ref(), &pair.draft, &mut rng)?;
/// let mut verifier = "block".parse::<VerifierKind>()?.build()?;
/// let outcome = verifier.verify(&draft, &NodeTargets::new(draft.tree(), &pair.target), &mut rng)?;
/// // One pass of the target and two of the draft.
/// assert_eq!(estimate.observe(&draft, &outcome), 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct CostEstimate {
    costs: Costs,
    /// Batch size and context length that the costs of the next step depend on. Other sequences in
    /// the batch are assumed to be as long, and to draft as much, as this one.
    pub context: StepContext,
    /// Tokens decided since the last draft pass.
    unread: usize,
    /// The last step.
    last: LastStep,
    /// True if the step before the last one was plain.
    follows_plain: bool,
    /// Totals over the steps so far.
    pub choices: Choices,
}

impl CostEstimate {
    /// Creates an estimate by these costs.
    pub fn new(costs: Costs) -> Self {
        Self { costs, ..Self::default() }
    }

    /// Seconds of a target pass over `tokens` tokens of each sequence.
    pub fn target_seconds(&self, tokens: usize) -> f64 {
        self.costs.target.seconds(tokens, &self.context)
    }

    /// Seconds of a draft pass over `tokens` tokens of each sequence.
    pub fn draft_seconds(&self, tokens: usize) -> f64 {
        self.costs.draft.seconds(tokens, &self.context)
    }

    /// Seconds of the draft's first pass in a step; with `reads`, including the tokens that were
    /// decided without the draft and must be read first.
    pub fn first_draft_seconds(&self, reads: bool) -> f64 {
        let unread = if reads && !self.costs.follows { self.unread } else { 0 };
        self.costs.first + self.draft_seconds(1 + unread)
    }

    /// Records a step. Returns its seconds, estimated from the costs.
    pub fn observe(&mut self, draft: &Draft, outcome: &Outcome) -> f64 {
        let (scored, emitted) = (draft.tree().len(), outcome.accepted.len() + 1);
        let drafted = draft.pass_sizes().split_first().map_or(0.0, |(_, rest)| {
            self.first_draft_seconds(true)
                + rest.iter().map(|&nodes| self.draft_seconds(nodes)).sum::<f64>()
        });
        let target = self.target_seconds(scored);
        let seconds = drafted + target;
        self.follows_plain = self.last.scored == 1;
        self.last = LastStep { scored, target, draft: drafted };
        self.choices.steps += 1;
        self.choices.plain += u64::from(draft.pass_sizes().is_empty());
        self.choices.plain_seconds += emitted as f64 * self.target_seconds(1);
        self.choices.seconds += seconds;
        self.unread = if draft.pass_sizes().is_empty() { self.unread + emitted } else { 0 };
        seconds
    }

    /// True if the last step measures plain decoding: a plain step after another plain step.
    pub fn is_plain(&self) -> bool {
        self.follows_plain && self.last.scored == 1
    }

    /// Records the measured seconds of the last step, and those of the draft's part of it.
    pub fn record_time(&mut self, seconds: f64, draft_seconds: f64) {
        let LastStep { scored, target, draft } = self.last;
        // In a larger batch the time cannot be attributed to one sequence.
        if self.context.batch_size <= 1 && (scored > 1 || self.is_plain()) {
            let (clock, kind) = (&mut self.choices.clock, usize::from(scored > 1));
            clock.steps[kind] += 1;
            clock.clock[kind] += seconds;
            clock.costs[kind] += target + draft;
            if self.choices.samples.len() < MAX_SAMPLES && target > 0.0 {
                self.choices.samples.push(StepSample {
                    tokens: scored,
                    target: (seconds - draft_seconds) / target,
                    draft: (draft > 0.0).then(|| draft_seconds / draft),
                });
            }
        }
    }
}
