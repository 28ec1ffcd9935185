//! The invariant verifier: the output for a seed is the same for every draft model and tree.
//!
//! Problem: the output must depend on the target, the prompt and the seed alone, for debugging,
//! comparison and certification.
//! Source: Daliri, Musco, Suresh 2025 (drafter-invariant speculative decoding, by Gumbel sampling).
//! Complexity: one pass over the target's support for each node on the emitted path.
//! Deviations: (1) trees: see [`crate::gumbel`] for how the drafts of a node are drawn; (2) drafts
//! that were drawn without the shared randomness are supported as well; they are only accepted less
//! often.
//!
//! 1. The next token is the first to arrive under the target's distribution at its position
//!    ([`crate::gumbel`]). It has that distribution, whatever came before: the arrival times of
//!    different positions are independent, and the draft is not used.
//! 2. While it is a child of the current node, continue from that child.

use super::{CheckedTargets, Outcome, TargetDistributions, Verifier};
use crate::draft::{Draft, DraftTree, Form};
use crate::{RandomSource, Result, gumbel};

/// The verifier whose output does not depend on the draft.
#[derive(Debug, Default)]
pub struct Invariant;

impl Verifier for Invariant {
    /// Supports any draft, as the output does not depend on it.
    fn supports(&self, _: &Form) -> Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        let (tree, target) = (draft.tree(), &CheckedTargets::new(draft, target));
        let (mut accepted, mut node) = (Vec::new(), DraftTree::ROOT);
        loop {
            let token = gumbel::sample(target.target(node)?, tree.depth(node), rng);
            match tree.child(node, token) {
                Some(child) => node = child,
                None => return Ok(Outcome { accepted, token }),
            }
            accepted.push(node);
        }
    }

    fn uses_shared_randomness(&self) -> bool {
        true
    }
}
