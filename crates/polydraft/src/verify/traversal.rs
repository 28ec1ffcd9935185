//! Traversal verification: from the leaves up.
//!
//! Problem: emit a path of the tree and one more token with the target's law; use what block verification gains on a
//! chain, on every chain of the tree in turn.
//! Source: Weng et al. 2025, "Traversal Verification for Speculative Tree Decoding", algorithm 2; `docs/algorithms.md`.
//! Complexity: one pass over the support for each node that is tried and rejected; at most the distinct nodes.
//! Deviations: (1) the residual target of a node after any number of rejections is (p − c·q)+ normalised, so only c and
//! its mass are kept; (2) independent draws with repeats merged: given the first child and how many draws share it,
//! the rest are independent draws from q without that token, so distinct children in the order of their first draws
//! are drawn without replacement, and the paper's sampling without replacement covers them.

use super::{Laws, Outcome, Verifier};
use crate::coupling::capped_ratio;
use crate::drafting::outside_mass;
use crate::{Chance, DraftTree, NodeId, Result, Token};

/// A node on the path down to the leaf that is tried next.
#[derive(Debug, Clone, Copy)]
struct Visit {
    node: NodeId,
    /// The probability with which it would be accepted were it a leaf.
    weight: f64,
    /// The target left is (p − `spent`·q)+ / `mass`.
    spent: f64,
    mass: f64,
    /// The mass of the draft's law that rejected children have not taken.
    open: f64,
    /// The child to try next, by number.
    next: usize,
}

impl Visit {
    fn new(node: NodeId, weight: f64) -> Self {
        Self { node, weight, spent: 0.0, mass: 1.0, open: 1.0, next: 0 }
    }
}

/// Traversal verification. Reusable workspace.
#[derive(Debug, Clone, Default)]
pub struct Traversal {
    path: Vec<Visit>,
    rejected: Vec<Token>,
}

impl Traversal {
    /// Ready to work.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note that the last child tried was rejected.
    fn reject(&mut self, tree: &DraftTree, laws: &dyn Laws) -> Result<()> {
        let Some(visit) = self.path.last_mut() else { return Ok(()) };
        let (target, draft) = (laws.target(visit.node)?, laws.draft(visit.node)?);
        let weight = visit.weight;
        if weight > 0.0 {
            visit.spent += visit.mass / (visit.open * weight);
            let mass = target.residual_mass(1.0, draft, visit.spent);
            // What is left of weight·target after the draft's law was taken from it.
            let left = if visit.mass > 0.0 { weight * mass / visit.mass } else { 0.0 };
            visit.mass = mass;
            visit.weight = if weight >= 1.0 { 1.0 } else { left / (left + 1.0 - weight) };
        }
        visit.next += 1;
        self.rejected.clear();
        self.rejected.extend(tree.children(visit.node).take(visit.next).map(|child| tree.token(child)));
        let open = 1.0 - self.rejected.iter().map(|&token| draft.probability(token)).sum::<f64>();
        // A small difference has lost its digits.
        visit.open = if open > 1e-3 { open } else { outside_mass(draft, &self.rejected) };
        Ok(())
    }
}

impl Verifier for Traversal {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        self.path.clear();
        self.path.push(Visit::new(DraftTree::ROOT, 1.0));
        loop {
            let visit = self.path[self.path.len() - 1];
            let target = laws.target(visit.node)?;
            // Below a weight of 0 all weights are 0.
            let open = visit.weight > 0.0;
            if let Some(child) = tree.children(visit.node).nth(visit.next).filter(|_| open) {
                let (token, draft) = (tree.token(child), laws.draft(visit.node)?);
                let q = draft.probability(token);
                let left = (target.probability(token) - visit.spent * q).max(0.0);
                let weight = capped_ratio(visit.weight * left * visit.open, visit.mass * q);
                self.path.push(Visit::new(child, weight));
                continue;
            }
            // Nothing below it is left: a leaf.
            if self.path.len() == 1 || chance.coin(visit.weight) {
                let token = if visit.spent > 0.0 {
                    target.sample_residual(1.0, laws.draft(visit.node)?, visit.spent, chance)
                } else {
                    target.sample(chance)
                };
                let accepted = self.path[1..].iter().map(|visit| visit.node).collect();
                return Ok(Outcome { accepted, token });
            }
            self.path.pop();
            self.reject(tree, laws)?;
        }
    }
}
