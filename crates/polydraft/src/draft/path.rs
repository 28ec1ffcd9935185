//! The view of a path that a policy may base its decision on.

use super::{Draft, DraftTree, NodeId};
use crate::{Distribution, Token};

/// The tokens from the root to one node and the draft's distributions along them, without anything
/// drawn elsewhere in the tree. Decisions based on this alone keep every verifier exact.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    draft: &'a Draft,
    node: NodeId,
}

impl<'a> Path<'a> {
    pub(super) fn new(draft: &'a Draft, node: NodeId) -> Self {
        Self { draft, node }
    }

    /// Number of tokens on the path; 0 at the root.
    pub fn depth(&self) -> usize {
        self.draft.tree.depth(self.node)
    }

    /// The tokens, from the root to the node.
    pub fn tokens(&self) -> Vec<Token> {
        let tree = &self.draft.tree;
        tree.path(self.node).into_iter().map(|node| tree.token(node)).collect()
    }

    /// The nodes at which the tokens were drawn, the root last.
    fn parents(&self) -> impl Iterator<Item = NodeId> + 'a {
        let tree = &self.draft.tree;
        let first = (self.node != DraftTree::ROOT).then(|| tree.parent(self.node));
        std::iter::successors(first, |&node| (node != DraftTree::ROOT).then(|| tree.parent(node)))
    }

    /// The draft's confidence ([`Distribution::confidence`]) at every node before this one, nearest
    /// first.
    ///
    /// [`Distribution::confidence`]: crate::Distribution::confidence
    pub fn confidence(&self) -> impl Iterator<Item = f64> + 'a {
        let draft = self.draft;
        self.parents().filter_map(|node| draft.distribution(node)).map(Distribution::confidence)
    }

    /// For each token on the path, from the root on, the number of other tokens first drawn before
    /// it below the same parent.
    ///
    /// A policy that decides by rank must make fresh draws everywhere ([`Growth::Fresh`]):
    /// continued paths are not independent of the ranks.
    ///
    /// [`Growth::Fresh`]: crate::Growth::Fresh
    pub fn ranks(&self) -> Vec<usize> {
        let tree = &self.draft.tree;
        let rank = |node: NodeId| {
            tree.children(tree.parent(node)).take_while(|sibling| *sibling != node).count()
        };
        tree.path(self.node).into_iter().map(rank).collect()
    }
}

impl Draft {
    /// The path from the root to a node, as a policy sees it.
    pub fn path(&self, node: NodeId) -> Path<'_> {
        Path::new(self, node)
    }
}
