//! What steps cost on this machine, measured with an engine's own models.

use polydraft::{PolicyKind, Token};

use super::Engine;
use super::models::no_drafter;
use crate::costs::{self, Measured};
use crate::{Request, Result};

impl Engine {
    /// What steps cost here, and what to expect of drafts, in texts that begin with `text`; with
    /// none in made-up ones, where drafts may be worse than elsewhere. `request` makes requests of
    /// a prompt and a policy: their sampling and their verifier are what is measured, with trees of
    /// up to four paths, or as many as the verifier is exact for; where a pass takes longer than
    /// 0.2 s, passes alone are measured. Sessions that are open go on as if nothing had been.
    ///
    /// # Errors
    /// No drafter; failures of the models; requests that are refused.
    pub fn costs(
        &mut self,
        text: &[Token],
        request: &mut dyn FnMut(Vec<Token>, PolicyKind) -> Result<Request<'static>>,
    ) -> Result<Measured> {
        let Some(drafter) = &mut self.models.drafter else { return no_drafter() };
        let (target, drafter) = (self.models.target.as_mut(), drafter.as_mut());
        let text = costs::text(text, target, drafter);
        let like = request(text.clone(), PolicyKind::paths(1, 1))?;
        let of_draft =
            like.speculation.as_ref().map_or(&like.sampling, |speculation| &speculation.sampling);
        let mut measured = costs::passes(target, drafter, &text, [&like.sampling, of_draft])?;
        costs::steps(self, &text, &mut measured.costs, request)?;
        Ok(measured)
    }
}
