//! The checks: each looks at one promise of a server.

mod exact;
mod greedy;
mod once;
mod reference;
mod same;
mod sampled;
mod scores;

use once::Once;

use crate::error::Result;
use crate::lab::Lab;
use crate::report::Outcome;

/// A check. It works in rounds, so that all of them get on together and the clock can end them.
pub trait Check {
    /// Its name, for options and reports.
    fn name(&self) -> &'static str;
    /// What it looks at.
    fn title(&self) -> String;
    /// Whether its verdict is random, and shares the error rate with the others.
    fn is_statistical(&self) -> bool;
    /// Asks some more; whether it is done. `threshold` is the logarithm of what must be won to accuse.
    fn round(&mut self, lab: &mut Lab<'_>, threshold: f64) -> Result<bool>;
    /// What it found.
    fn outcome(&mut self, lab: &mut Lab<'_>, threshold: f64) -> Result<Outcome>;
}

/// All of them, in the order of the report.
pub fn all(sensitivity: f64, tolerance: f64) -> Vec<Box<dyn Check>> {
    let mut checks: Vec<Box<dyn Check>> = Vec::new();
    for sampled in sampled::all(sensitivity, tolerance) {
        checks.push(Box::new(sampled));
    }
    checks.push(Box::new(reference::Reference::new(tolerance)));
    for once in [
        Once::new("greedy", "tokens at temperature 0", greedy::check),
        Once::new("logprobs", "log-probabilities belong to their tokens", scores::check),
        Once::new("stop-strings", "stop strings", exact::stops),
        Once::new("streams", "streams equal whole answers, usage counts tokens", exact::streams),
        Once::new("seeds", "equal seeds give equal answers, others others", same::seeds),
    ] {
        checks.push(Box::new(once));
    }
    checks.push(Box::new(same::Independence::between_requests()));
    checks.push(Box::new(same::Independence::between_choices()));
    checks
}

/// The names of all checks, with what they look at.
pub fn names() -> Vec<(&'static str, String)> {
    all(0.03, 0.0).iter().map(|check| (check.name(), check.title())).collect()
}
