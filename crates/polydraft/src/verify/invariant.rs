//! The invariant verifier: for a seed the same output, whatever the draft model and the tree.
//!
//! Problem: the output shall depend on the target, the prompt and the seed alone, for those who
//! debug, compare or certify.
//! Source: Daliri, Musco, Suresh 2025 (drafter-invariant speculative decoding, by Gumbel sampling).
//! Complexity: one pass over the target's support for each node on the emitted path.
//! Deviations: (1) trees: [`crate::gumbel`] says how the drafts of a node are drawn; (2) a draft
//! that was drawn otherwise is verified all the same, it is only accepted less often.
//!
//! 1. The next token is the first to arrive under the target's distribution at its position
//!    ([`crate::gumbel`]). It has that distribution, whatever came before: the arrival times of
//!    different positions are independent, and no draft is looked at.
//! 2. As long as it is a child, go on from there.

use super::{Alike, Outcome, TargetDistributions, Verifier};
use crate::draft::{Draft, DraftTree, Form};
use crate::{RandomSource, Result, gumbel};

/// The verifier that does not look at the draft.
#[derive(Debug, Default)]
pub struct Invariant;

impl Verifier for Invariant {
    /// Any draft: what is emitted does not depend on it.
    fn supports(&self, _: &Form) -> Result<()> {
        Ok(())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        let (tree, target) = (draft.tree(), &Alike::new(draft, target));
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
