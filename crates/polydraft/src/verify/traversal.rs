//! Traversal verification: from the leaves up.
//!
//! Problem: emit a path of the tree and one more token with the target's distribution, gaining on
//! every chain of the tree in turn what block verification gains on a single chain.
//! Source: Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding", algorithm 2;
//! `docs/papers.md`.
//! Complexity: one pass over the support for each node that is tried and rejected, at most once for
//! each distinct node.
//! Deviations: (1) for the residual after rejections see `residual`; (2) independent draws with
//! repeats merged: given the first child and the number of draws that share it, the rest are
//! independent draws from q without that token, so distinct children in the order of their first
//! draws are draws without replacement, which the paper covers.

use super::{CheckedTargets, Outcome, TargetDistributions, Verifier};
use crate::coupling::capped_ratio;
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::drafting::{Drafting, remaining_mass};
use crate::residual::Residual;
use crate::{RandomSource, Result, Token};

/// A node on the path down to the leaf that is tried next.
#[derive(Debug, Clone, Copy)]
struct Visit {
    node: NodeId,
    /// The acceptance probability of this node if it were a leaf.
    weight: f64,
    /// The target's residual after the rejected children.
    residual: Residual,
    /// The mass of the draft's distribution without the rejected children.
    open: f64,
    /// Index of the child to try next.
    next: usize,
}

impl Visit {
    fn new(node: NodeId, weight: f64) -> Self {
        Self { node, weight, residual: Residual::default(), open: 1.0, next: 0 }
    }
}

/// The verifier, with scratch buffers.
#[derive(Debug, Default)]
pub struct Traversal {
    path: Vec<Visit>,
    rejected: Vec<Token>,
}

impl Traversal {
    /// Updates the last node of the path after its current child was rejected.
    fn reject(&mut self, draft: &Draft, target: &dyn TargetDistributions) -> Result<()> {
        let Some(visit) = self.path.last_mut() else { return Ok(()) };
        let tree = draft.tree();
        let (target, draft) = (target.target(visit.node)?, draft.drawn_from(visit.node)?);
        let (weight, before) = (visit.weight, visit.residual.mass);
        if weight > 0.0 {
            visit.residual.reject(target, draft, visit.open * weight);
            // The residual mass of weight·target after subtraction of the draft's distribution.
            let residual = if before > 0.0 { weight * visit.residual.mass / before } else { 0.0 };
            visit.weight = if weight >= 1.0 { 1.0 } else { residual / (residual + 1.0 - weight) };
        }
        visit.next += 1;
        self.rejected.clear();
        self.rejected
            .extend(tree.children(visit.node).take(visit.next).map(|child| tree.token(child)));
        visit.open = remaining_mass(draft, &self.rejected);
        Ok(())
    }
}

impl Verifier for Traversal {
    fn supports(&self, form: &Form) -> Result<()> {
        let mut all = form.draws();
        let known = |scheme| matches!(scheme, Drafting::Iid | Drafting::WithoutReplacement);
        let supported = form.is_chain() || all.all(|draws| known(draws.scheme));
        form.require("verifier traversal", "draws iid or without-replacement", supported)
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = &CheckedTargets::new(draft, target);
        let tree = draft.tree();
        self.path.clear();
        self.path.push(Visit::new(DraftTree::ROOT, 1.0));
        loop {
            let visit = self.path[self.path.len() - 1];
            let probs = target.target(visit.node)?;
            // Below a node of weight 0 all weights are 0.
            let reachable = visit.weight > 0.0;
            if let Some(child) = tree.children(visit.node).nth(visit.next).filter(|_| reachable) {
                let token = tree.token(child);
                let q = draft.drawn_from(visit.node)?.probability(token);
                let residual = visit.residual.at(probs.probability(token), q);
                let weight =
                    capped_ratio(visit.weight * residual * visit.open, visit.residual.mass * q);
                self.path.push(Visit::new(child, weight));
                continue;
            }
            // No child is left to try: the node is a leaf.
            if self.path.len() == 1 || rng.coin(visit.weight) {
                let token = if visit.residual.spent > 0.0 {
                    probs.sample_residual(
                        1.0,
                        draft.drawn_from(visit.node)?,
                        visit.residual.spent,
                        rng,
                    )
                } else {
                    probs.sample(rng)
                };
                let accepted = self.path[1..].iter().map(|visit| visit.node).collect();
                return Ok(Outcome { accepted, token });
            }
            self.path.pop();
            self.reject(draft, target)?;
        }
    }
}
