//! Costs of steps on this machine, measured with an engine's own models.

use polydraft::Token;
use polydraft::policy::Costs;

use super::Engine;
use super::models::no_drafter;
use crate::{CostMeasurement, DrafterInput, RequestFactory, Result};

impl Engine {
    /// Costs of steps here, and the expected acceptances of drafts, in sequences with the prompt
    /// `text`; without one in made-up sequences, where drafts may be worse than elsewhere.
    /// `request` makes requests of a prompt and a policy: their sampling and their verifier are
    /// what is measured. Sessions that are open go on as if nothing had been. [`CostMeasurement`] does
    /// it in parts.
    ///
    /// # Errors
    /// No drafter; failures of the models; requests that are refused.
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

    /// Whether the drafter goes on after what the target computed, from its KV cache.
    pub(crate) fn drafts_from_kv_cache(&self) -> bool {
        let drafter = self.models.drafter.as_ref();
        drafter.is_some_and(|drafter| drafter.input() == DrafterInput::KvCache)
    }
}
