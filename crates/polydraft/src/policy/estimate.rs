//! What steps take by the costs, and beside that by the clock.

use serde::Serialize;

use super::{Costs, MeasuredTimes, StepContext};
use crate::draft::Draft;
use crate::verify::Outcome;

/// What a policy did, and what it took. Seconds by the costs have no clock in them: the same seed
/// gives the same ones on any machine, however busy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Choices {
    /// Steps.
    pub steps: u64,
    /// Steps in which the draft was not asked: plain decoding.
    pub plain: u64,
    /// Seconds that plain decoding would have taken for the same tokens, by the costs.
    pub plain_seconds: f64,
    /// Seconds that the steps took, by the costs.
    pub seconds: f64,
    /// What the clock said.
    pub clock: MeasuredTimes,
}

impl Choices {
    /// How many times as fast as plain decoding the text was, by the costs; 1 before the first
    /// step.
    pub fn gain(&self) -> f64 {
        if self.seconds > 0.0 { self.plain_seconds / self.seconds } else { 1.0 }
    }

    /// Seconds that plain decoding would have taken for the same tokens, by the clock, if steps of
    /// the text tell.
    pub fn measured_plain_seconds(&self) -> Option<f64> {
        Some(self.clock.speed()? * self.plain_seconds)
    }
}

/// The steps of a text, estimated by the costs.
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
/// // A pass of the target, and two of the draft.
/// assert_eq!(estimate.observe(&draft, &outcome), 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct CostEstimate {
    costs: Costs,
    /// What the costs of the next step depend on. Sequences beside this one are taken for as long,
    /// and do as this one does.
    pub context: StepContext,
    /// Tokens since the draft was last asked.
    unasked: usize,
    /// Tokens that the last step scored, and its seconds by the costs.
    last: (usize, f64),
    /// Whether nothing was drafted in the step before it.
    behind_plain: bool,
    /// What was done so far.
    pub choices: Choices,
}

impl CostEstimate {
    /// By these costs.
    pub fn new(costs: Costs) -> Self {
        Self { costs, ..Self::default() }
    }

    /// Seconds of a pass of the target over so many tokens of each sequence.
    pub fn target(&self, tokens: usize) -> f64 {
        self.costs.target.seconds(tokens, &self.context)
    }

    /// Seconds of a pass of the draft, likewise.
    pub fn draft(&self, tokens: usize) -> f64 {
        self.costs.draft.seconds(tokens, &self.context)
    }

    /// Seconds of the draft's first pass in a step, and of reading in it what was decided without
    /// the draft, or as if that had been read.
    pub fn first(&self, reads: bool) -> f64 {
        let unread = if reads && !self.costs.follows { self.unasked } else { 0 };
        self.costs.first + self.draft(1 + unread)
    }

    /// Takes note of a step. Returns its seconds by the costs.
    pub fn observe(&mut self, draft: &Draft, outcome: &Outcome) -> f64 {
        let (scored, decided) = (draft.tree().len(), outcome.accepted.len() + 1);
        let drafted = draft.pass_sizes().split_first().map_or(0.0, |(_, rest)| {
            self.first(true) + rest.iter().map(|&nodes| self.draft(nodes)).sum::<f64>()
        });
        let seconds = drafted + self.target(scored);
        self.behind_plain = self.last.0 == 1;
        self.last = (scored, seconds);
        self.choices.steps += 1;
        self.choices.plain += u64::from(draft.pass_sizes().is_empty());
        self.choices.plain_seconds += decided as f64 * self.target(1);
        self.choices.seconds += seconds;
        self.unasked = if draft.pass_sizes().is_empty() { self.unasked + decided } else { 0 };
        seconds
    }

    /// Whether the last step tells what plain decoding takes: after another one without drafted
    /// tokens.
    pub fn is_plain(&self) -> bool {
        self.behind_plain && self.last.0 == 1
    }

    /// Takes note of its seconds by the clock.
    pub fn record_time(&mut self, seconds: f64) {
        let (scored, costs) = self.last;
        // Of a pass with others nobody knows who took how much.
        if self.context.batch_size <= 1 && (scored > 1 || self.is_plain()) {
            let (clock, kind) = (&mut self.choices.clock, usize::from(scored > 1));
            clock.steps[kind] += 1;
            clock.clock[kind] += seconds;
            clock.costs[kind] += costs;
        }
    }
}
