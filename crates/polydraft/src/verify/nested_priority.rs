//! Nested priority block verification: the path of highest priority, verified as a block.
//!
//! Problem: a tree of independent draws was drawn from the draft; emit a path of it and one more
//! token with the target's distribution, and as many tokens as the distributions at the drafted
//! nodes allow.
//! Source: ours (`docs/theory.md`, nested priority block verification). [0, 1] is shared out
//! among the first tokens as in priority coupling, each token's share among its next tokens, and so
//! on; a path's priority is a uniform point of its own share. What tokens demand of a node's share
//! is what block verification can use there: the weight of the path to it, times the target's
//! probabilities. Each priority depends on its path
//! alone and is uniform overall, so the path of highest priority has the distribution that the
//! highest of K uniform priorities gives to its share, and block verification against that
//! distribution is exact (GBV, lemma 4.4). K = 1 is block verification, L = 1 priority coupling;
//! GBV is the special case of shares that are single intervals in the order of ratios.
//!
//! Where a tree is no set of paths (`docs/theory.md`, trees in which draws begin anew):
//! 1. From a node where n draws begin down to the next such nodes, or leaves, the tree is a
//!    *segment* of n independent paths. Among these one is selected as above, with all of [0, 1] to
//!    share out and K = n.
//! 2. At the end of the selected segment the next one begins. Given that the end was selected, the
//!    draws below it are independent of the selection, so the distribution of the selected path is
//!    the product of the segments' distributions.
//! 3. The selected path is verified as a block against that product. Where the draws of every node
//!    are a segment of their own, this is priority block verification: the child of highest
//!    priority is followed from node to node.
//!
//! Complexity: one sharing for each distinct drafted node, near-linear in V, the nodes of a level
//! independent of each other; from where proportional sharing takes over, none. The target's
//! distribution is looked at where shares are made, and on the selected path.
//! Deviations: (1) near-linear sharing, in which tokens of small probability get a part of every
//! priority of their pool (`coupling::priority`), so a node's share is a distribution of its
//! priority, piecewise uniform, rather than a set; (2) proportional sharing, in which a token keeps
//! its parent's distribution of the priority, from where the density of the highest priority varies
//! by less than a setting; (3) for the next node everything is relative to its parent, so nothing
//! underflows however long the path.

mod share;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::block::{PathDistribution, Selected, verify_path};
use super::{
    Alike, Outcome, PriorityIntervals, TargetDistributions, Verifier, VerifierSettings,
    worth_threads,
};
use crate::coupling::capped_ratio;
use crate::coupling::priority::{self, selection::Selection, shares::Highest};
use crate::draft::{Draft, DraftTree, Form, NodeId};
use crate::priorities::Priorities;
use crate::{Error, RandomSource, Result, Token};
use share::Share;

/// Settings of the verifier. Each costs acceptance only; the distribution is exact always.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How a share is divided among the next tokens. Default: as the rule `priority` does, but with
    /// masses nearest to the draft, which spread shares most and accept most on language models,
    /// and pooled so that 1e-4 of acceptance may be lost at a node.
    pub sharing: priority::Settings,
    /// A node whose priorities are worth the same up to this part of their mean worth is shared
    /// proportionally, from 0 to 1. Default 1e-3, which costs about 1e-8 tokens per step.
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

/// The settings of the rule, with which a path is selected node by node.
impl VerifierSettings for priority::Settings {
    fn build(&self) -> Result<Box<dyn Verifier>> {
        self.validate()?;
        let settings = Settings { sharing: self.clone(), proportional_below: 0.0 };
        Ok(Box::new(NestedPriority::new("verifier priority-block", settings, Segments::NodeByNode)))
    }
}

/// How far the selection among a node's draws goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Segments {
    /// As far as the paths go on.
    AsDrawn,
    /// One node: a new one begins at every node, whatever was drawn.
    NodeByNode,
}

/// A drafted node.
#[derive(Debug)]
struct Node {
    /// The distribution of the priority of a path through here; unused where sharing was
    /// proportional above.
    share: Share,
    /// How it was divided among the next tokens.
    selection: Selection,
    sharing: Sharing,
    /// The part of the target that can be used here.
    usable: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Sharing {
    /// By its `selection`.
    Own,
    /// Proportionally; the distribution of the priority is that of this node, here and further
    /// down.
    Proportional(NodeId),
    /// Not divided: the end of a segment, or a segment of one path.
    None,
}

/// A workspace that is used again.
#[derive(Debug)]
struct NestedPriority {
    name: &'static str,
    settings: Settings,
    segments: Segments,
    /// By node; reused from tree to tree for their memory.
    nodes: Vec<Node>,
    /// The nodes of the segment at work, level by level.
    segment: Vec<NodeId>,
    /// Those of one level that are divided.
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

    /// Whether the segment that comes to `node` goes on there.
    fn goes_on(&self, draft: &Draft, node: NodeId) -> bool {
        self.segments == Segments::AsDrawn && draft.has_continued_draws(node)
    }

    /// Shares all priorities of `paths` paths out among the nodes of the segment that begins at
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
        self.nodes[start].sharing = Sharing::Own;
        self.segment.clear();
        self.segment.push(start);
        let mut level_start = 0;
        while level_start < self.segment.len() {
            let level = level_start..self.segment.len();
            self.level.clear();
            for index in level.clone() {
                let node = self.segment[index];
                let ends = node != start && !self.goes_on(draft, node);
                if node != start {
                    self.inherit(draft, node, highest, target)?;
                }
                let Node { share, sharing, .. } = &mut self.nodes[node];
                match sharing {
                    Sharing::Own if ends => *sharing = Sharing::None,
                    Sharing::Own
                        if share.variation(highest) <= self.settings.proportional_below =>
                    {
                        *sharing = Sharing::Proportional(node);
                    }
                    Sharing::Own => self.level.push(node),
                    Sharing::Proportional(_) | Sharing::None => {}
                }
            }
            self.divide(draft, highest, target)?;
            level_start = level.end;
            for index in level {
                let node = self.segment[index];
                if node == start || self.goes_on(draft, node) {
                    self.segment.extend(tree.children(node));
                }
            }
        }
        Ok(())
    }

    /// The weight that block verification gives to a path that comes to `node`: so much of the
    /// target there can be used.
    fn weight(&self, draft: &Draft, node: NodeId, target: &dyn TargetDistributions) -> Result<f64> {
        let (tree, selected) = (draft.tree(), selected(&self.nodes, draft, target));
        tree.path(node).into_iter().try_fold(1.0, |weight, node| {
            let (parent, token) = (tree.parent(node), tree.token(node));
            if weight <= 0.0 {
                return Ok(0.0);
            }
            let wanted = weight * target.target(parent)?.probability(token);
            Ok(capped_ratio(wanted, selected.probability(parent, token)?))
        })
    }

    /// Gives a node its share of its parent's.
    fn inherit(
        &mut self,
        draft: &Draft,
        node: NodeId,
        highest: Highest,
        target: &dyn TargetDistributions,
    ) -> Result<()> {
        let parent = draft.tree().parent(node);
        let (before, from) = self.nodes.split_at_mut(node);
        let (parent_node, own) = (&before[parent], &mut from[0]);
        own.sharing = parent_node.sharing;
        if parent_node.sharing == Sharing::Own {
            let (target, probs) = (target.target(parent)?, draft.drawn_from(parent)?);
            let token = draft.tree().token(node);
            let intervals = parent_node.selection.intervals(target, probs, token);
            let selected = parent_node.selection.probability(target, probs, token);
            own.usable = capped_ratio(parent_node.usable * target.probability(token), selected);
            own.share.set_part(&parent_node.share, intervals, highest);
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
        if worth_threads(draft, level) {
            let nodes = self.nodes.par_iter_mut().enumerate();
            return nodes
                .filter(|(id, _)| level.contains(id))
                .map(|(id, node)| divide(id, node))
                .collect::<Result<()>>();
        }
        level.iter().try_for_each(|&id| divide(id, &mut self.nodes[id]))
    }

    /// Draws the priorities of all paths of the segment and takes the end of the one with the
    /// highest.
    fn select(&mut self, draft: &Draft, rng: &mut dyn RandomSource) -> NodeId {
        let tree = draft.tree();
        let mut priorities = std::mem::take(&mut self.priorities);
        priorities.clear();
        let ends = || {
            let ends = self.segment[1..].iter().copied().filter(|&node| !self.goes_on(draft, node));
            ends.flat_map(|end| std::iter::repeat_n(end, tree.draws(end)))
        };
        for end in ends() {
            let share = match self.nodes[end].sharing {
                Sharing::Proportional(node) => &self.nodes[node].share,
                Sharing::Own | Sharing::None => &self.nodes[end].share,
            };
            priorities.push(share.intervals());
        }
        let first = ends().next().unwrap_or(self.segment[0]);
        let one = ends().all(|end| end == first);
        let winner = if one { first } else { ends().nth(rng.choose(&priorities)).unwrap_or(first) };
        self.priorities = priorities;
        winner
    }

    /// The end of a segment of one path.
    fn follow(&mut self, draft: &Draft, start: NodeId) -> NodeId {
        let mut end = start;
        while let Some(child) = draft.tree().children(end).next() {
            self.nodes[end].sharing = Sharing::None;
            end = child;
            if !self.goes_on(draft, end) {
                break;
            }
        }
        end
    }
}

/// The distribution of the selected path, as far as shares were divided.
fn selected<'a>(
    nodes: &'a [Node],
    draft: &'a Draft,
    target: &'a dyn TargetDistributions,
) -> Selected<'a, impl Fn(NodeId) -> Option<&'a Selection>> {
    let own = |node: NodeId| Some(&nodes[node]).filter(|own| own.sharing == Sharing::Own);
    Selected { draft, target, at: move |node| own(node).map(|node| &node.selection) }
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
        let target = &Alike::new(draft, target);
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
        let shared = self.nodes.get(node).filter(|node| node.sharing == Sharing::Own);
        let (Some(own), Some(probs)) = (shared, draft.distribution(node)) else {
            return Ok(Vec::new());
        };
        let intervals = own.selection.intervals(target.target(node)?, probs, token);
        let intervals = intervals.filter(|interval| interval.weight > 0.0);
        Ok(intervals.map(|interval| [interval.start, interval.length, interval.weight]).collect())
    }
}
