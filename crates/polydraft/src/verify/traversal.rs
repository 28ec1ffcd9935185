//! Traversal verification: from the leaves up.
//!
//! Problem: emit a path of the tree and one more token with the target's distribution; use what
//! block verification gains on a chain, on every chain of the tree in turn.
//! Source: Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding", algorithm 2;
//! `docs/papers.md`.
//! Complexity: one pass over the support for each node that is tried and rejected; at most the
//! distinct nodes.
//! Deviations: (1) what rejections leave: see `residual`; (2) independent draws with repeats
//! merged: given the first child and how many draws share it, the rest are independent draws from q
//! without that token, so distinct children in the order of their first draws are drawn without
//! replacement, and the paper's sampling without replacement covers them.

use super::{Alike, Outcome, TargetDistributions, Verifier};
use crate::coupling::capped_ratio;
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::drafting::{Drafting, remaining_mass};
use crate::residual::Residual;
use crate::{RandomSource, Result, Token};

/// A node on the path down to the leaf that is tried next.
#[derive(Debug, Clone, Copy)]
struct Visit {
    node: NodeId,
    /// The probability with which it would be accepted were it a leaf.
    weight: f64,
    /// What rejected children have left of the target.
    left: Residual,
    /// The mass of the draft's distribution that rejected children have not taken.
    open: f64,
    /// The child to try next, by number.
    next: usize,
}

impl Visit {
    fn new(node: NodeId, weight: f64) -> Self {
        Self { node, weight, left: Residual::default(), open: 1.0, next: 0 }
    }
}

/// A workspace that is used again.
#[derive(Debug, Default)]
pub struct Traversal {
    path: Vec<Visit>,
    rejected: Vec<Token>,
}

impl Traversal {
    /// Takes note that the last child tried was rejected.
    fn reject(&mut self, draft: &Draft, target: &dyn TargetDistributions) -> Result<()> {
        let Some(visit) = self.path.last_mut() else { return Ok(()) };
        let tree = draft.tree();
        let (target, draft) = (target.target(visit.node)?, draft.drawn_from(visit.node)?);
        let (weight, before) = (visit.weight, visit.left.mass);
        if weight > 0.0 {
            visit.left.reject(target, draft, visit.open * weight);
            // What is left of weight·target after the draft's distribution was taken from it.
            let left = if before > 0.0 { weight * visit.left.mass / before } else { 0.0 };
            visit.weight = if weight >= 1.0 { 1.0 } else { left / (left + 1.0 - weight) };
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
        let target = &Alike::new(draft, target);
        let tree = draft.tree();
        self.path.clear();
        self.path.push(Visit::new(DraftTree::ROOT, 1.0));
        loop {
            let visit = self.path[self.path.len() - 1];
            let probs = target.target(visit.node)?;
            // Below a weight of 0 all weights are 0.
            let open = visit.weight > 0.0;
            if let Some(child) = tree.children(visit.node).nth(visit.next).filter(|_| open) {
                let token = tree.token(child);
                let q = draft.drawn_from(visit.node)?.probability(token);
                let left = visit.left.of(probs.probability(token), q);
                let weight = capped_ratio(visit.weight * left * visit.open, visit.left.mass * q);
                self.path.push(Visit::new(child, weight));
                continue;
            }
            // Nothing below it is left: a leaf.
            if self.path.len() == 1 || rng.coin(visit.weight) {
                let token = if visit.left.spent > 0.0 {
                    probs.sample_residual(1.0, draft.drawn_from(visit.node)?, visit.left.spent, rng)
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
