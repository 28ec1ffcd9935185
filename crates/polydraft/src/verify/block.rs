//! Block verification: one path as a whole.
//!
//! Problem: tokens x_1..x_L were drawn one after the other from laws q; emit a prefix of them and one more token so
//! that the text has the target's law p, and as much of the path as any verifier of a single path can.
//! Source: Sun, Mendlovic et al. 2024, "Block Verification Accelerates Speculative Decoding", algorithm 2 (`[BV]` in
//! `docs/algorithms.md`, section 6).
//! Complexity: one look at p and q per token; a pass over the support for each node that is tried on the way up from
//! the end, of which only the first few are.
//! Deviations: (1) the coins are independent, so they are flipped from the end of the path upwards, and the residual
//! masses of nodes above the first acceptance are never computed; (2) a weight of 1 is accepted without looking at
//! the residual: S/(S + 1 − 1) = 1, also in its limit 0/0; (3) the path may have any length, 0 included.

use rayon::prelude::*;

use super::{Laws, Outcome, Verifier, worth_threads};
use crate::coupling::capped_ratio;
use crate::coupling::priority::selection::Selection;
use crate::{Chance, Distribution, DraftTree, Error, NodeId, Result, Token};

/// The law by which a path was drawn, token after token.
pub(super) trait PathLaw {
    /// The probability that the path goes on with `token` after `node`.
    fn probability(&self, node: NodeId, token: Token) -> Result<f64>;

    /// Σ (`scale`·target − law)+ at `node`, over the vocabulary.
    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64>;

    /// Draws from (`scale`·target − law)+ at `node`, normalised.
    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        chance: &mut dyn Chance,
    ) -> Result<Token>;
}

/// Block verification of a path that was drawn by `law`. `weights` is memory to use again.
pub(super) fn verify_path(
    tree: &DraftTree,
    mut path: Vec<NodeId>,
    law: &mut impl PathLaw,
    laws: &dyn Laws,
    chance: &mut dyn Chance,
    weights: &mut Vec<f64>,
) -> Result<Outcome> {
    let parents: Vec<NodeId> = path.iter().map(|&node| tree.parent(node)).collect();
    if worth_threads(laws, &parents) {
        // All of them are looked at, unless the target rules a token out.
        parents.par_iter().try_for_each(|&node| laws.target(node).map(drop))?;
    }
    weights.clear();
    let mut weight = 1.0;
    for &node in &path {
        let (parent, token) = (tree.parent(node), tree.token(node));
        if weight > 0.0 {
            weight = capped_ratio(
                weight * laws.target(parent)?.probability(token),
                law.probability(parent, token)?,
            );
        }
        weights.push(weight);
    }
    for (index, (&node, &weight)) in path.iter().zip(&*weights).enumerate().rev() {
        let accept = if index + 1 == path.len() || weight <= 0.0 || weight >= 1.0 {
            weight
        } else {
            let left = law.residual_mass(node, laws.target(node)?, weight)?;
            left / (left + 1.0 - weight)
        };
        if chance.coin(accept) {
            let target = laws.target(node)?;
            let token = if index + 1 == path.len() {
                target.sample(chance)
            } else {
                law.sample_residual(node, target, weight, chance)?
            };
            path.truncate(index + 1);
            return Ok(Outcome { accepted: path, token });
        }
    }
    let target = laws.target(DraftTree::ROOT)?;
    let token = if path.is_empty() {
        target.sample(chance)
    } else {
        law.sample_residual(DraftTree::ROOT, target, 1.0, chance)?
    };
    Ok(Outcome { accepted: Vec::new(), token })
}

/// The law of a path some of whose tokens were selected by priorities, the others drawn as the draft has them.
pub(super) struct Selected<'a, F> {
    pub laws: &'a dyn Laws,
    /// The selection at a node; `None` where the law is the draft's.
    pub at: F,
}

impl<'a, F: Fn(NodeId) -> Option<&'a Selection>> PathLaw for Selected<'a, F> {
    fn probability(&self, node: NodeId, token: Token) -> Result<f64> {
        let draft = self.laws.draft(node)?;
        Ok(match (self.at)(node) {
            Some(selection) => selection.probability(self.laws.target(node)?, draft, token),
            None => draft.probability(token),
        })
    }

    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64> {
        let draft = self.laws.draft(node)?;
        Ok(match (self.at)(node) {
            Some(selection) => selection.residual_mass(target, draft, scale),
            None => target.residual_mass(scale, draft, 1.0),
        })
    }

    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        chance: &mut dyn Chance,
    ) -> Result<Token> {
        let draft = self.laws.draft(node)?;
        Ok(match (self.at)(node) {
            Some(selection) => {
                target.sample_excess(scale, |token| selection.probability(target, draft, token), chance)
            }
            None => target.sample_residual(scale, draft, 1.0, chance),
        })
    }
}

/// The nodes of a tree that does not branch.
pub(super) fn single_path(operation: &'static str, tree: &DraftTree) -> Result<Vec<NodeId>> {
    let mut path = Vec::with_capacity(tree.len() - 1);
    let mut node = DraftTree::ROOT;
    loop {
        let mut children = tree.children(node);
        let Some(child) = children.next() else { return Ok(path) };
        if children.next().is_some() || tree.draws(child) > 1 {
            return Err(Error::Unsupported {
                operation,
                expected: "a single path".to_owned(),
                got: format!("a tree with several draws after {} tokens", path.len()),
            });
        }
        path.push(child);
        node = child;
    }
}

/// Block verification of a single path.
#[derive(Debug, Clone, Default)]
pub struct Block {
    weights: Vec<f64>,
}

impl Block {
    /// Ready to work.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Verifier for Block {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let path = single_path("block verification", tree)?;
        let mut drafted = Selected { laws, at: |_| None };
        verify_path(tree, path, &mut drafted, laws, chance, &mut self.weights)
    }
}
