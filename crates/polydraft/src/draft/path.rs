//! The path to a node, as far as a policy may know it.

use super::{Draft, DraftTree, NodeId};
use crate::{Distribution, Token};

/// The tokens from the root to one node and the draft's distributions along them; nothing of what
/// was drawn elsewhere in the tree. A decision that knows no more than this keeps every verifier
/// exact.
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

    /// The tokens, the first one first.
    pub fn tokens(&self) -> Vec<Token> {
        let tree = &self.draft.tree;
        tree.path(self.node).into_iter().map(|node| tree.token(node)).collect()
    }

    /// The nodes that the tokens were drawn at, the root last.
    fn parents(&self) -> impl Iterator<Item = NodeId> + 'a {
        let tree = &self.draft.tree;
        let first = (self.node != DraftTree::ROOT).then(|| tree.parent(self.node));
        std::iter::successors(first, |&node| (node != DraftTree::ROOT).then(|| tree.parent(node)))
    }

    /// The draft's confidence at every node before this one, the nearest first:
    /// [`Distribution::confidence`] of its distribution there.
    ///
    /// [`Distribution::confidence`]: crate::Distribution::confidence
    pub fn confidence(&self) -> impl Iterator<Item = f64> + 'a {
        let draft = self.draft;
        self.parents().filter_map(|node| draft.distribution(node)).map(Distribution::confidence)
    }

    /// For each token on the path, the first one first, how many others were drawn before it at its
    /// node; a token that is drawn again keeps its place.
    ///
    /// A policy that decides by places lets all draws begin anew ([`Growth::Fresh`]). Paths that go
    /// on are not independent of them.
    ///
    /// [`Growth::Fresh`]: crate::Growth::Fresh
    pub fn ranks(&self) -> Vec<usize> {
        let tree = &self.draft.tree;
        let place = |node: NodeId| {
            tree.children(tree.parent(node)).take_while(|sibling| *sibling != node).count()
        };
        tree.path(self.node).into_iter().map(place).collect()
    }
}

impl Draft {
    /// The path from the root to a node, as far as a policy may know it.
    pub fn path(&self, node: NodeId) -> Path<'_> {
        Path::new(self, node)
    }
}
