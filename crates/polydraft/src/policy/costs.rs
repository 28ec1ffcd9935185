//! What steps cost, what to expect of the draft, and what the clock said of both.

use serde::{Deserialize, Serialize};

use super::StepContext;
use crate::{Error, Result};

/// Seconds of the passes of target and draft on one machine. All that a step takes beside the
/// draft's passes counts as the target's: distributions, verification, caches cut back.
///
/// ```
/// use polydraft::policy::{Costs, StepContext};
///
/// // By tokens: seconds without context, and more for every token of context.
/// let costs = r#"{"target": [[1, 1.0], [4, 1.5, 0.001], [8, 2.5, 0.002]], "draft": [[1, 0.1]]}"#;
/// let costs: Costs = serde_json::from_str(costs)?;
/// let of = |batch_size, context_length| {
///     StepContext { batch_size, context_length, ..StepContext::default() }
/// };
/// assert_eq!((costs.target.seconds(1, &of(1, 50)), costs.target.seconds(6, &of(1, 0))), (1.0, 2.0));
/// // Two sequences, four tokens of each.
/// assert_eq!(costs.target.seconds(4, &of(2, 250)), 3.0);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// Of the target, by tokens: 1 and those that are drafted.
    pub target: Passes,
    /// Of the draft, by tokens.
    pub draft: Passes,
    /// What the draft's first pass in a step takes beyond another: the target has just had the
    /// caches.
    pub first: f64,
    /// Whether what was decided without the draft costs it nothing when it is asked again: it goes
    /// on after what the target computed.
    pub follows: bool,
    /// The part of the drafted tokens that is rejected, before anything is known of a measured; more
    /// than every other one is not believed.
    pub rejected: f64,
    /// What the clock said since these costs were measured or last corrected.
    pub clock: MeasuredTimes,
}

/// What the clock said of steps of one sequence alone: of those without drafted tokens, and of
/// those with some.
///
/// The former count after another such step: weights are then where they are in plain decoding. Of
/// a small model the first step after a draft takes a third longer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MeasuredTimes {
    /// So many steps.
    pub steps: [u64; 2],
    /// Their seconds by the clock.
    pub clock: [f64; 2],
    /// Their seconds by the costs.
    pub costs: [f64; 2],
}

/// Plain steps without which a measured says nothing: they tell how fast the machine was.
const FEW: u64 = 4;
/// Steps of both kinds after which the clock is believed: one is off by a sixth on a virtual
/// machine, the ratio of so many by 0.024.
const ENOUGH: u64 = 100;
/// The part by which drafted steps may be off: less is noise, and a seed is to give the same measured
/// as long as costs are not wrong.
const TOLERANCE: f64 = 0.05;

impl MeasuredTimes {
    /// How many times as long as the costs say plain steps took, if there were some.
    pub fn speed(&self) -> Option<f64> {
        (self.steps[0] >= FEW).then(|| self.clock[0] / self.costs[0])
    }
}

impl Default for Costs {
    /// Nobody's machine: a target bound by memory, and a draft of a tenth of it.
    fn default() -> Self {
        let pass = |tokens, seconds| Pass { tokens, seconds, longer: 0.0 };
        let passes = |unit| Passes(vec![pass(1, unit), pass(8, 1.3 * unit), pass(32, 3.0 * unit)]);
        Self {
            target: passes(1.0),
            draft: passes(0.1),
            first: 0.0,
            follows: false,
            rejected: 0.5,
            clock: MeasuredTimes::default(),
        }
    }
}

impl Costs {
    /// Costs by which drafting pays nearly always: a target's pass takes the same for all trees,
    /// a draft's next to nothing, and few tokens are rejected. For tests of drafts themselves.
    pub fn with_cheap_drafts() -> Self {
        let pass = |tokens, seconds| Pass { tokens, seconds, longer: 0.0 };
        let target = Passes(vec![pass(1, 1.0), pass(32, 1.0)]);
        let draft = Passes(vec![pass(1, 0.02)]);
        Self { target, draft, rejected: 0.1, ..Self::default() }
    }

    /// Costs by which drafting never pays: for as long as nothing is known.
    pub fn without_drafts() -> Self {
        let draft = Passes(vec![Pass { tokens: 1, seconds: 1e6, longer: 0.0 }]);
        Self { draft, rejected: 1.0, ..Self::default() }
    }

    /// Takes note of what the clock said of a measured. Where it disagrees for long, drafted steps cost
    /// from here on what it says relative to plain ones of the same outputs; whether that is so.
    pub fn calibrate(&mut self, measured: &MeasuredTimes) -> bool {
        let Some(speed) = measured.speed() else { return false };
        let MeasuredTimes { steps, clock, costs } = &mut self.clock;
        for kind in [0, 1] {
            steps[kind] += measured.steps[kind];
            clock[kind] += measured.clock[kind] / speed;
            costs[kind] += measured.costs[kind];
        }
        if steps[0].min(steps[1]) < ENOUGH {
            return false;
        }
        let ratio = clock[1] / costs[1];
        self.clock = MeasuredTimes::default();
        let is_wrong = (ratio - 1.0).abs() > TOLERANCE;
        if is_wrong {
            let plain = self.target.0.first().map_or(0.0, |pass| pass.seconds);
            for pass in self.target.0.iter_mut().skip(1).chain(&mut self.draft.0) {
                (pass.seconds, pass.longer) = (ratio * pass.seconds, ratio * pass.longer);
            }
            // More tokens take no less.
            self.target.0.iter_mut().for_each(|pass| pass.seconds = pass.seconds.max(plain));
            self.first *= ratio;
        }
        is_wrong
    }

    pub(super) fn validate(&self) -> Result<()> {
        let Self { target, draft, first, rejected, .. } = self;
        let passes = target.are_passes() && draft.are_passes() && target.0[0].seconds > 0.0;
        if passes && first.is_finite() && *first >= 0.0 && (0.0..=1.0).contains(rejected) {
            return Ok(());
        }
        Err(Error::Setting {
            setting: "costs",
            expected: "passes over 1 and more tokens, each with its seconds; a part of rejected \
                       tokens from 0 to 1",
            got: format!("{target:?}, {draft:?}, {first}, {rejected}"),
        })
    }
}

/// A pass over so many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Of all sequences together.
    pub tokens: usize,
    /// Seconds without context.
    pub seconds: f64,
    /// Seconds more for every token of context: each token attends to all of them.
    #[serde(default)]
    pub longer: f64,
}

/// Passes, tokens growing from 1 on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passes(pub Vec<Pass>);

impl Passes {
    /// Seconds of a pass over so many tokens of each sequence: on the line between two that are
    /// known; after the last in proportion to it.
    pub fn seconds(&self, tokens: usize, context: &StepContext) -> f64 {
        let tokens = tokens * context.batch_size.max(1);
        let seconds = |pass: &Pass| pass.seconds + pass.longer * context.context_length as f64;
        let place = self.0.partition_point(|known| known.tokens < tokens);
        match (self.0[..place].last(), self.0.get(place)) {
            (Some(below), Some(above)) => {
                let part = (tokens - below.tokens) as f64 / (above.tokens - below.tokens) as f64;
                seconds(below) + part * (seconds(above) - seconds(below))
            }
            (Some(last), None) => seconds(last) * tokens as f64 / last.tokens as f64,
            (None, first) => first.map_or(0.0, seconds),
        }
    }

    fn are_passes(&self) -> bool {
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

    fn after(context_length: usize) -> StepContext {
        StepContext { batch_size: 1, context_length, ..StepContext::default() }
    }

    #[test]
    fn passes_are_lines_between_those_known() {
        let target = r#"{"target": [[1, 0.9, 0.001], [4, 1.6, 0.004]], "rejected": 0.25}"#;
        let costs: Costs = serde_json::from_str(target).unwrap();
        near(costs.target.seconds(1, &after(100)), 1.0);
        near(costs.target.seconds(0, &after(100)), 1.0);
        near(costs.target.seconds(4, &after(600)), 4.0);
        near(costs.target.seconds(2, &after(0)), 0.9 + 0.7 / 3.0);
        near(costs.target.seconds(8, &after(0)), 3.2);
        near(
            costs.target.seconds(
                1,
                &StepContext { batch_size: 8, context_length: 0, ..StepContext::default() },
            ),
            3.2,
        );
        assert_eq!((costs.rejected, &costs.draft), (0.25, &Costs::default().draft));
        let measured = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&measured).unwrap(), costs);
        assert!(costs.validate().is_ok());
    }

    /// A measured on a machine of half the speed, in which drafted steps took so many times as long as
    /// the costs say, beside plain ones.
    fn measured(ratio: f64) -> MeasuredTimes {
        MeasuredTimes { steps: [50; 2], clock: [64.0, 100.0 * ratio], costs: [32.0, 50.0] }
    }

    #[test]
    fn the_clock_is_believed_when_it_disagrees_for_long() {
        let new = || Costs { first: 0.5, ..Costs::default() };
        let mut costs = new();
        assert!(!costs.calibrate(&measured(1.3)));
        assert_eq!(costs.target, new().target);
        assert!(costs.calibrate(&measured(1.3)));
        near(costs.target.seconds(1, &after(0)), 1.0);
        near(costs.target.seconds(8, &after(0)), 1.3 * 1.3);
        near(costs.draft.seconds(1, &after(0)), 0.13);
        near(costs.first, 0.65);
        assert_eq!(costs.clock, MeasuredTimes::default());
        // Noise moves nothing, nor does the machine's speed, nor a measured without plain steps.
        let mut costs = new();
        for _ in 0..10 {
            assert!(!costs.calibrate(&measured(1.04)));
            assert!(!costs.calibrate(&MeasuredTimes { steps: [0, 99], ..measured(3.0) }));
        }
        // No pass over several tokens is faster than one over one.
        assert!(costs.calibrate(&measured(0.5)) || costs.calibrate(&measured(0.5)));
        near(costs.target.seconds(2, &after(0)), 1.0);
    }
}
