//! Measured costs of steps, with an engine's own models.

use polydraft::Token;
use polydraft::policy::Costs;

use super::Engine;
use super::models::no_drafter;
use crate::{CostMeasurement, DrafterInput, RequestFactory, Result};

impl Engine {
    /// Measures the costs of steps on this machine, and the expected acceptances of drafts, in
    /// sequences with this prompt. An empty prompt gives artificial sequences, in which drafts may
    /// be worse than usual. `request` builds requests from a prompt and a policy; their sampling
    /// and verifier are those whose costs are measured. Open sessions are not affected.
    /// [`CostMeasurement`] measures in parts.
    ///
    /// # Errors
    /// No drafter; failures of the models; rejected requests.
    pub fn measure_costs(
        &mut self,
        prompt: &[Token],
        request: &mut RequestFactory,
    ) -> Result<Costs> {
        if self.models.drafter.is_none() {
            return no_drafter();
        }
        let mut measurement = CostMeasurement::new(self, prompt);
        while measurement.advance(self, request)? {}
        Ok(measurement.costs())
    }

    /// Returns whether the drafter reads the target's KV cache.
    pub(crate) fn drafts_from_kv_cache(&self) -> bool {
        let drafter = self.models.drafter.as_ref();
        drafter.is_some_and(|drafter| drafter.input() == DrafterInput::KvCache)
    }
}
