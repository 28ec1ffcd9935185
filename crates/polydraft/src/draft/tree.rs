//! The tree of drafted tokens.

use crate::Token;

/// Index of a node in a [`DraftTree`]; 0 is the root.
pub type NodeId = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    token: Token,
    parent: NodeId,
    depth: usize,
    draws: usize,
    /// Children form a linked list in the order in which they were added; 0 ends it (the root is
    /// never a child).
    first_child: NodeId,
    last_child: NodeId,
    next_sibling: NodeId,
}

const ROOT: Node = Node {
    token: 0,
    parent: 0,
    depth: 0,
    draws: 0,
    first_child: 0,
    last_child: 0,
    next_sibling: 0,
};

/// Tokens proposed by the draft model: several continuations with their common prefixes merged.
///
/// Node 0, the root, stands for the committed context and has no token. Every other node has a
/// token, a parent with a smaller id, a depth (the root's is 0), and the number of draws that share
/// it.
///
/// ```
/// use polydraft::DraftTree;
///
/// // The paths 7 8, 7 8 and 7 9.
/// let mut tree = DraftTree::new();
/// for second in [8, 8, 9] {
///     let first = tree.add(DraftTree::ROOT, 7);
///     tree.add(first, second);
/// }
/// let first = tree.child(DraftTree::ROOT, 7).unwrap();
/// assert_eq!((tree.len(), tree.draws(first)), (4, 3));
/// let shared = tree.child(first, 8).unwrap();
/// assert_eq!((tree.draws(shared), tree.path(shared)), (2, vec![first, shared]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DraftTree {
    nodes: Vec<Node>,
}

impl Default for DraftTree {
    fn default() -> Self {
        Self::new()
    }
}

impl DraftTree {
    /// Id of the root.
    pub const ROOT: NodeId = 0;

    /// Creates a tree that has only the root.
    pub fn new() -> Self {
        Self { nodes: vec![ROOT] }
    }

    /// Removes everything but the root; keeps the memory.
    pub fn clear(&mut self) {
        self.nodes.truncate(1);
        self.nodes[0] = ROOT;
    }

    /// Adds one draw of `token` below `parent` and returns its node.
    ///
    /// If a child has the same token, its number of draws grows by one and no node is added.
    /// `parent` must be a node of this tree.
    pub fn add(&mut self, parent: NodeId, token: Token) -> NodeId {
        if let Some(child) = self.child(parent, token) {
            self.nodes[child].draws += 1;
            return child;
        }
        let id = self.nodes.len();
        let depth = self.nodes[parent].depth + 1;
        self.nodes.push(Node { token, parent, depth, draws: 1, ..ROOT });
        match self.nodes[parent].last_child {
            0 => self.nodes[parent].first_child = id,
            last => self.nodes[last].next_sibling = id,
        }
        self.nodes[parent].last_child = id;
        id
    }

    /// Number of nodes, the root included; at least 1.
    #[allow(clippy::len_without_is_empty)] // it is never empty
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The token of a node; 0 for the root, which has none.
    pub fn token(&self, node: NodeId) -> Token {
        self.nodes[node].token
    }

    /// The parent of a node; the root for the root.
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.nodes[node].parent
    }

    /// Number of tokens from the root to this node.
    pub fn depth(&self, node: NodeId) -> usize {
        self.nodes[node].depth
    }

    /// Number of nodes per level, the root's first.
    pub fn levels(&self) -> Vec<usize> {
        let mut levels = Vec::new();
        for node in &self.nodes {
            levels.resize(levels.len().max(node.depth + 1), 0);
            levels[node.depth] += 1;
        }
        levels
    }

    /// Number of draws that share this node; 0 for the root.
    pub fn draws(&self, node: NodeId) -> usize {
        self.nodes[node].draws
    }

    /// The child of `parent` with this token, if there is one.
    pub fn child(&self, parent: NodeId, token: Token) -> Option<NodeId> {
        self.children(parent).find(|&child| self.nodes[child].token == token)
    }

    /// The children of a node, in the order in which they were first added.
    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let first = self.nodes[node].first_child;
        std::iter::successors((first != 0).then_some(first), |&child| {
            let next = self.nodes[child].next_sibling;
            (next != 0).then_some(next)
        })
    }

    /// The nodes from the root (excluded) to `node` (included).
    pub fn path(&self, node: NodeId) -> Vec<NodeId> {
        let mut path: Vec<NodeId> =
            std::iter::successors(Some(node), |&n| Some(self.nodes[n].parent))
                .take(self.nodes[node].depth)
                .collect();
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_draws_share_a_node() {
        let mut tree = DraftTree::new();
        let a = tree.add(DraftTree::ROOT, 7);
        let b = tree.add(DraftTree::ROOT, 3);
        let a_again = tree.add(DraftTree::ROOT, 7);
        let c = tree.add(a, 7);
        assert_eq!((a, b, a_again, c), (1, 2, 1, 3));
        assert_eq!((tree.draws(a), tree.draws(b), tree.draws(c)), (2, 1, 1));
        assert_eq!(tree.children(DraftTree::ROOT).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((tree.path(c), tree.path(0)), (vec![1, 3], vec![]));
        assert_eq!((tree.depth(c), tree.parent(c), tree.token(c), tree.len()), (2, a, 7, 4));
        tree.clear();
        assert_eq!(tree, DraftTree::new());
    }
}
