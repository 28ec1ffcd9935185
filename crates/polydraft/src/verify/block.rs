//! Block verification of a single path (a block) as a whole.
//!
//! Problem: tokens x_1..x_L were drawn one after the other from distributions q; emit a prefix of
//! them and one more token so that the output has the target's distribution p, accepting as much of
//! the path as any verifier of a single path can.
//! Source: Sun, Mendlovic et al. 2024, "Block Verification Accelerates Speculative Decoding",
//! algorithm 2.
//! Complexity: one look-up of p and q per token; one pass over the support for each node tried on
//! the way up from the end, which are only the first few.
//! Deviations: (1) the coins are independent, so they are flipped from the end of the path upwards,
//! and the residual masses of nodes above the first acceptance are never computed; (2) a weight of
//! 1 is accepted without computing the residual: S/(S + 1 − 1) = 1, also in its limit 0/0; (3) the
//! path may have any length, 0 included.

use super::{CheckedTargets, Outcome, TargetDistributions, Verifier, pays_to_parallelize};
use crate::coupling::capped_ratio;
use crate::coupling::priority::selection::Selection;
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::{Distribution, RandomSource, Result, Token};
use rayon::prelude::*;

/// The distribution that a path was drawn from, token by token.
pub(super) trait PathDistribution {
    /// The probability that the path continues with `token` after `node`.
    fn probability(&self, node: NodeId, token: Token) -> Result<f64>;

    /// Σ (`scale`·target − probs)+ at `node`, over the vocabulary.
    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64>;

    /// Draws from (`scale`·target − probs)+ at `node`, normalised.
    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        rng: &mut dyn RandomSource,
    ) -> Result<Token>;
}

/// Block verification of a path drawn from `probs`. `weights` is a scratch buffer.
pub(super) fn verify_path(
    draft: &Draft,
    mut path: Vec<NodeId>,
    probs: &mut impl PathDistribution,
    target: &dyn TargetDistributions,
    rng: &mut dyn RandomSource,
    weights: &mut Vec<f64>,
) -> Result<Outcome> {
    let tree = draft.tree();
    let parents: Vec<NodeId> = path.iter().map(|&node| tree.parent(node)).collect();
    if pays_to_parallelize(draft, &parents) {
        // All of these distributions are needed, unless the target excludes a token.
        parents.par_iter().try_for_each(|&node| target.target(node).map(drop))?;
    }
    weights.clear();
    let mut weight = 1.0;
    for &node in &path {
        let (parent, token) = (tree.parent(node), tree.token(node));
        if weight > 0.0 {
            weight = capped_ratio(
                weight * target.target(parent)?.probability(token),
                probs.probability(parent, token)?,
            );
        }
        weights.push(weight);
    }
    for (index, (&node, &weight)) in path.iter().zip(&*weights).enumerate().rev() {
        let accept = if index + 1 == path.len() || weight <= 0.0 || weight >= 1.0 {
            weight
        } else {
            let residual = probs.residual_mass(node, target.target(node)?, weight)?;
            residual / (residual + 1.0 - weight)
        };
        if rng.coin(accept) {
            let target = target.target(node)?;
            let token = if index + 1 == path.len() {
                target.sample(rng)
            } else {
                probs.sample_residual(node, target, weight, rng)?
            };
            path.truncate(index + 1);
            return Ok(Outcome { accepted: path, token });
        }
    }
    let target = target.target(DraftTree::ROOT)?;
    let token = if path.is_empty() {
        target.sample(rng)
    } else {
        probs.sample_residual(DraftTree::ROOT, target, 1.0, rng)?
    };
    Ok(Outcome { accepted: Vec::new(), token })
}

/// The distribution of a path with some tokens selected by priorities and the others drawn from the
/// draft's distributions.
pub(super) struct Selected<'a, F> {
    pub draft: &'a Draft,
    pub target: &'a dyn TargetDistributions,
    /// The selection at a node; `None` where the distribution is the draft's own.
    pub selection_at: F,
}

impl<'a, F: Fn(NodeId) -> Option<&'a Selection>> PathDistribution for Selected<'a, F> {
    fn probability(&self, node: NodeId, token: Token) -> Result<f64> {
        let draft = self.draft.drawn_from(node)?;
        Ok(match (self.selection_at)(node) {
            Some(selection) => selection.probability(self.target.target(node)?, draft, token),
            None => draft.probability(token),
        })
    }

    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64> {
        let draft = self.draft.drawn_from(node)?;
        Ok(match (self.selection_at)(node) {
            Some(selection) => selection.residual_mass(target, draft, scale),
            None => target.residual_mass(scale, draft, 1.0),
        })
    }

    fn sample_residual(
        &mut self,
        node: NodeId,
        target: &Distribution,
        scale: f64,
        rng: &mut dyn RandomSource,
    ) -> Result<Token> {
        let draft = self.draft.drawn_from(node)?;
        Ok(match (self.selection_at)(node) {
            Some(selection) => target.sample_excess(
                scale,
                |token| selection.probability(target, draft, token),
                rng,
            ),
            None => target.sample_residual(scale, draft, 1.0, rng),
        })
    }
}

/// The nodes of a chain draft, in order.
pub(super) fn single_path(draft: &Draft) -> Vec<NodeId> {
    (1..draft.tree().len()).collect()
}

/// The verifier, with a scratch buffer.
#[derive(Debug, Default)]
pub struct Block {
    weights: Vec<f64>,
}

impl Verifier for Block {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require("verifier block", "a single path", form.is_chain())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = &CheckedTargets::new(draft, target);
        let mut drawn = Selected { draft, target, selection_at: |_| None };
        verify_path(draft, single_path(draft), &mut drawn, target, rng, &mut self.weights)
    }
}
