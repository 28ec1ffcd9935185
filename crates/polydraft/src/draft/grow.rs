//! Growth of a draft under a policy.

use super::{Draft, NodeId};
use crate::policy::Policy;
use crate::{Distribution, RandomSource, Result};

impl Draft {
    /// Draws below `node` as `policy` decides, and nothing from a distribution of confidence 0, by
    /// which a drafter states that it has none. Returns the distribution if nothing is drawn.
    ///
    /// # Errors
    /// As for [`draw`](Self::draw).
    pub fn grow(
        &mut self,
        node: NodeId,
        probs: Distribution,
        policy: &dyn Policy,
        rng: &mut dyn RandomSource,
    ) -> Result<Option<Distribution>> {
        self.record_pass(node);
        let growth = policy.draws(&self.path(node), &probs);
        match growth.filter(|_| probs.confidence() > 0.0) {
            Some(growth) => self.draw(node, probs, growth, rng).map(|()| None),
            None => Ok(Some(probs)),
        }
    }

    /// Counts a node at which a policy is queried, for [`pass_sizes`](Self::pass_sizes).
    pub(super) fn record_pass(&mut self, node: NodeId) {
        let depth = self.tree.depth(node);
        self.pass_sizes.resize(self.pass_sizes.len().max(depth + 1), 0);
        self.pass_sizes[depth] += 1;
    }
}
