//! Deterministic checks that take a single round.

use super::Check;
use crate::error::{Error, Result};
use crate::report::{Outcome, Verdict};
use crate::state::AuditState;

/// Deterministic check.
pub struct Once {
    name: &'static str,
    title: &'static str,
    run: fn(&mut AuditState<'_>) -> Result<Outcome>,
    outcome: Option<Outcome>,
}

impl Once {
    /// Creates a check from its function.
    pub fn new(
        name: &'static str,
        title: &'static str,
        run: fn(&mut AuditState<'_>) -> Result<Outcome>,
    ) -> Self {
        Self { name, title, run, outcome: None }
    }
}

impl Check for Once {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn is_statistical(&self) -> bool {
        false
    }

    fn round(&mut self, state: &mut AuditState<'_>, _: f64) -> Result<bool> {
        self.outcome = Some(match (self.run)(state) {
            Err(Error::Refused { status, reason, .. }) => Outcome::not_applicable(format!(
                "the server rejected the request ({status}): {reason}"
            )),
            outcome => outcome?,
        });
        Ok(true)
    }

    fn outcome(&mut self, _: &mut AuditState<'_>, _: f64) -> Result<Outcome> {
        let unseen =
            || Outcome::certain(Verdict::NotEnoughData, 0, "the audit ended before this check");
        Ok(self.outcome.clone().unwrap_or_else(unseen))
    }
}
