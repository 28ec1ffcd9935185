//! Costs of steps on this machine, measured with an engine's own models.

use polydraft::policy::Costs;
use polydraft::{PolicyKind, Token};

use super::Engine;
use super::models::no_drafter;
use crate::{DrafterInput, Request, Result, costs};

impl Engine {
    /// Costs of steps here, and the expected acceptances of drafts, in sequences with the prompt
    /// `text`; without one in made-up sequences, where drafts may be worse than elsewhere.
    /// `request` makes requests of a prompt and a policy: their sampling and their verifier are
    /// what is measured. Sessions that are open go on as if nothing had been.
    ///
    /// # Errors
    /// No drafter; failures of the models; requests that are refused.
    pub fn costs(
        &mut self,
        text: &[Token],
        request: &mut dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>>,
    ) -> Result<Costs> {
        let Some(drafter) = &self.models.drafter else { return no_drafter() };
        let follows = drafter.inputs() == DrafterInput::KvCache;
        Ok(Costs { follows, ..costs::measure(self, text, request)? })
    }
}
