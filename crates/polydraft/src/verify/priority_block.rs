//! Priority block verification: a path selected node by node, verified as a block.
//!
//! Problem: emit a path of the tree and one more token with the target's law, where the draws were made node by node.
//! Source: ours (`docs/algorithms.md`, priority block verification): from the root down the child of highest priority
//! is followed without accepting anything; then the path is verified as a block against the laws of the selections.
//! It is exact because a token extended by the number of draws that share it is a token of a larger vocabulary: the
//! selection is a draft process on these pairs, and the ratios lose the number. Never below the walk with `priority`.
//! Complexity: a priority coupling for each node of the path where several tokens were drawn.
//! Deviations: none.

use super::block::{Selected, verify_path};
use super::{Laws, Outcome, Verifier, draws_below};
use crate::coupling::priority::Settings;
use crate::coupling::priority::selection::Selection;
use crate::coupling::priority::shares::Highest;
use crate::priorities::Priorities;
use crate::{Chance, DraftTree, NodeId, Result};

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

impl Verifier for PriorityBlock {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let path = self.select(tree, laws, chance)?;
        let Self { selections, weights, .. } = self;
        // Where there is one draw nothing was selected.
        let at = |node| (draws_below(tree, node) > 1).then(|| &selections[tree.depth(node)]);
        verify_path(tree, path, &mut Selected { laws, at }, laws, chance, weights)
    }
}
