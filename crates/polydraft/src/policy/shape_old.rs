//! The shapes of draft trees, and how the tokens at their nodes are drawn.
//!
//! Problem: say where a tree branches before anything is drawn. How many tokens are drawn at a node may depend on the
//! node's own text and on the draft's law there, never on tokens drawn at that node: then every verifier that
//! supports the scheme is exact.
//! Source: i.i.d. paths (Sun et al. 2023, SpecTr); levels, that is prefix trees, k-ary and binary trees (Miao et al.
//! 2023, SpecInfer; Jeon et al. 2024, RSD); fixed trees (Chen et al. 2024, Sequoia); top-k (Li et al. 2024, EAGLE-2);
//! budgets of distinct tokens: ours.
//! Complexity: a draw costs O(log V); everything else grows with the number of distinct nodes.
//! Deviations: none.

use std::fmt;
use std::sync::Arc;

use super::{DraftTree, NodeId, Topology};
use crate::chance::Chance;
use crate::drafting::{Drafting, Proposal, count_within};
use crate::{Distribution, Error, Result, Token};

/// Where a draft tree branches, and how its tokens are drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Independent paths, common prefixes merged. One path is a chain.
    Paths {
        /// How many paths are drawn, at least 1.
        paths: usize,
        /// Tokens of each, at least 1.
        depth: usize,
    },
    /// The same number of draws at every distinct node of a level.
    Levels {
        /// Draws at a node by its depth: the root's first.
        counts: Vec<usize>,
        /// How they are drawn.
        drafting: Drafting,
    },
    /// At every distinct node of a level as many independent draws as are expected to give this many distinct tokens.
    Budgets {
        /// Distinct tokens at a node by its depth, at least 1 each.
        distinct: Vec<f64>,
    },
    /// A tree laid down beforehand; the draws at a node are its children in order, all distinct.
    Fixed {
        /// The tree.
        topology: Arc<Topology>,
        /// How they are drawn: without replacement, or the most likely ones.
        drafting: Drafting,
    },
}

/// Draws at a node that a budget of distinct tokens allows at most, for each token of the budget.
const DRAWS_PER_DISTINCT: usize = 8;
/// The deepest tree and the most draws at a node. More is a slip of the finger.
const LIMIT: usize = 4096;

impl Shape {
    /// A single path.
    pub fn chain(depth: usize) -> Self {
        Self::Paths { paths: 1, depth }
    }

    /// # Errors
    /// A number that is 0 or absurdly large; a scheme that cannot draw this shape.
    pub fn validate(&self) -> Result<()> {
        let within = |setting, value: usize| match value {
            1..=LIMIT => Ok(()),
            _ => Err(Error::Setting { setting, expected: "from 1 to 4096", got: value.to_string() }),
        };
        within("depth of the tree", self.depth())?;
        let supported: &[Drafting] = match self {
            Self::Paths { paths, .. } => return within("paths", *paths),
            Self::Budgets { distinct } => {
                return match distinct.iter().find(|d| !(**d >= 1.0 && **d <= LIMIT as f64)) {
                    None => Ok(()),
                    Some(got) => {
                        let (setting, expected) = ("distinct tokens per node", "from 1 to 4096");
                        Err(Error::Setting { setting, expected, got: got.to_string() })
                    }
                };
            }
            Self::Levels { counts, .. } => {
                counts.iter().try_for_each(|&count| within("draws per node", count))?;
                &[
                    Drafting::Iid,
                    Drafting::WithoutReplacement,
                    Drafting::Greedy,
                    Drafting::Hub,
                    Drafting::TopK,
                ]
            }
            Self::Fixed { .. } => &[Drafting::WithoutReplacement, Drafting::TopK],
        };
        if supported.contains(&self.drafting()) {
            return Ok(());
        }
        let names: Vec<_> = supported.iter().map(|scheme| scheme.name()).collect();
        let (operation, expected) = ("tree", format!("drafting {}", names.join(" or ")));
        Err(Error::Unsupported { operation, expected, got: self.drafting().to_string() })
    }

    /// Tokens from the root to the deepest leaf.
    pub fn depth(&self) -> usize {
        match self {
            Self::Paths { depth, .. } => *depth,
            Self::Levels { counts, .. } => counts.len(),
            Self::Budgets { distinct } => distinct.len(),
            Self::Fixed { topology, .. } => topology.depth(),
        }
    }

    /// How the tokens at a node are drawn.
    pub fn drafting(&self) -> Drafting {
        match self {
            Self::Paths { .. } | Self::Budgets { .. } => Drafting::Iid,
            Self::Levels { drafting, .. } | Self::Fixed { drafting, .. } => *drafting,
        }
    }

    /// Whether no tree of this shape branches.
    pub fn is_chain(&self) -> bool {
        match self {
            Self::Paths { paths, .. } => *paths == 1,
            Self::Levels { counts, drafting } => {
                counts.iter().all(|count| *count == 1) && *drafting != Drafting::TopK
            }
            Self::Budgets { .. } | Self::Fixed { .. } => false,
        }
    }

    /// The largest number of draws at one node.
    pub fn most_draws(&self) -> usize {
        match self {
            Self::Paths { paths, .. } => *paths,
            Self::Levels { counts, .. } => counts.iter().copied().max().unwrap_or(1),
            Self::Budgets { distinct } => distinct.iter().map(|d| most_within(*d)).max().unwrap_or(1),
            Self::Fixed { topology, .. } => {
                (0..topology.len()).map(|node| topology.children(node).len()).max().unwrap_or(1)
            }
        }
    }

    /// Whether tokens are drawn at this node of a tree that is deeper than the node.
    pub fn branches_at(&self, tree: &DraftTree, node: NodeId) -> bool {
        match self {
            Self::Fixed { topology, .. } => !topology.children(topology.position(tree, node)).is_empty(),
            _ => tree.depth(node) < self.depth(),
        }
    }

    /// Draws the children of `node`, whose next-token law is `law`, and adds them to `tree`. Nodes must be grown in
    /// the order of their ids. `drawn` is memory to use again.
    ///
    /// # Errors
    /// A shape that [`validate`](Self::validate) refuses.
    pub fn grow(
        &self,
        tree: &mut DraftTree,
        node: NodeId,
        law: &Distribution,
        chance: &mut dyn Chance,
        drawn: &mut Vec<Token>,
    ) -> Result<()> {
        let depth = tree.depth(node);
        let count = match self {
            Self::Paths { paths, .. } if node == DraftTree::ROOT => *paths,
            Self::Paths { .. } => tree.draws(node),
            Self::Levels { counts, .. } => counts.get(depth).copied().unwrap_or(0),
            Self::Budgets { distinct } => match distinct.get(depth) {
                Some(&budget) => count_within(law, budget, most_within(budget)),
                None => 0,
            },
            Self::Fixed { topology, .. } => topology.children(topology.position(tree, node)).len(),
        };
        if count > 0 {
            let proposal = Proposal::new(self.drafting(), std::slice::from_ref(law), count)?;
            proposal.draw(chance, drawn);
            for &token in &*drawn {
                tree.add(node, token);
            }
        }
        Ok(())
    }

    /// The law of the draws that `tree`, of this shape, has below `node`.
    ///
    /// # Errors
    /// Nothing was drawn there.
    pub fn proposal<'a>(
        &self,
        tree: &DraftTree,
        node: NodeId,
        law: &'a Distribution,
    ) -> Result<Proposal<'a>> {
        let draws = || tree.children(node).map(|child| tree.draws(child)).sum();
        let count = match self {
            // Where the support is smaller the tuple is shorter, but hubs are counted as planned.
            Self::Levels { counts, .. } => counts[tree.depth(node)],
            _ => draws(),
        };
        Proposal::new(self.drafting(), std::slice::from_ref(law), count)
    }
}

fn most_within(distinct: f64) -> usize {
    DRAWS_PER_DISTINCT * distinct.ceil() as usize
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let list = |values: &[String]| values.join(",");
        match self {
            Self::Paths { paths: 1, depth } => write!(f, "one path of {depth}"),
            Self::Paths { paths, depth } => write!(f, "{paths} paths of {depth}"),
            Self::Levels { counts, drafting } => {
                write!(
                    f,
                    "levels {} {drafting}",
                    list(&counts.iter().map(usize::to_string).collect::<Vec<_>>())
                )
            }
            Self::Budgets { distinct } => {
                write!(f, "budgets {}", list(&distinct.iter().map(f64::to_string).collect::<Vec<_>>()))
            }
            Self::Fixed { topology, drafting } => {
                write!(f, "fixed tree of {} nodes {drafting}", topology.len() - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enumerate;

    fn trees(shape: &Shape, law: &Distribution) -> Vec<(f64, DraftTree)> {
        enumerate(|chance| {
            let mut tree = DraftTree::new();
            let (mut node, mut drawn) = (0, Vec::new());
            while node < tree.len() {
                if tree.depth(node) < shape.depth() {
                    shape.grow(&mut tree, node, law, chance, &mut drawn).unwrap();
                }
                node += 1;
            }
            tree
        })
    }

    #[test]
    fn merged_paths_keep_their_number() {
        let law = Distribution::new(vec![0.5, 0.3, 0.2]).unwrap();
        for (_, tree) in trees(&Shape::Paths { paths: 3, depth: 2 }, &law) {
            for node in 0..tree.len() {
                let below: usize = tree.children(node).map(|child| tree.draws(child)).sum();
                let here = if node == 0 { 3 } else { tree.draws(node) };
                assert!(below == here || tree.depth(node) == 2);
            }
        }
    }

    #[test]
    fn fixed_trees_follow_their_topology() {
        let law = Distribution::new(vec![0.5, 0.3, 0.2]).unwrap();
        let topology = Arc::new(Topology::from_parents(&[0, 0, 1, 1, 2]).unwrap());
        for drafting in [Drafting::WithoutReplacement, Drafting::TopK] {
            let shape = Shape::Fixed { topology: topology.clone(), drafting };
            shape.validate().unwrap();
            for (_, tree) in trees(&shape, &law) {
                let parents: Vec<_> = (1..tree.len()).map(|node| tree.parent(node)).collect();
                assert_eq!(parents, [0, 0, 1, 1, 2]);
            }
        }
    }

    #[test]
    fn unfit_shapes_are_refused() {
        for shape in [
            Shape::chain(0),
            Shape::Paths { paths: 0, depth: 1 },
            Shape::Levels { counts: vec![2, 0], drafting: Drafting::Iid },
            Shape::Levels { counts: vec![], drafting: Drafting::Iid },
            Shape::Levels { counts: vec![2], drafting: Drafting::Distinct },
            Shape::Budgets { distinct: vec![0.5] },
        ] {
            assert!(shape.validate().is_err(), "{shape}");
        }
    }
}
