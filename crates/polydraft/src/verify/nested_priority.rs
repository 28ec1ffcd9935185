//! Nested priority block verification: the path of highest priority, verified as a block.
//!
//! Problem: a tree of independent draws was drawn from the draft; emit a path of it and one more
//! token with the target's distribution, and as many tokens as the distributions at the drafted
//! nodes allow.
//! Source: ours (`docs/theory.md`, nested priority block verification). [0, 1] is divided among the
//! first tokens as in priority coupling, each token's share among its next tokens, and so on; a
//! path's priority is a uniform point of its own share. The demand of tokens on a node's share is
//! the mass that block verification can use there: the weight of the path to it times the target's
//! probabilities. Each priority depends on its path alone and is uniform overall, so the path of
//! highest priority has the distribution that the highest of K uniform priorities gives to its
//! share, and block verification against that distribution is exact (GBV, lemma 4.4). K = 1 is
//! block verification, L = 1 priority coupling; GBV is the special case of shares that are single
//! intervals in the order of ratios.
//!
//! Trees with fresh draws below the root (`docs/theory.md`, trees in which draws begin anew):
//! 1. From a node with n fresh draws down to the next nodes with fresh draws, or leaves, the tree
//!    is a *segment* of n independent paths. One of these is selected as above, with all of [0, 1]
//!    to divide and K = n.
//! 2. At the end of the selected segment the next one starts. Given that the end was selected, the
//!    draws below it are independent of the selection, so the distribution of the selected path is
//!    the product of the segments' distributions.
//! 3. The selected path is verified as a block against that product. Where every node's draws are a
//!    segment of their own, this is priority block verification: the child of highest priority is
//!    followed from node to node.
//!
//! Complexity: one division for each distinct drafted node, near-linear in V, independent for the
//! nodes of a level; nodes with proportional sharing need no division. The target's distribution is
//! used where shares are divided, and on the selected path.
//! Deviations: (1) near-linear sharing, in which tokens of small probability get a part of every
//! priority of their pool (`coupling::priority`), so a node's share is a piecewise uniform
//! distribution of its priority rather than a set; (2) proportional sharing, in which a token keeps
//! its parent's distribution of the priority, where the density of the highest priority varies by
//! less than a setting; (3) everything is relative to the parent node, so nothing underflows
//! however long the path.

mod share;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::block::{PathDistribution, Selected, verify_path};
use super::{
    CheckedTargets, Outcome, PriorityIntervals, TargetDistributions, Verifier, VerifierSettings,
    pays_to_parallelize,
};
use crate::coupling::capped_ratio;
use crate::coupling::priority::{self, selection::Selection, shares::Highest};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::priorities::Priorities;
use crate::{Error, RandomSource, Result, Token};
use share::Share;

/// Settings of the verifier. Each affects acceptance only; the distribution is always exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How a share is divided among the next tokens. Default: as in the rule `priority`, but with
    /// masses nearest to the draft, which spread shares most and accept most on language models,
    /// and pooled so that at most 1e-4 of acceptance is lost at a node.
    pub sharing: priority::Settings,
    /// A node is shared proportionally if the density of the highest priority varies over its share
    /// by at most this fraction of the mean density, from 0 to 1. Default 1e-3, which costs about
    /// 1e-8 tokens per step.
    pub proportional_below: f64,
}

impl Default for Settings {
    fn default() -> Self {
        let choice = priority::Choice::Draft;
        let sharing = priority::Settings { negligible: 1e-4, choice, ..Default::default() };
        Self { sharing, proportional_below: 1e-3 }
    }
}

impl VerifierSettings for Settings {
    fn build(&self) -> Result<Box<dyn Verifier>> {
        self.sharing.validate()?;
        if !(self.proportional_below >= 0.0 && self.proportional_below <= 1.0) {
            let got = self.proportional_below.to_string();
            return Err(Error::Setting {
                setting: "proportional_below",
                expected: "from 0 to 1",
                got,
            });
        }
        Ok(Box::new(NestedPriority::new(
            "verifier nested-priority",
            self.clone(),
            Segments::AsDrawn,
        )))
    }
}

/// Settings of `priority-block`: those of the rule that selects a path node by node.
impl VerifierSettings for priority::Settings {
    fn build(&self) -> Result<Box<dyn Verifier>> {
        self.validate()?;
        let settings = Settings { sharing: self.clone(), proportional_below: 0.0 };
        Ok(Box::new(NestedPriority::new("verifier priority-block", settings, Segments::NodeByNode)))
    }
}

/// Extent of the segments in which paths are selected.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Segments {
    /// Segments extend as far as paths continue.
    AsDrawn,
    /// Every node starts a new segment.
    NodeByNode,
}

/// A drafted node.
#[derive(Debug)]
struct Node {
    /// The distribution of the priority of a path through this node; unused where sharing was
    /// proportional above.
    share: Share,
    /// The division of the share among the next tokens.
    selection: Selection,
    sharing: Sharing,
    /// Fraction of the target that can be used here.
    usable: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sharing {
    /// Divided by its own `selection`.
    Divided,
    /// Shared proportionally: here and further down, the distribution of the priority is that of
    /// this node.
    Proportional(NodeId),
    /// Not divided: the end of a segment, or a segment with a single path.
    None,
}

/// The verifier, with its scratch buffers.
#[derive(Debug)]
struct NestedPriority {
    name: &'static str,
    settings: Settings,
    segments: Segments,
    /// Per node; reused from tree to tree.
    nodes: Vec<Node>,
    /// The nodes of the current segment, level by level.
    segment: Vec<NodeId>,
    /// The nodes of one level whose shares are divided.
    level: Vec<NodeId>,
    priorities: Priorities,
    weights: Vec<f64>,
}

impl NestedPriority {
    fn new(name: &'static str, settings: Settings, segments: Segments) -> Self {
        let (nodes, segment, level) = (Vec::new(), Vec::new(), Vec::new());
        let (priorities, weights) = (Priorities::new(), Vec::new());
        Self { name, settings, segments, nodes, segment, level, priorities, weights }
    }

    /// True if the segment that reaches `node` continues there.
    fn continues(&self, draft: &Draft, node: NodeId) -> bool {
        self.segments == Segments::AsDrawn && draft.has_continued_draws(node)
    }

    /// Divides all priorities among `paths` paths over the nodes of the segment that starts at
    /// `start`, level by level.
    fn share(
        &mut self,
        draft: &Draft,
        start: NodeId,
        paths: usize,
        target: &dyn TargetDistributions,
    ) -> Result<()> {
        let tree = draft.tree();
        let highest = Highest::new(paths);
        self.nodes[start].usable = self.weight(draft, start, target)?;
        self.nodes[start].share.set_all(highest);
        self.nodes[start].sharing = Sharing::Divided;
        self.segment.clear();
        self.segment.push(start);
        let mut level_start = 0;
        while level_start < self.segment.len() {
            let level = level_start..self.segment.len();
            self.level.clear();
            for index in level.clone() {
                let node = self.segment[index];
                let is_end = node != start && !self.continues(draft, node);
                if node != start {
                    self.inherit(draft, node, highest, target)?;
                }
                let Node { share, sharing, .. } = &mut self.nodes[node];
                match sharing {
                    Sharing::Divided if is_end => *sharing = Sharing::None,
                    Sharing::Divided
                        if share.variation(highest) <= self.settings.proportional_below =>
                    {
                        *sharing = Sharing::Proportional(node);
                    }
                    Sharing::Divided => self.level.push(node),
                    Sharing::Proportional(_) | Sharing::None => {}
                }
            }
            self.divide(draft, highest, target)?;
            level_start = level.end;
            for index in level {
                let node = self.segment[index];
                if node == start || self.continues(draft, node) {
                    self.segment.extend(tree.children(node));
                }
            }
        }
        Ok(())
    }

    /// The weight that block verification gives to the path to `node`: the fraction of the target
    /// that can be used there.
    fn weight(&self, draft: &Draft, node: NodeId, target: &dyn TargetDistributions) -> Result<f64> {
        let (tree, selected) = (draft.tree(), selected(&self.nodes, draft, target));
        tree.path(node).into_iter().try_fold(1.0, |weight, node| {
            let (parent, token) = (tree.parent(node), tree.token(node));
            if weight <= 0.0 {
                return Ok(0.0);
            }
            let demand = weight * target.target(parent)?.probability(token);
            Ok(capped_ratio(demand, selected.probability(parent, token)?))
        })
    }

    /// Computes a node's share from its parent's.
    fn inherit(
        &mut self,
        draft: &Draft,
        node: NodeId,
        highest: Highest,
        target: &dyn TargetDistributions,
    ) -> Result<()> {
        let parent = draft.tree().parent(node);
        let (before, rest) = self.nodes.split_at_mut(node);
        let (parent_node, child) = (&before[parent], &mut rest[0]);
        child.sharing = parent_node.sharing;
        if parent_node.sharing == Sharing::Divided {
            let (target, probs) = (target.target(parent)?, draft.drawn_from(parent)?);
            let token = draft.tree().token(node);
            let intervals = parent_node.selection.intervals(target, probs, token);
            let selected = parent_node.selection.probability(target, probs, token);
            child.usable = capped_ratio(parent_node.usable * target.probability(token), selected);
            child.share.set_part(&parent_node.share, intervals, highest);
        }
        Ok(())
    }

    /// Divides the shares of the nodes in `level` among their next tokens.
    fn divide(
        &mut self,
        draft: &Draft,
        highest: Highest,
        target: &dyn TargetDistributions,
    ) -> Result<()> {
        let sharing = &self.settings.sharing;
        let divide = |id: NodeId, node: &mut Node| -> Result<()> {
            let (target, probs) = (target.target(id)?, draft.drawn_from(id)?);
            if node.share.is_all() {
                node.selection.prepare(target, probs, &highest, node.usable, sharing);
            } else {
                let profile = node.share.profile(highest);
                node.selection.prepare(target, probs, &profile, node.usable, sharing);
            }
            Ok(())
        };
        let level = &self.level;
        if pays_to_parallelize(draft, level) {
            let nodes = self.nodes.par_iter_mut().enumerate();
            return nodes
                .filter(|(id, _)| level.contains(id))
                .map(|(id, node)| divide(id, node))
                .collect::<Result<()>>();
        }
        level.iter().try_for_each(|&id| divide(id, &mut self.nodes[id]))
    }

    /// Draws the priorities of all paths of the segment and returns the end of the path with the
    /// highest.
    fn select(&mut self, draft: &Draft, rng: &mut dyn RandomSource) -> NodeId {
        let tree = draft.tree();
        let mut priorities = std::mem::take(&mut self.priorities);
        priorities.clear();
        let ends = || {
            let ends =
                self.segment[1..].iter().copied().filter(|&node| !self.continues(draft, node));
            ends.flat_map(|end| std::iter::repeat_n(end, tree.draws(end)))
        };
        for end in ends() {
            let share = match self.nodes[end].sharing {
                Sharing::Proportional(node) => &self.nodes[node].share,
                Sharing::Divided | Sharing::None => &self.nodes[end].share,
            };
            priorities.push(share.intervals());
        }
        let first = ends().next().unwrap_or(self.segment[0]);
        let single = ends().all(|end| end == first);
        let winner =
            if single { first } else { ends().nth(rng.choose(&priorities)).unwrap_or(first) };
        self.priorities = priorities;
        winner
    }

    /// Follows a segment with a single path and returns its end.
    fn follow(&mut self, draft: &Draft, start: NodeId) -> NodeId {
        let mut end = start;
        while let Some(child) = draft.tree().children(end).next() {
            self.nodes[end].sharing = Sharing::None;
            end = child;
            if !self.continues(draft, end) {
                break;
            }
        }
        end
    }
}

/// The distribution of the selected path: that of the selection where shares were divided,
/// elsewhere the draft's.
fn selected<'a>(
    nodes: &'a [Node],
    draft: &'a Draft,
    target: &'a dyn TargetDistributions,
) -> Selected<'a, impl Fn(NodeId) -> Option<&'a Selection>> {
    let divided = |node: NodeId| Some(&nodes[node]).filter(|node| node.sharing == Sharing::Divided);
    Selected { draft, target, selection_at: move |node| divided(node).map(|node| &node.selection) }
}

impl Verifier for NestedPriority {
    fn supports(&self, form: &Form) -> Result<()> {
        form.require(self.name, "i.i.d. draws", form.is_iid())
    }

    fn verify(
        &mut self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        rng: &mut dyn RandomSource,
    ) -> Result<Outcome> {
        self.supports(draft.form())?;
        let target = &CheckedTargets::new(draft, target);
        while self.nodes.len() < draft.tree().len() {
            let (share, selection) = (Share::default(), Selection::new());
            self.nodes.push(Node { share, selection, sharing: Sharing::None, usable: 1.0 });
        }
        self.nodes.iter_mut().for_each(|node| node.sharing = Sharing::None);
        let mut end = DraftTree::ROOT;
        while let Some(draws) = draft.draws(end) {
            end = if draws.count > 1 {
                self.share(draft, end, draws.count, target)?;
                self.select(draft, rng)
            } else {
                self.follow(draft, end)
            };
        }
        let Self { nodes, weights, .. } = self;
        let mut selected = selected(nodes, draft, target);
        verify_path(draft, draft.tree().path(end), &mut selected, target, rng, weights)
    }

    fn as_priority_intervals(&self) -> Option<&dyn PriorityIntervals> {
        Some(self)
    }
}

impl PriorityIntervals for NestedPriority {
    fn priorities(
        &self,
        draft: &Draft,
        target: &dyn TargetDistributions,
        node: NodeId,
        token: Token,
    ) -> Result<Vec<[f64; 3]>> {
        let divided = self.nodes.get(node).filter(|node| node.sharing == Sharing::Divided);
        let (Some(divided_node), Some(probs)) = (divided, draft.distribution(node)) else {
            return Ok(Vec::new());
        };
        let intervals = divided_node.selection.intervals(target.target(node)?, probs, token);
        let intervals = intervals.filter(|interval| interval.weight > 0.0);
        Ok(intervals.map(|interval| [interval.start, interval.length, interval.weight]).collect())
    }
}
