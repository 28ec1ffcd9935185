//! Assignment of ids to the branches of a tree.

use polydraft::{DraftTree, NodeId};

use crate::native::Id;

/// Ids of a tree's leaves. When a tree grows, existing nodes keep their ids.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// For each node, one id that passes through it.
    through: Vec<Id>,
    /// Each id with the last node that it passes through.
    tips: Vec<(Id, NodeId)>,
}

/// Id that starts as a copy of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fork {
    pub from: Id,
    pub to: Id,
    /// Last common node that is in the cache.
    pub node: NodeId,
}

impl Branches {
    /// Whether a node is in the cache.
    pub fn contains(&self, node: NodeId) -> bool {
        node < self.through.len()
    }

    /// Id that passes through a cached node.
    pub fn through(&self, node: NodeId) -> Id {
        self.through[node]
    }

    /// Removes all nodes and returns the ids with their last nodes.
    pub fn clear(&mut self) -> Vec<(Id, NodeId)> {
        self.through.clear();
        std::mem::take(&mut self.tips)
    }

    /// Nodes of a tree that need a new id, because an earlier node continues the branch of their
    /// parent; each with its last ancestor that is in the cache.
    pub fn forks(&self, tree: &DraftTree) -> Vec<(NodeId, NodeId)> {
        let known = self.through.len().max(1);
        let mut is_tip = vec![false; tree.len()];
        match self.through.is_empty() {
            true => is_tip[DraftTree::ROOT] = true,
            false => self.tips.iter().for_each(|(_, tip)| is_tip[*tip] = true),
        }
        let mut forks = Vec::new();
        for node in known..tree.len() {
            let parent = tree.parent(node);
            if !std::mem::take(&mut is_tip[parent]) {
                let mut above = parent;
                while above >= known {
                    above = tree.parent(above);
                }
                forks.push((node, above));
            }
            is_tip[node] = true;
        }
        forks
    }

    /// Adds the new nodes of a tree. `ids` has one new id for each of [`forks`](Self::forks); `own`
    /// is the sequence's id. Returns the copies to make, in order.
    pub fn grow(&mut self, own: Id, tree: &DraftTree, ids: Vec<Id>) -> Vec<Fork> {
        let forks = self.forks(tree);
        debug_assert_eq!(forks.len(), ids.len());
        if self.through.is_empty() {
            self.through.push(own);
            self.tips.push((own, DraftTree::ROOT));
        }
        let mut new = forks.into_iter().zip(ids).peekable();
        let mut copies = Vec::new();
        for node in self.through.len()..tree.len() {
            let parent = tree.parent(node);
            if let Some(((_, above), id)) = new.next_if(|((fork, _), _)| *fork == node) {
                copies.push(Fork { from: self.through[above], to: id, node: above });
                self.tips.push((id, node));
                self.through.push(id);
            } else if let Some(tip) = self.tips.iter_mut().find(|(_, tip)| *tip == parent) {
                tip.1 = node;
                self.through.push(tip.0);
            }
        }
        copies
    }

    /// Ids of all branches.
    pub fn ids(&self) -> Vec<Id> {
        self.tips.iter().map(|(id, _)| *id).collect()
    }

    /// For each node from `first` on, the ids that pass through it.
    pub fn ids_from(&self, first: NodeId, tree: &DraftTree) -> Vec<Vec<Id>> {
        let mut ids = vec![Vec::new(); tree.len() - first];
        for (id, tip) in &self.tips {
            let mut node = *tip;
            while node >= first {
                ids[node - first].push(*id);
                node = tree.parent(node);
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every node of the tree has the ids of the leaves below it, and that no two
    /// leaves share an id.
    fn check(branches: &Branches, tree: &DraftTree) {
        let leaves: Vec<NodeId> =
            (0..tree.len()).filter(|node| tree.children(*node).next().is_none()).collect();
        let mut tips: Vec<NodeId> = branches.tips.iter().map(|(_, tip)| *tip).collect();
        tips.sort_unstable();
        assert_eq!(tips, leaves);
        let mut ids = branches.ids();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), leaves.len());
        for (node, ids) in branches.ids_from(1, tree).iter().enumerate() {
            let node = node + 1;
            let below = leaves.iter().filter(|leaf| tree.path(**leaf).contains(&node)).count();
            assert_eq!(ids.len(), below, "node {node}");
            assert!(ids.contains(&branches.through(node)));
        }
    }

    #[test]
    fn every_leaf_has_its_own_id_in_trees_added_at_once_or_node_by_node() {
        // Two children of the root, three of the first of them, and one of the last of those.
        let mut complete = DraftTree::new();
        let mut growing = (DraftTree::new(), Branches::default());
        let mut next = 1;
        for (parent, token) in [(0, 5), (0, 6), (1, 1), (1, 2), (1, 3), (5, 4), (0, 9), (2, 7)] {
            complete.add(parent, token);
            let (tree, branches) = &mut growing;
            tree.add(parent, token);
            let forks = branches.forks(tree);
            let ids: Vec<Id> = forks
                .iter()
                .map(|_| {
                    next += 1;
                    next - 1
                })
                .collect();
            for copy in branches.grow(0, tree, ids) {
                assert_eq!(copy.node, parent, "the parent is in the cache");
            }
            check(branches, tree);
        }
        let mut branches = Branches::default();
        let forks = branches.forks(&complete);
        // One per leaf, except the one that continues the sequence's id.
        assert_eq!(forks.len(), 4);
        assert!(forks.iter().all(|(_, above)| *above == DraftTree::ROOT));
        branches.grow(0, &complete, (1..5).collect());
        check(&branches, &complete);
        assert!(branches.contains(8) && !branches.contains(9));
        assert_eq!(branches.clear().len(), 5);
        assert!(!branches.contains(0));
    }
}
