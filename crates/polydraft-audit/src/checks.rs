//! Checks of an audit, each of one property of the server.

mod exact;
mod greedy;
mod once;
mod reference;
mod same;
mod sampled;
mod scores;

use once::Once;

use crate::error::Result;
use crate::report::Outcome;
use crate::state::AuditState;

/// A check, executed in rounds, so that all checks progress together and a time limit can end them.
pub trait Check {
    /// Name, for options and reports.
    fn name(&self) -> &'static str;
    /// Tested property, for reports.
    fn title(&self) -> String;
    /// Whether the verdict is random; such checks share the error rate.
    fn is_statistical(&self) -> bool;
    /// Sends further requests; returns whether the check is complete. `threshold` is the logarithm
    /// of the wealth that proves a fault.
    fn round(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<bool>;
    /// Returns the result.
    fn outcome(&mut self, state: &mut AuditState<'_>, threshold: f64) -> Result<Outcome>;
}

/// Creates all checks, in the order of the report.
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
        Once::new("streams", "streams equal complete answers, usage counts tokens", exact::streams),
        Once::new(
            "seeds",
            "equal seeds give equal answers, different seeds different ones",
            same::seeds,
        ),
    ] {
        checks.push(Box::new(once));
    }
    checks.push(Box::new(same::Independence::between_requests()));
    checks.push(Box::new(same::Independence::between_choices()));
    checks
}

/// Lists names and titles of all checks.
pub fn names() -> Vec<(&'static str, String)> {
    all(0.03, 0.0).iter().map(|check| (check.name(), check.title())).collect()
}
