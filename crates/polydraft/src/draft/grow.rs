//! A draft grows as a policy decides.

use super::{Draft, NodeId};
use crate::policy::Policy;
use crate::{Distribution, RandomSource, Result};

impl Draft {
    /// Draws below `node` what `policy` decides; returns the distribution if nothing is to be drawn
    /// there.
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
        self.note_asked(node);
        match policy.draws(&self.path(node), &probs) {
            Some(growth) => self.draw(node, probs, growth, rng).map(|()| None),
            None => Ok(Some(probs)),
        }
    }

    /// Takes note that a policy is asked at a node.
    pub(super) fn note_asked(&mut self, node: NodeId) {
        let depth = self.tree.depth(node);
        self.asked.resize(self.asked.len().max(depth + 1), 0);
        self.asked[depth] += 1;
    }
}
