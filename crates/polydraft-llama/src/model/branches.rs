//! Which ids go through which nodes of a tree.

use polydraft::{DraftTree, NodeId};

use crate::native::Id;

/// The ids of a tree's leaves. Of a tree that grows, what was there keeps its ids.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// For each node an id that goes through it.
    through: Vec<Id>,
    /// Each id with the last node that it goes through.
    tips: Vec<(Id, NodeId)>,
}

/// An id that begins as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fork {
    pub from: Id,
    pub to: Id,
    /// The last node that they share and that is in the cache.
    pub node: NodeId,
}

impl Branches {
    /// Whether a node is in the cache.
    pub fn holds(&self, node: NodeId) -> bool {
        node < self.through.len()
    }

    /// An id that goes through a node that is in the cache.
    pub fn through(&self, node: NodeId) -> Id {
        self.through[node]
    }

    /// Forgets all, and returns what the ids were of.
    pub fn clear(&mut self) -> Vec<(Id, NodeId)> {
        self.through.clear();
        std::mem::take(&mut self.tips)
    }

    /// The nodes of a tree that need a new id: all but the first below the end of a branch. With
    /// the last node above that is here already.
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

    /// Takes in the nodes of a tree that are new. `ids` are as many as [`forks`](Self::forks) says;
    /// `own` is the sequence's. Returns which of them have to be copied from which, in order.
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

    /// All ids.
    pub fn ids(&self) -> Vec<Id> {
        self.tips.iter().map(|(id, _)| *id).collect()
    }

    /// For each node from `first` on the ids that go through it.
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

    /// Every node of the tree has the ids of the leaves below it, and no two leaves share one.
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
    fn a_tree_at_once_and_level_by_level() {
        // Two below the root, three below the first of them, and one below the last of those.
        let mut whole = DraftTree::new();
        let mut growing = (DraftTree::new(), Branches::default());
        let mut next = 1;
        for (parent, token) in [(0, 5), (0, 6), (1, 1), (1, 2), (1, 3), (5, 4), (0, 9), (2, 7)] {
            whole.add(parent, token);
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
        let forks = branches.forks(&whole);
        // As many leaves as there are, less the sequence's own.
        assert_eq!(forks.len(), 4);
        assert!(forks.iter().all(|(_, above)| *above == DraftTree::ROOT));
        branches.grow(0, &whole, (1..5).collect());
        check(&branches, &whole);
        assert!(branches.holds(8) && !branches.holds(9));
        assert_eq!(branches.clear().len(), 5);
        assert!(!branches.holds(0));
    }
}
