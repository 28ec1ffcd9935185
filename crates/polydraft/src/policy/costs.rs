//! Costs of steps, and the expected quality of the draft.

use serde::{Deserialize, Serialize};

use super::StepContext;
use crate::{Error, Result};

/// Seconds of the passes of target and draft on one machine. All other time of a step counts as
/// part of the target's pass: distributions, verification, rolling back caches.
///
/// ```
/// use polydraft::policy::{Costs, StepContext};
///
/// // Tokens, seconds without context, additional seconds per token of context.
/// let costs = r#"{"target": [[1, 1.0], [4, 1.5, 0.001], [8, 2.5, 0.002]], "draft": [[1, 0.1]]}"#;
/// let costs: Costs = serde_json::from_str(costs)?;
/// let context = |batch_size, context_length| {
///     StepContext { batch_size, context_length, ..StepContext::default() }
/// };
/// assert_eq!(costs.target.seconds(1, &context(1, 50)), 1.0);
/// assert_eq!(costs.target.seconds(6, &context(1, 0)), 2.0);
/// // Two sequences with four tokens each.
/// assert_eq!(costs.target.seconds(4, &context(2, 250)), 3.0);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// Passes of the target, by number of tokens: the last one and the drafted ones.
    pub target: Passes,
    /// Passes of the draft, by number of tokens.
    pub draft: Passes,
    /// Additional seconds of the draft's first pass in a step: the target's pass has just evicted
    /// the draft from the CPU caches.
    pub first: f64,
    /// True if tokens decided without the draft cost it nothing when it is used again, because it
    /// continues from the target's computations.
    pub follows: bool,
    /// Prior rejection rate of drafted tokens for a new sequence; values above 0.5 count as 0.5.
    pub rejected: f64,
    /// Weight of what was learned from earlier sequences.
    pub learned: Learned,
}

/// Measured times of steps with a batch of one sequence: `[0]` of plain steps, `[1]` of steps with
/// drafted tokens.
///
/// A plain step counts only after another plain step, when the caches are as in plain decoding.
/// With a small model the first plain step after a draft takes a third longer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredTimes {
    /// Number of steps.
    pub steps: [u64; 2],
    /// Measured seconds of these steps.
    pub clock: [f64; 2],
    /// Seconds of these steps, estimated from the costs.
    pub costs: [f64; 2],
}

/// Weight of what was learned from earlier sequences.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// Timed plain steps.
    pub plain_steps: u64,
    /// Timed steps for each pass of the target in the costs.
    pub steps: Vec<u64>,
    /// Timed steps with draft passes.
    pub draft_steps: u64,
    /// Verified drafted tokens.
    pub nodes: u64,
    /// Steps over which the gain was averaged.
    pub gain_steps: u64,
    /// Average speed-up over plain decoding, estimated from the costs.
    pub gain: f64,
}

/// Minimum number of steps of a kind in a sequence whose times are used: plain ones measure the
/// speed of the machine.
pub(super) const MIN_TIMED_STEPS: u64 = 4;

impl MeasuredTimes {
    /// Measured seconds of plain steps relative to the costs; `None` with too few plain steps.
    pub fn slowdown(&self) -> Option<f64> {
        (self.steps[0] >= MIN_TIMED_STEPS).then(|| self.clock[0] / self.costs[0])
    }
}

impl Default for Costs {
    /// A generic machine: a memory-bound target, and a draft of a tenth of its cost.
    fn default() -> Self {
        let pass = |tokens, seconds| Pass { tokens, seconds, longer: 0.0 };
        let passes = |unit| Passes(vec![pass(1, unit), pass(8, 1.3 * unit), pass(32, 3.0 * unit)]);
        Self {
            target: passes(1.0),
            draft: passes(0.1),
            first: 0.0,
            follows: false,
            rejected: 0.5,
            learned: Learned::default(),
        }
    }
}

impl Costs {
    /// Costs with which drafting nearly always pays: a target pass takes the same for all trees, a
    /// draft pass next to nothing, and few tokens are rejected. For tests of drafts.
    pub fn with_cheap_drafts() -> Self {
        let pass = |tokens, seconds| Pass { tokens, seconds, longer: 0.0 };
        let target = Passes(vec![pass(1, 1.0), pass(32, 1.0)]);
        let draft = Passes(vec![pass(1, 0.02)]);
        Self { target, draft, rejected: 0.1, ..Self::default() }
    }

    pub(super) fn validate(&self) -> Result<()> {
        let Self { target, draft, first, rejected, .. } = self;
        let valid = target.is_valid() && draft.is_valid() && target.0[0].seconds > 0.0;
        if valid && first.is_finite() && *first >= 0.0 && (0.0..=1.0).contains(rejected) {
            return Ok(());
        }
        Err(Error::Setting {
            setting: "costs",
            expected: "passes over 1 and more tokens, each with its seconds; a rate of rejected \
                       tokens from 0 to 1",
            got: format!("{target:?}, {draft:?}, {first}, {rejected}"),
        })
    }
}

/// Cost of a pass over a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Tokens of all sequences in the pass.
    pub tokens: usize,
    /// Seconds without context.
    pub seconds: f64,
    /// Additional seconds per token of context, as each token attends to the whole context.
    #[serde(default)]
    pub longer: f64,
}

/// Costs of passes, by increasing number of tokens, starting with 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passes(pub Vec<Pass>);

impl Passes {
    /// Seconds of a pass over `tokens` tokens of each sequence: linear interpolation between known
    /// passes, proportional beyond the last.
    pub fn seconds(&self, tokens: usize, context: &StepContext) -> f64 {
        let tokens = tokens * context.batch_size.max(1);
        let seconds = |pass: &Pass| pass.seconds + pass.longer * context.context_length as f64;
        let index = self.0.partition_point(|known| known.tokens < tokens);
        match (self.0[..index].last(), self.0.get(index)) {
            (Some(below), Some(above)) => {
                let fraction =
                    (tokens - below.tokens) as f64 / (above.tokens - below.tokens) as f64;
                seconds(below) + fraction * (seconds(above) - seconds(below))
            }
            (Some(last), None) => seconds(last) * tokens as f64 / last.tokens as f64,
            (None, first) => first.map_or(0.0, seconds),
        }
    }

    fn is_valid(&self) -> bool {
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        self.0.first().is_some_and(|first| first.tokens == 1)
            && self.0.is_sorted_by(|below, above| below.tokens < above.tokens)
            && self.0.iter().all(|pass| is_time(pass.seconds) && is_time(pass.longer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }

    fn context(context_length: usize) -> StepContext {
        StepContext { batch_size: 1, context_length, ..StepContext::default() }
    }

    #[test]
    fn interpolates_pass_costs_linearly() {
        let target = r#"{"target": [[1, 0.9, 0.001], [4, 1.6, 0.004]], "rejected": 0.25}"#;
        let costs: Costs = serde_json::from_str(target).unwrap();
        near(costs.target.seconds(1, &context(100)), 1.0);
        near(costs.target.seconds(0, &context(100)), 1.0);
        near(costs.target.seconds(4, &context(600)), 4.0);
        near(costs.target.seconds(2, &context(0)), 0.9 + 0.7 / 3.0);
        near(costs.target.seconds(8, &context(0)), 3.2);
        near(
            costs.target.seconds(
                1,
                &StepContext { batch_size: 8, context_length: 0, ..StepContext::default() },
            ),
            3.2,
        );
        assert_eq!((costs.rejected, &costs.draft), (0.25, &Costs::default().draft));
        let json = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&json).unwrap(), costs);
        assert!(costs.validate().is_ok());
    }
}
