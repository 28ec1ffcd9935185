//! What steps take by the costs, and beside that by the clock.

use serde::Serialize;

use super::{Clocked, Costs, StepContext};
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
    pub clock: Clocked,
}

impl Choices {
    /// How many times as fast as plain decoding the text was, by the costs; 1 before the first
    /// step.
    pub fn gain(&self) -> f64 {
        if self.seconds > 0.0 { self.plain_seconds / self.seconds } else { 1.0 }
    }

    /// Seconds that plain decoding would have taken for the same tokens, by the clock, if steps of
    /// the text tell.
    pub fn plain_seconds_by_clock(&self) -> Option<f64> {
        Some(self.clock.speed()? * self.plain_seconds)
    }
}

/// The steps of a text, reckoned.
///
/// ```
/// use polydraft::conformance::tree::{draw, random_pair, TargetOf};
/// use polydraft::policy::{Costs, Passes, Reckoning};
/// use polydraft::{PolicyKind, VerifierKind};
/// use rand::SeedableRng;
///
/// let draft = Passes::new(vec![(1, 0.25, 0.0)])?;
/// let target = Passes::new(vec![(1, 1.0, 0.0), (8, 1.0, 0.0)])?;
/// let mut reckoning = Reckoning::new(Costs { draft, target, ..Costs::default() });
/// let policy = PolicyKind::chain(2).build()?;
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
/// let pair = random_pair(2, 3, 0.5, false, &mut rng)?;
/// let draft = draw(policy.as_ref(), &pair.draft, &mut rng)?;
/// let mut verifier = "block".parse::<VerifierKind>()?.build()?;
/// let outcome = verifier.verify(&draft, &TargetOf::new(draft.tree(), &pair.target), &mut rng)?;
/// // A pass of the target, and two of the draft.
/// assert_eq!(reckoning.observe(&draft, &outcome), 1.5);
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Reckoning {
    costs: Costs,
    context: StepContext,
    /// Tokens since the draft was last asked.
    unasked: usize,
    /// Tokens that the last step scored, and its seconds by the costs.
    last: (usize, f64),
    /// Whether nothing was drafted in the step before it.
    behind_plain: bool,
    choices: Choices,
}

impl Reckoning {
    /// By these costs.
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            context: StepContext { batch_size: 1, context_length: 0 },
            unasked: 0,
            last: (0, 0.0),
            behind_plain: false,
            choices: Choices::default(),
        }
    }

    /// What was done so far.
    pub fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Takes note of what a step costs depend on. Sequences beside this one are taken for as long,
    /// and do as this one does.
    pub fn begin_step(&mut self, context: &StepContext) {
        self.context = *context;
    }

    /// Seconds of a pass of the target over so many tokens of each sequence.
    pub fn target(&self, tokens: usize) -> f64 {
        let StepContext { batch_size, context_length } = self.context;
        self.costs.target.at((tokens * batch_size) as f64, context_length)
    }

    /// Seconds of a pass of the draft, likewise.
    pub fn draft(&self, tokens: usize) -> f64 {
        let StepContext { batch_size, context_length } = self.context;
        self.costs.draft.at((tokens * batch_size) as f64, context_length)
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
        let drafted = draft.asked().split_first().map_or(0.0, |(_, rest)| {
            self.first(true) + rest.iter().map(|&nodes| self.draft(nodes)).sum::<f64>()
        });
        let seconds = drafted + self.target(scored);
        self.behind_plain = self.last.0 == 1;
        self.last = (scored, seconds);
        self.choices.steps += 1;
        self.choices.plain += u64::from(draft.asked().is_empty());
        self.choices.plain_seconds += decided as f64 * self.target(1);
        self.choices.seconds += seconds;
        self.unasked = if draft.asked().is_empty() { self.unasked + decided } else { 0 };
        seconds
    }

    /// Takes note of its seconds by the clock.
    pub fn clock(&mut self, seconds: f64) {
        let (scored, by_costs) = self.last;
        let sum = match scored {
            // Of a pass with others nobody knows who took how much.
            _ if self.context.batch_size > 1 => return,
            1 if !self.behind_plain => return,
            1 => &mut self.choices.clock.plain,
            _ => &mut self.choices.clock.drafted,
        };
        sum.steps += 1;
        sum.clock += seconds;
        sum.costs += by_costs;
    }
}
