//! Nested priority block verification: the path of highest priority, verified as a block.
//!
//! Problem: K independent paths of L tokens were drawn from the draft; emit a prefix of one of them and one more token
//! with the target's law, and as many tokens as the laws at the drafted nodes allow.
//! Source: ours (`docs/algorithms.md`, nested priority block verification). [0, 1] is shared out among the first
//! tokens as in priority coupling, each token's share among its next tokens, and so on; a path's priority is a uniform
//! point of its own share. Each priority depends on its path alone and is uniform overall, so the path of highest
//! priority has the law that the highest of K uniform priorities gives to its share, and block verification against
//! that law is exact (GBV, lemma 4.4). K = 1 is block verification, L = 1 priority coupling; GBV is the special case
//! of shares that are single intervals in the order of ratios.
//! Complexity: one sharing for each distinct drafted node, near-linear in V, the nodes of a level independent of each
//! other; from where proportional sharing takes over, none. The target's law is looked at where shares are made, and
//! on the selected path.
//! Deviations: (1) near-linear sharing, in which tokens of small probability get a part of every priority of their
//! pool (`coupling::priority`), so a node's share is a law of its priority, piecewise uniform, rather than a set; (2)
//! proportional sharing, in which a token keeps its parent's law of the priority, from where the density of the highest
//! priority varies by less than a setting; (3) for the next node everything is relative to its parent, so nothing
//! underflows however long the path.

mod share;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::block::{Selected, verify_path};
use super::{Laws, Outcome, Verifier, draws_below, worth_threads};
use crate::coupling::priority::{self, selection::Selection, shares::Highest};
use crate::priorities::Priorities;
use crate::{Chance, DraftTree, Error, NodeId, Result};
use share::Share;

/// Settings of the verifier. Each costs acceptance only; the law is exact always.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How a share is divided among the next tokens. Default: as the rule `priority` does, but with a second pass only
    /// where it is worth 1e-4 of acceptance.
    pub sharing: priority::Settings,
    /// A node whose priorities are worth the same up to this part of their mean worth is shared proportionally, from
    /// 0 to 1. Default 1e-3, which costs about 1e-8 tokens per step.
    pub proportional_below: f64,
}

impl Default for Settings {
    fn default() -> Self {
        let sharing = priority::Settings { negligible: 1e-4, ..priority::Settings::default() };
        Self { sharing, proportional_below: 1e-3 }
    }
}

/// A drafted node.
#[derive(Debug)]
struct Node {
    /// The law of the priority of a path through here; unused where sharing was proportional above.
    share: Share,
    /// How it was divided among the next tokens.
    selection: Selection,
    sharing: Sharing,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sharing {
    /// By its `selection`.
    Own,
    /// Proportionally; the law of the priority is that of this node, here and further down.
    Proportional(NodeId),
    /// Not divided: a leaf.
    Leaf,
}

/// Nested priority block verification. Reusable workspace.
#[derive(Debug)]
pub struct NestedPriority {
    settings: Settings,
    /// By node; kept from tree to tree for their memory.
    nodes: Vec<Node>,
    /// The nodes of one level that are divided.
    level: Vec<NodeId>,
    priorities: Priorities,
    weights: Vec<f64>,
}

impl NestedPriority {
    /// Ready to work.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.sharing.validate()?;
        if !(settings.proportional_below >= 0.0 && settings.proportional_below <= 1.0) {
            let got = settings.proportional_below.to_string();
            return Err(Error::Setting { setting: "proportional_below", expected: "from 0 to 1", got });
        }
        let (priorities, weights) = (Priorities::new(), Vec::new());
        Ok(Self { settings, nodes: Vec::new(), level: Vec::new(), priorities, weights })
    }

    /// Shares the priorities of `paths` paths out among the nodes of the tree, level by level.
    fn share(&mut self, tree: &DraftTree, paths: usize, laws: &dyn Laws) -> Result<()> {
        let highest = Highest::new(paths);
        while self.nodes.len() < tree.len() {
            let (share, selection) = (Share::default(), Selection::new());
            self.nodes.push(Node { share, selection, sharing: Sharing::Leaf });
        }
        self.nodes[DraftTree::ROOT].share.set_all(highest);
        self.nodes[DraftTree::ROOT].sharing = Sharing::Own;
        let depth = (0..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
        for depth in 0..=depth {
            self.level.clear();
            for node in (0..tree.len()).filter(|node| tree.depth(*node) == depth) {
                if node != DraftTree::ROOT {
                    self.inherit(tree, node, highest, laws)?;
                }
                if tree.children(node).next().is_none() {
                    if self.nodes[node].sharing == Sharing::Own {
                        self.nodes[node].sharing = Sharing::Leaf;
                    }
                } else if self.nodes[node].sharing == Sharing::Own {
                    if self.nodes[node].share.variation(highest) <= self.settings.proportional_below {
                        self.nodes[node].sharing = Sharing::Proportional(node);
                    } else {
                        self.level.push(node);
                    }
                }
            }
            self.divide(highest, laws)?;
        }
        Ok(())
    }

    /// Gives a node its share of its parent's.
    fn inherit(&mut self, tree: &DraftTree, node: NodeId, highest: Highest, laws: &dyn Laws) -> Result<()> {
        let parent = tree.parent(node);
        let (before, from) = self.nodes.split_at_mut(node);
        let (parent_node, own) = (&before[parent], &mut from[0]);
        own.sharing = parent_node.sharing;
        if parent_node.sharing == Sharing::Own {
            let (target, draft) = (laws.target(parent)?, laws.draft(parent)?);
            let pieces = parent_node.selection.pieces(target, draft, tree.token(node));
            own.share.set_part(&parent_node.share, pieces, highest);
        }
        Ok(())
    }

    /// Divides the shares of the nodes in `level` among their next tokens.
    fn divide(&mut self, highest: Highest, laws: &dyn Laws) -> Result<()> {
        let sharing = &self.settings.sharing;
        let divide = |id: NodeId, node: &mut Node| -> Result<()> {
            let (target, draft) = (laws.target(id)?, laws.draft(id)?);
            if node.share.is_all() {
                node.selection.prepare(target, draft, &highest, sharing);
            } else {
                node.selection.prepare(target, draft, &node.share.profile(highest), sharing);
            }
            Ok(())
        };
        let level = &self.level;
        if worth_threads(laws, level) {
            let nodes = self.nodes.par_iter_mut().enumerate();
            return nodes
                .filter(|(id, _)| level.contains(id))
                .map(|(id, node)| divide(id, node))
                .collect::<Result<()>>();
        }
        level.iter().try_for_each(|&id| divide(id, &mut self.nodes[id]))
    }

    /// Draws the priorities of all paths and takes the path of the highest.
    fn select(&mut self, tree: &DraftTree, chance: &mut dyn Chance) -> Vec<NodeId> {
        let leaves = || {
            let leaves = (1..tree.len()).filter(|node| tree.children(*node).next().is_none());
            leaves.flat_map(|leaf| std::iter::repeat_n(leaf, tree.draws(leaf)))
        };
        self.priorities.clear();
        for leaf in leaves() {
            let share = match self.nodes[leaf].sharing {
                Sharing::Proportional(node) => &self.nodes[node].share,
                _ => &self.nodes[leaf].share,
            };
            self.priorities.push(share.pieces());
        }
        let first = leaves().next().unwrap_or(DraftTree::ROOT);
        let one = leaves().all(|leaf| leaf == first);
        let winner =
            if one { first } else { leaves().nth(chance.highest(&self.priorities)).unwrap_or(first) };
        tree.path(winner)
    }
}

impl Verifier for NestedPriority {
    fn verify(&mut self, tree: &DraftTree, laws: &dyn Laws, chance: &mut dyn Chance) -> Result<Outcome> {
        let paths = draws_below(tree, DraftTree::ROOT);
        let path = if paths > 1 {
            self.share(tree, paths, laws)?;
            self.select(tree, chance)
        } else {
            tree.path(tree.len() - 1)
        };
        let Self { nodes, weights, .. } = self;
        let own = |node: NodeId| nodes.get(node).filter(|node| paths > 1 && node.sharing == Sharing::Own);
        let mut selected = Selected { laws, at: |node| own(node).map(|node| &node.selection) };
        verify_path(tree, path, &mut selected, laws, chance, weights)
    }
}
