//! What steps cost, what to expect of the draft, and what the clock said of both.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Seconds of the passes of target and draft on one machine. All that a step takes beside the
/// draft's passes counts as the target's: distributions, verification, caches cut back.
///
/// ```
/// use polydraft::policy::Passes;
///
/// // By tokens: seconds without context, and seconds for every token of context.
/// let passes = Passes::new(vec![(1, 1.0, 0.0), (4, 1.5, 0.001), (8, 2.5, 0.002)])?;
/// assert_eq!((passes.at(1.0, 50), passes.at(6.0, 0), passes.at(8.0, 250)), (1.0, 2.0, 3.0));
/// # Ok::<(), polydraft::Error>(())
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
    /// on behind what the target computed.
    pub follows: bool,
    /// The part of the drafted tokens that is rejected, before anything is known of a text; more
    /// than every other one is not believed.
    pub rejected: f64,
    /// What the clock said since these costs were measured or last corrected.
    pub clock: Clocked,
}

/// Seconds of steps of one kind, by the clock and by the costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Sum {
    /// So many steps.
    pub steps: u64,
    /// Seconds by the clock.
    pub clock: f64,
    /// Seconds by the costs.
    pub costs: f64,
}

/// What the clock said of steps of one sequence alone.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Clocked {
    /// Steps without drafted tokens behind another such step: weights are then where they are in
    /// plain decoding. Of a small model the first step behind a draft takes a third longer.
    pub plain: Sum,
    /// Steps with drafted tokens.
    pub drafted: Sum,
}

/// Plain steps without which a text says nothing: they tell how fast the machine was.
const FEW: u64 = 4;
/// Plain and drafted steps after which the clock is believed: one is off by a sixth on a virtual
/// machine, the ratio of so many of both by 0.03.
const ENOUGH: u64 = 64;
/// The part by which drafted steps may be off: less is noise, and a seed is to give the same text
/// as long as costs are not wrong.
const TOLERANCE: f64 = 0.1;

impl Clocked {
    /// How many times as long as the costs say plain steps took, if there were some.
    pub fn speed(&self) -> Option<f64> {
        (self.plain.steps >= FEW).then(|| self.plain.clock / self.plain.costs)
    }
}

impl Default for Costs {
    /// Nobody's machine: a target bound by memory, and a draft of a tenth of it.
    fn default() -> Self {
        let passes = |seconds| {
            Passes(vec![(1, seconds, 0.0), (8, 1.3 * seconds, 0.0), (32, 3.0 * seconds, 0.0)])
        };
        Self {
            target: passes(1.0),
            draft: passes(0.1),
            first: 0.0,
            follows: false,
            rejected: 0.5,
            clock: Clocked::default(),
        }
    }
}

impl Costs {
    /// Takes note of what the clock said of a text. Where it disagrees for long, drafted steps cost
    /// from here on what it says relative to plain ones of the same texts; whether that is so.
    pub fn learn(&mut self, text: &Clocked) -> bool {
        let Some(speed) = text.speed() else { return false };
        let Clocked { plain, drafted } = &mut self.clock;
        for (sum, new) in [(&mut *plain, text.plain), (&mut *drafted, text.drafted)] {
            sum.steps += new.steps;
            sum.clock += new.clock / speed;
            sum.costs += new.costs;
        }
        if plain.steps.min(drafted.steps) < ENOUGH {
            return false;
        }
        let (ratio, pass) = (drafted.clock / drafted.costs, self.target.0[0].1);
        self.clock = Clocked::default();
        let is_wrong = (ratio - 1.0).abs() > TOLERANCE;
        if is_wrong {
            self.target.0[1..].iter_mut().for_each(|(_, seconds, longer)| {
                (*seconds, *longer) = (pass.max(ratio * *seconds), ratio * *longer);
            });
            self.draft.0.iter_mut().for_each(|(_, seconds, longer)| {
                (*seconds, *longer) = (ratio * *seconds, ratio * *longer);
            });
            self.first *= ratio;
        }
        is_wrong
    }

    pub(super) fn validate(&self) -> Result<()> {
        let Self { target, first, rejected, .. } = self;
        let is_right = target.0[0].1 > 0.0 && first.is_finite() && *first >= 0.0;
        if is_right && (0.0..=1.0).contains(rejected) {
            return Ok(());
        }
        Err(Error::Setting {
            setting: "costs",
            expected: "passes of the target that take time, a first pass of the draft that takes \
                       no time or more, a part of rejected tokens from 0 to 1",
            got: format!("{:?}, {first}, {rejected}", target.0),
        })
    }
}

/// Seconds of passes by tokens: without context, and more for every token of context, for each
/// token attends to all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<f64>>", into = "Vec<(usize, f64, f64)>")]
pub struct Passes(Vec<(usize, f64, f64)>);

impl Passes {
    /// Tokens, seconds without context, seconds for every token of context.
    ///
    /// # Errors
    /// No pass; tokens that do not grow from 1 on; seconds that are no time.
    pub fn new(passes: Vec<(usize, f64, f64)>) -> Result<Self> {
        let grows = passes.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let times = passes.iter().all(|pass| is_time(pass.1) && is_time(pass.2));
        if passes.first().is_some_and(|(tokens, ..)| *tokens == 1) && grows && times {
            return Ok(Self(passes));
        }
        Err(Error::Setting {
            setting: "costs",
            expected: "tokens, seconds and seconds for every token of context, [[1, 0.01, 1e-6], \
                       [4, 0.012, 2e-6], ..], tokens growing from 1 on",
            got: format!("{passes:?}"),
        })
    }

    /// Those that are known.
    pub fn known(&self) -> &[(usize, f64, f64)] {
        &self.0
    }

    /// Seconds of a pass over so many tokens behind so many: on the line between two that are
    /// known; behind the last in proportion to it.
    pub fn at(&self, tokens: f64, context: usize) -> f64 {
        let behind = |(tokens, seconds, longer): (usize, f64, f64)| {
            (tokens as f64, seconds + longer * context as f64)
        };
        let mut before = behind(self.0[0]);
        for known in self.0.iter().copied().map(behind) {
            if tokens <= known.0 {
                let part = (tokens - before.0).max(0.0) / (known.0 - before.0).max(1.0);
                return before.1 + part * (known.1 - before.1);
            }
            before = known;
        }
        before.1 * tokens / before.0
    }
}

/// With two numbers each where context takes no time.
impl TryFrom<Vec<Vec<f64>>> for Passes {
    type Error = Error;

    fn try_from(passes: Vec<Vec<f64>>) -> Result<Self> {
        let part = |pass: &Vec<f64>, part: usize| pass.get(part).copied().unwrap_or(0.0);
        let passes =
            passes.iter().map(|pass| (part(pass, 0) as usize, part(pass, 1), part(pass, 2)));
        Self::new(passes.collect())
    }
}

impl From<Passes> for Vec<(usize, f64, f64)> {
    fn from(passes: Passes) -> Self {
        passes.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }

    #[test]
    fn passes_are_lines_between_those_known() {
        let passes = Passes::new(vec![(1, 0.9, 0.001), (4, 1.6, 0.004)]).unwrap();
        near(passes.at(1.0, 100), 1.0);
        near(passes.at(0.5, 100), 1.0);
        near(passes.at(4.0, 600), 4.0);
        near(passes.at(2.5, 0), 1.25);
        near(passes.at(8.0, 0), 3.2);
        let costs = Costs { target: passes, ..Costs::default() };
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
        let least = r#"{"target": [[1, 1.0]], "draft": [[1, 0.1]]}"#;
        near(serde_json::from_str::<Costs>(least).unwrap().target.at(3.0, 5000), 3.0);
    }

    /// A text on a machine of half the speed, in which drafted steps took so many times as long as
    /// the costs say, beside plain ones.
    fn text(ratio: f64) -> Clocked {
        let sum = |costs: f64, ratio: f64| Sum { steps: 32, clock: 2.0 * ratio * costs, costs };
        Clocked { plain: sum(32.0, 1.0), drafted: sum(50.0, ratio) }
    }

    #[test]
    fn the_clock_is_believed_when_it_disagrees_for_long() {
        let new = || Costs { first: 0.5, ..Costs::default() };
        let mut costs = new();
        assert!(!costs.learn(&text(1.3)));
        assert_eq!(costs.target, new().target);
        assert!(costs.learn(&text(1.3)));
        near(costs.target.at(1.0, 0), 1.0);
        near(costs.target.at(8.0, 0), 1.3 * 1.3);
        near(costs.draft.at(1.0, 0), 0.13);
        near(costs.first, 0.65);
        assert_eq!(costs.clock, Clocked::default());
        // Noise moves nothing, nor does the machine's speed, nor a text without plain steps.
        let mut costs = new();
        for _ in 0..10 {
            assert!(!costs.learn(&text(1.08)));
            assert!(!costs.learn(&Clocked { plain: Sum::default(), ..text(3.0) }));
        }
        // No pass over several tokens is faster than one over one.
        assert!(costs.learn(&text(0.5)) || costs.learn(&text(0.5)));
        near(costs.target.at(2.0, 0), 1.0);
    }
}
