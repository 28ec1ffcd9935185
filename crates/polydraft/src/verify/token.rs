//! Token-by-token verification of a single path.
//!
//! Problem: tokens x_1..x_L were drawn one after the other from the draft's distributions q; emit a
//! prefix of them and one more token so that the output has the target's distribution p.
//! Source: Leviathan, Kalman, Matias 2023, "Fast Inference from Transformers via Speculative
//! Decoding", algorithm 1; Chen et al. 2023, "Accelerating Large Language Model Decoding with
//! Speculative Sampling", algorithm 2.
//! Complexity: one look-up of p and q per token; one draw from the residual, which reads the
//! support of p at most once. Deviations:
//! 1. The path may have any length, 0 included: then the token is drawn from p at the root (plain
//!    decoding).

use super::block::single_path;
use super::{CheckedTargets, Outcome, TargetDistributions, Verifier};
use crate::draft::{Draft, DraftTree, Form};
use crate::{RandomSource, Result};

/// Accepts each drafted token x with probability min(1, p(x)/q(x)); at the first rejection emits
/// from (p − q)+ normalised, and after the last acceptance one more token from p.
#[derive(Debug, Default)]
pub struct TokenByToken;

impl Verifier for TokenByToken {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("verifier token", "a single path", form.is_chain())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = &CheckedTargets::new(draft, target);
        let mut path = single_path(draft);
        let mut node = DraftTree::ROOT;
        for (index, &child) in path.iter().enumerate() {
            let (target, draft, token) =
                (target.target(node)?, draft.drawn_from(node)?, draft.tree().token(child));
            if !rng.coin(target.probability(token) / draft.probability(token)) {
                let token = target.sample_residual(1.0, draft, 1.0, rng);
                path.truncate(index);
                return Ok(Outcome { accepted: path, token });
            }
            node = child;
        }
        Ok(Outcome { accepted: path, token: target.target(node)?.sample(rng) })
    }
}
