//! What passes cost, and what a draft is expected to be good for.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Seconds of passes of target and draft, each with the distributions that it gives, and of a step
/// beside them.
///
/// ```
/// use polydraft::policy::Passes;
///
/// let passes = Passes::new(vec![(1, 1.0), (4, 1.5), (8, 2.5)])?;
/// assert_eq!((passes.at(1.0), passes.at(6.0)), (1.0, 2.0));
/// # Ok::<(), polydraft::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Of the target, by rows: 1 and the nodes of the tree.
    pub target: Passes,
    /// Of the draft, by rows: the nodes of a level.
    pub draft: Passes,
    /// What the draft's first pass in a step takes beyond another: the target has just had the
    /// caches. Whoever asks the draft pays it, drawn or not.
    #[serde(default)]
    pub first: f64,
    /// Of a step in which something is drawn, beside its passes, by the paths of its tree: draws,
    /// verification, caches cut back. What a plain step takes beside its pass is not in it.
    #[serde(default = "Passes::free")]
    pub verification: Passes,
    /// Whether what was decided without the draft costs it nothing when it is asked again: it goes
    /// on behind what the target computed.
    #[serde(default)]
    pub follows: bool,
    /// What passes take more in longer texts.
    #[serde(default)]
    pub longer: Box<Longer>,
    /// What to expect of the draft before anything is known of a text.
    #[serde(default)]
    pub guess: Guess,
}

/// What passes take more for every token that a text is longer: each row attends to all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Longer {
    /// Tokens of the text with which passes were measured.
    pub than: usize,
    /// Seconds a token of passes of the target, by rows.
    pub target: Passes,
    /// Seconds a token of passes of the draft, by rows.
    pub draft: Passes,
}

impl Default for Longer {
    /// Nothing.
    fn default() -> Self {
        Self { than: 0, target: Passes::free(), draft: Passes::free() }
    }
}

/// How often drafts were rejected, and how unsure the draft was there, on average over nodes that
/// were verified.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guess {
    /// The part of single draws that were rejected, from 0 to 1.
    pub rejected: f64,
    /// 1 − the draft's sureness ([`Distribution::sureness`](crate::Distribution::sureness)), from 0
    /// to 1.
    pub unsure: f64,
}

impl Default for Guess {
    fn default() -> Self {
        Self { rejected: 0.5, unsure: 0.5 }
    }
}

impl Default for Costs {
    /// Nobody's machine: a target bound by memory, and a draft of a tenth of it.
    fn default() -> Self {
        let passes = |unit: f64| Passes::of(vec![(1, unit), (8, 1.3 * unit), (32, 3.0 * unit)]);
        Self {
            target: passes(1.0),
            draft: passes(0.1),
            first: 0.0,
            verification: Passes::free(),
            follows: false,
            longer: Box::default(),
            guess: Guess::default(),
        }
    }
}

impl Costs {
    /// Seconds of a pass of the target over so many rows, behind a text of so many tokens.
    pub fn target(&self, rows: f64, tokens: usize) -> f64 {
        self.behind(&self.target, &self.longer.target, rows, tokens)
    }

    /// Seconds of a pass of the draft, likewise.
    pub fn draft(&self, rows: f64, tokens: usize) -> f64 {
        self.behind(&self.draft, &self.longer.draft, rows, tokens)
    }

    /// Seconds of a step's passes of the draft over so many rows each, the first one first, behind
    /// a text as long as that with which they were measured.
    pub fn drafted(&self, passes: impl IntoIterator<Item = f64>) -> f64 {
        let mut seconds = passes.into_iter().map(|rows| self.draft.at(rows));
        let Some(root) = seconds.next() else { return 0.0 };
        self.first + root + seconds.sum::<f64>()
    }

    fn behind(&self, passes: &Passes, longer: &Passes, rows: f64, tokens: usize) -> f64 {
        let (pass, more) = (passes.at(rows), tokens as f64 - self.longer.than as f64);
        // What a shorter text saves is part of the pass, whatever was measured.
        (pass + more * longer.at(rows)).max(0.5 * pass)
    }

    pub(super) fn validate(&self) -> Result<()> {
        let target = self.target.pairs();
        if target.first().is_none_or(|(_, seconds)| *seconds <= 0.0) {
            return Err(Error::Setting {
                setting: "costs of the target",
                expected: "more than no time",
                got: format!("{target:?}"),
            });
        }
        if !(self.first.is_finite() && self.first >= 0.0) {
            return Err(Error::Setting {
                setting: "costs of the draft's first pass",
                expected: "no time or more",
                got: self.first.to_string(),
            });
        }
        let Guess { rejected, unsure } = self.guess;
        match [rejected, unsure].iter().all(|part| (0.0..=1.0).contains(part)) {
            true => Ok(()),
            false => Err(Error::Setting {
                setting: "guess of an automatic tree",
                expected: "two numbers from 0 to 1",
                got: format!("{:?}", self.guess),
            }),
        }
    }
}

/// Seconds by rows of a pass, or by paths of a tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(usize, f64)>", into = "Vec<(usize, f64)>")]
pub struct Passes {
    pairs: Vec<(usize, f64)>,
    /// Of 0, 1, 2, .. rows: a tree is chosen by looking some thousand passes up.
    table: Vec<f64>,
}

/// Rows up to which passes are looked up.
const LOOKED_UP: usize = 128;

impl Passes {
    /// Pairs of rows and seconds.
    ///
    /// # Errors
    /// No pair; rows that do not grow from 1 on; seconds that are no time.
    pub fn new(pairs: Vec<(usize, f64)>) -> Result<Self> {
        let grows = pairs.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let times = pairs.iter().all(|(_, seconds)| seconds.is_finite() && *seconds >= 0.0);
        if pairs.first().is_some_and(|(rows, _)| *rows == 1) && grows && times {
            return Ok(Self::of(pairs));
        }
        Err(Error::Setting {
            setting: "costs",
            expected: "pairs of rows and seconds, [[1, 0.01], [4, 0.012], ..], rows growing from 1 on",
            got: format!("{pairs:?}"),
        })
    }

    fn of(pairs: Vec<(usize, f64)>) -> Self {
        let mut passes = Self { pairs, table: Vec::new() };
        passes.table = (0..=LOOKED_UP).map(|rows| passes.between(rows as f64)).collect();
        passes
    }

    /// What takes no time.
    pub fn free() -> Self {
        Self::of(vec![(1, 0.0)])
    }

    /// The pairs.
    pub fn pairs(&self) -> &[(usize, f64)] {
        &self.pairs
    }

    /// Seconds of a pass over so many rows: on the line between two pairs; behind the last, in
    /// proportion to it.
    pub fn at(&self, rows: f64) -> f64 {
        let below = rows as usize;
        match self.table.get(below..below.saturating_add(2)) {
            Some(ends) => ends[0] + (rows - below as f64) * (ends[1] - ends[0]),
            None => self.between(rows),
        }
    }

    fn between(&self, rows: f64) -> f64 {
        let mut before = (0.0, 0.0);
        for &(known, seconds) in &self.pairs {
            let known = known as f64;
            if rows <= known {
                // Fewer rows than one there are not.
                let part =
                    if before.0 > 0.0 { (rows - before.0) / (known - before.0) } else { 1.0 };
                return before.1 + part * (seconds - before.1);
            }
            before = (known, seconds);
        }
        before.1 * rows / before.0
    }
}

impl TryFrom<Vec<(usize, f64)>> for Passes {
    type Error = Error;

    fn try_from(pairs: Vec<(usize, f64)>) -> Result<Self> {
        Self::new(pairs)
    }
}

impl From<Passes> for Vec<(usize, f64)> {
    fn from(passes: Passes) -> Self {
        passes.pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_text_takes_longer() {
        let passes = |pairs: &[(usize, f64)]| Passes::new(pairs.to_vec()).unwrap();
        let longer = Longer {
            than: 100,
            target: passes(&[(1, 0.001), (4, 0.004)]),
            draft: passes(&[(1, 0.001)]),
        };
        let costs = Costs {
            target: passes(&[(1, 1.0), (4, 2.0)]),
            draft: passes(&[(1, 0.1)]),
            longer: Box::new(longer),
            ..Costs::default()
        };
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}")
        };
        near(costs.target(1.0, 100), 1.0);
        near(costs.target(1.0, 1100), 2.0);
        near(costs.target(4.0, 600), 4.0);
        near(costs.draft(2.0, 200), 0.4);
        near(costs.target(1.0, 0), 0.9);
        // A shorter one is never free.
        near(costs.draft(1.0, 0), 0.05);
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
        // Files from before.
        let before: Costs =
            serde_json::from_str(r#"{"target": [[1, 1.0]], "draft": [[1, 0.1]]}"#).unwrap();
        near(before.target(3.0, 5000), 3.0);
    }
}
