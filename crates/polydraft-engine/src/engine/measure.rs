//! What steps cost on this machine, measured with an engine's own models.

use polydraft::policy::Costs;
use polydraft::{PolicyKind, Token};

use super::Engine;
use super::models::no_drafter;
use crate::{DrafterInput, Request, Result, costs};

impl Engine {
    /// What steps cost here, and what to expect of drafts, in texts that begin with `text`; with
    /// none in made-up ones, where drafts may be worse than elsewhere. `request` makes requests of
    /// a prompt and a policy: their sampling and their verifier are what is measured. Sessions that
    /// are open go on as if nothing had been.
    ///
    /// # Errors
    /// No drafter; failures of the models; requests that are refused.
    pub fn costs(
        &mut self,
        text: &[Token],
        request: &mut dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>>,
    ) -> Result<Costs> {
        let Some(drafter) = &self.models.drafter else { return no_drafter() };
        let follows = drafter.reads() == DrafterInput::Kept;
        Ok(Costs { follows, ..costs::measure(self, text, request)? })
    }
}
