//! Trees of fixed shape, and the best one for measured acceptances.
//!
//! Problem: with a_j the probability that the j-th child of a node is the one accepted, find the
//! tree of N drafted nodes whose expected number of emitted tokens per pass, F = 1 + Σ over nodes
//! of the probability of reaching them, is largest.
//! Source: Chen et al. 2024, "Sequoia: Scalable and Robust Speculative Decoding", section 3.1
//! (dynamic programming over the numbers of nodes; positional acceptance).
//! Complexity: the probability of reaching a node depends on its child numbers alone, so the best
//! tree consists of the N most probable positions: O(N log N) with a heap, where the paper's
//! programme takes O(N² J).
//! Deviations: (1) a heap in place of the programme: a position is never more probable than its
//! parent or its elder sibling once a_j is made non-increasing, so the N most probable positions
//! are a tree, and it is optimal.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::{Error, Result};

/// A tree of positions: position 0 is the root, and a position's children are in the order in which
/// they are drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    children: Vec<Vec<usize>>,
    depth: usize,
}

/// Maximum number of positions of a topology.
const LIMIT: usize = 4096;

impl Topology {
    /// Creates a topology from the parent of each position 1, 2, ..; parents come before their
    /// children.
    ///
    /// # Errors
    /// No positions, or more than 4096; a parent that does not come before its child.
    pub fn from_parents(parents: &[usize]) -> Result<Self> {
        let operation = "parents of a tree";
        if parents.is_empty() || parents.len() > LIMIT {
            let expected = format!("from 1 to {LIMIT}");
            return Err(Error::Length { operation, expected, got: parents.len() });
        }
        let mut children = vec![Vec::new(); parents.len() + 1];
        let mut depths = vec![0; parents.len() + 1];
        for (index, &parent) in parents.iter().enumerate() {
            if parent > index {
                let expected = "a position that comes before it";
                return Err(Error::Entry { operation, index, expected, got: parent as f64 });
            }
            children[parent].push(index + 1);
            depths[index + 1] = depths[parent] + 1;
        }
        Ok(Self { children, depth: depths.into_iter().max().unwrap_or(0) })
    }

    /// Finds the best tree of `nodes` drafted tokens, at most `depth` deep: `acceptance[j]` is the
    /// probability that the j-th child of a node is accepted.
    ///
    /// # Errors
    /// Probabilities out of range or summing to more than 1; no nodes, or more than 4096; depth 0.
    pub fn sequoia(acceptance: &[f64], nodes: usize, depth: usize) -> Result<Self> {
        let operation = "acceptance of children";
        if acceptance.is_empty() {
            return Err(Error::Length { operation, expected: "at least 1".to_owned(), got: 0 });
        }
        if let Some(index) = acceptance.iter().position(|a| !(*a >= 0.0 && *a <= 1.0)) {
            let expected = "from 0 to 1";
            return Err(Error::Entry { operation, index, expected, got: acceptance[index] });
        }
        let sum: f64 = acceptance.iter().sum();
        if sum > 1.0 + 1e-9 {
            let expected = "at most 1 together: one child is accepted at most";
            return Err(Error::Setting { setting: operation, expected, got: sum.to_string() });
        }
        for (setting, value) in [("nodes of the tree", nodes), ("depth of the tree", depth)] {
            if value == 0 || value > LIMIT {
                return Err(Error::Setting {
                    setting,
                    expected: "from 1 to 4096",
                    got: value.to_string(),
                });
            }
        }
        // A later child is never accepted more often than an earlier one, but noise in the
        // measurement may suggest it.
        let mut rates = acceptance.to_vec();
        for j in 1..rates.len() {
            rates[j] = rates[j].min(rates[j - 1]);
        }
        let mut open =
            BinaryHeap::from([Candidate { reach: rates[0], parent: 0, child: 0, depth: 1 }]);
        let mut reach = vec![1.0];
        let mut parents = Vec::with_capacity(nodes);
        while parents.len() < nodes {
            // Unreachable positions are not worth a node.
            let Some(best) = open.pop().filter(|best| best.reach > 0.0 || parents.is_empty())
            else {
                break;
            };
            parents.push(best.parent);
            reach.push(best.reach);
            if let Some(rate) = rates.get(best.child + 1) {
                let reach = reach[best.parent] * rate;
                open.push(Candidate { reach, child: best.child + 1, ..best });
            }
            if best.depth < depth {
                let reach = best.reach * rates[0];
                open.push(Candidate {
                    reach,
                    parent: parents.len(),
                    child: 0,
                    depth: best.depth + 1,
                });
            }
        }
        Self::from_parents(&parents)
    }

    /// Number of positions, the root included.
    #[allow(clippy::len_without_is_empty)] // it is never empty
    pub fn len(&self) -> usize {
        self.children.len()
    }

    /// Tokens from the root to the deepest position.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The children of a position, in the order in which they are drawn.
    pub fn children(&self, position: usize) -> &[usize] {
        &self.children[position]
    }

    /// Expected tokens emitted per pass if the acceptances hold everywhere: Σ over positions, the
    /// root included, of the probability of reaching them. Children beyond the list are never
    /// accepted.
    pub fn expected_tokens(&self, acceptance: &[f64]) -> f64 {
        let mut reach = vec![0.0; self.len()];
        reach[0] = 1.0;
        for position in 0..self.len() {
            for (&child, rate) in self.children[position].iter().zip(acceptance) {
                reach[child] = reach[position] * rate;
            }
        }
        reach.iter().sum()
    }

    /// The parent of each position except the root.
    pub fn parents(&self) -> Vec<usize> {
        let mut parents = vec![0; self.len() - 1];
        for (parent, children) in self.children.iter().enumerate() {
            children.iter().for_each(|&child| parents[child - 1] = parent);
        }
        parents
    }
}

/// A position that may be added next.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    reach: f64,
    parent: usize,
    child: usize,
    depth: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_position = (other.parent, other.child).cmp(&(self.parent, self.child));
        self.reach.total_cmp(&other.reach).then(by_position)
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's dynamic programme: the best value of a subtree of each size and depth.
    fn programme(acceptance: &[f64], nodes: usize, depth: usize) -> f64 {
        // below[d][n]: the maximum that n nodes can add below a node that is d levels above the
        // lowest.
        let mut below = vec![vec![0.0; nodes + 1]];
        for d in 1..=depth {
            // best[n]: with the children tried so far.
            let mut best = vec![0.0; nodes + 1];
            for &rate in acceptance.iter().rev() {
                let mut with = best.clone();
                for n in 1..=nodes {
                    for size in 1..=n {
                        // The children after this one are those of `best`, because children are
                        // added in order.
                        let value = rate * (1.0 + below[d - 1][size - 1]) + best[n - size];
                        if value > with[n] {
                            with[n] = value;
                        }
                    }
                }
                best = with;
            }
            below.push(best);
        }
        1.0 + below[depth][nodes]
    }

    #[test]
    fn heap_finds_the_same_optimum_as_dynamic_programming() {
        for acceptance in [&[0.6, 0.2, 0.1][..], &[0.9, 0.05], &[0.3, 0.3, 0.3], &[0.5]] {
            for nodes in 1..=12 {
                for depth in 1..=5 {
                    let topology = Topology::sequoia(acceptance, nodes, depth).unwrap();
                    let (got, expected) =
                        (topology.expected_tokens(acceptance), programme(acceptance, nodes, depth));
                    assert!(
                        (got - expected).abs() < 1e-12,
                        "{acceptance:?} {nodes} {depth}: {got} {expected}"
                    );
                    assert!(topology.depth() <= depth && topology.len() <= nodes + 1);
                }
            }
        }
    }

    #[test]
    fn rejects_invalid_parents_acceptances_and_sizes() {
        assert!(Topology::from_parents(&[]).is_err());
        assert!(Topology::from_parents(&[0, 2]).is_err());
        assert!(Topology::sequoia(&[0.7, 0.7], 3, 3).is_err());
        assert!(Topology::sequoia(&[f64::NAN], 3, 3).is_err());
        assert!(Topology::sequoia(&[0.5], 0, 3).is_err());
    }
}
