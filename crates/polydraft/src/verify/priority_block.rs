//! Priority block verification: a path selected node by node, verified as a block.
//!
//! Problem: emit a path of the tree and one more token with the target's law, where the draws were made node by node.
//! Source: ours (`docs/algorithms.md`, priority block verification): from the root down the child of highest priority
//! is followed without accepting anything; then the path is verified as a block against the laws of the selections.
//! It is exact because a token extended by the number of draws that share it is a token of a larger vocabulary: the
//! selection is a draft process on these pairs, and the ratios lose the number. Never below the walk with `priority`.
//! Complexity: a priority coupling for each node of the path where several tokens were drawn.
//! Deviations: none.

use super::block::{PathLaw, verify_path};
use super::{Laws, Outcome, Verifier, draws_below};
use crate::coupling::priority::Settings;
use crate::coupling::priority::selection::Selection;
use crate::coupling::priority::shares::Highest;
use crate::priorities::Priorities;
use crate::{Chance, Distribution, DraftTree, NodeId, Result, Token};

/// Priority block verification. Reusable workspace.
#[derive(Debug)]
pub struct PriorityBlock {
    settings: Settings,
    /// By depth of the selected path; not used where there is one draw.
    selections: Vec<Selection>,
    priorities: Priorities,
    weights: Vec<f64>,
}

impl PriorityBlock {
    /// Ready to work.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.validate()?;
        let (selections, priorities, weights) = (Vec::new(), Priorities::new(), Vec::new());
        Ok(Self { settings, selections, priorities, weights })
    }

    fn select(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Vec<NodeId>> {
        let (mut path, mut node) = (Vec::new(), DraftTree::ROOT);
        while let Some(first) = tree.children(node).next() {
            let draws = draws_below(tree, node);
            if self.selections.len() == path.len() {
                self.selections.push(Selection::new());
            }
            let mut next = first;
            if draws > 1 {
                let (target, draft) = (laws.target(node)?, laws.draft(node)?);
                let selection = &mut self.selections[path.len()];
                selection.prepare(target, draft, &Highest::new(draws), &self.settings);
                if tree.children(node).nth(1).is_some() {
                    let list = || {
                        tree.children(node).flat_map(|child| std::iter::repeat_n(child, tree.draws(child)))
                    };
                    self.priorities.clear();
                    for child in list() {
                        self.priorities.push(selection.pieces(target, draft, tree.token(child)));
                    }
                    next = list().nth(chance.highest(&self.priorities)).unwrap_or(first);
                }
            }
            path.push(next);
            node = next;
        }
        Ok(path)
    }
}

/// The law of the selected path.
struct Selected<'a> {
    tree: &'a DraftTree,
    laws: &'a dyn Laws,
    selections: &'a [Selection],
}

impl Selected<'_> {
    /// The selection at a node of the path; none where there is one draw.
    fn at(&self, node: NodeId) -> Option<&Selection> {
        (draws_below(self.tree, node) > 1).then(|| &self.selections[self.tree.depth(node)])
    }
}

impl PathLaw for Selected<'_> {
    fn probability(&self, node: NodeId, token: Token) -> Result<f64> {
        let draft = self.laws.draft(node)?;
        Ok(match self.at(node) {
            Some(selection) => selection.probability(self.laws.target(node)?, draft, token),
            None => draft.probability(token),
        })
    }

    fn residual_mass(&mut self, node: NodeId, target: &Distribution, scale: f64) -> Result<f64> {
        let draft = self.laws.draft(node)?;
        Ok(match self.at(node) {
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
        Ok(match self.at(node) {
            Some(selection) => {
                target.sample_excess(scale, |token| selection.probability(target, draft, token), chance)
            }
            None => target.sample_residual(scale, draft, 1.0, chance),
        })
    }
}

impl Verifier for PriorityBlock {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let path = self.select(tree, laws, chance)?;
        let mut selected = Selected { tree, laws, selections: &self.selections };
        verify_path(tree, path, &mut selected, laws, chance, &mut self.weights)
    }
}
