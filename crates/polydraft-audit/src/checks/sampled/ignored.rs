//! Settings that a server takes and ignores.
//!
//! Problem: the tokens of such a server are not distributed as they should be, but speculation has
//! no part in that: the first token of an answer, which involves no draft, shows it as well.
//! Source: the bets of `evidence`, against the hypothesis that the setting is ignored everywhere.
//! Complexity: one more bet per token. Deviations: none.

use super::SUSPICION;
use crate::evidence::{Bettor, Context, Odds};
use crate::report::{Evidence, Outcome, Verdict};
use crate::setting::Setting;

/// Tokens that are observed at least before a setting counts as ignored, beyond [`FACTOR`] times
/// those that showed a deviation: a fault of speculation deviates from this hypothesis as well, and
/// has as much time to show it.
const MORE_TOKENS: usize = 500;
const FACTOR: usize = 4;

/// Bets against the hypothesis that a setting is ignored, on all tokens of answers.
pub struct IgnoredSetting {
    /// The setting as such a server applies it.
    pub setting: Setting,
    bettor: Bettor,
    /// Number of tokens at which the check first found a deviation.
    deviated_at: Option<usize>,
}

impl IgnoredSetting {
    /// Creates the hypothesis; `None` for a setting that changes nothing.
    pub fn new(setting: &Setting, tolerance: f64) -> Option<Self> {
        // End tokens that are ignored leave nothing to test.
        let ignored = Setting { ends: setting.ends.clone(), ..Setting::default() };
        (ignored != *setting).then(|| Self {
            setting: ignored,
            bettor: Bettor::new(tolerance),
            deviated_at: None,
        })
    }

    /// Bets on a token; `observed` is its cell.
    pub fn observe(&mut self, context: &Context, odds: &Odds, observed: usize) {
        self.bettor.observe(context, odds, observed);
    }

    /// Returns whether it is known if the setting is ignored, once the check has found a deviation.
    pub fn is_decided(&mut self, threshold: f64) -> bool {
        let tokens = self.bettor.tokens();
        let deviated_at = *self.deviated_at.get_or_insert(tokens);
        self.bettor.wealth().peak() >= threshold || tokens >= FACTOR * deviated_at + MORE_TOKENS
    }

    /// Returns whether the setting is ignored: all tokens agree with that.
    pub fn is_ignored(&mut self, threshold: f64) -> bool {
        let wealth = self.bettor.wealth();
        let agrees = wealth.peak() < threshold && wealth.current() < SUSPICION.ln();
        agrees && self.is_decided(threshold)
    }
}

/// Creates the outcome of a setting that requests of one token show to be ignored.
pub fn outcome(curl: String) -> Outcome {
    let summary = "the server takes the setting and ignores it, already in requests of one token";
    let what = "an answer of one token that the setting does not allow".to_owned();
    Outcome {
        evidence: vec![Evidence { what, curl }],
        ..Outcome::certain(Verdict::Ignored, 0, summary)
    }
}
