//! Maximum flow and minimum cut.
//!
//! Problem: the largest flow from a source to a sink, and a cut of that size.
//! Source: Dinic 1970: blocking flows in level graphs.
//! Complexity: O(nodes²·edges) in the worst case; on the bipartite networks here, a few phases that
//! are about linear in the edges.
//! Deviations: (1) capacities are floating-point numbers. A path is filled by exactly its smallest
//! residue, which leaves exactly 0, so rounding keeps no edge open and each phase ends. The number
//! of phases is finite because distances grow; (2) depth-first search without recursion.

use crate::program::Deadline;
use polydraft::Result;

/// A network whose edges come in pairs: edge 2i and its reverse 2i + 1.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    nodes: usize,
    to: Vec<u32>,
    /// Residual capacity of each edge.
    residue: Vec<f64>,
}

/// Level of nodes that the source does not reach.
const UNREACHED: u32 = u32::MAX;

impl Network {
    /// Creates a network without edges, with capacity for `edges` edges.
    pub fn new(nodes: usize, edges: usize) -> Self {
        Self { nodes, to: Vec::with_capacity(2 * edges), residue: Vec::with_capacity(2 * edges) }
    }

    /// Adds an edge with a capacity in each direction, and returns its index.
    pub fn edge(&mut self, from: usize, to: usize, capacity: f64, backwards: f64) -> usize {
        self.to.extend([to as u32, from as u32]);
        self.residue.extend([capacity, backwards]);
        self.to.len() - 2
    }

    /// Returns the flow through an edge without backward capacity.
    pub fn flow(&self, edge: usize) -> f64 {
        self.residue[edge + 1]
    }

    /// Computes a maximum flow. Returns which nodes are on the source's side of a minimum cut.
    pub fn fill(
        &mut self,
        source: usize,
        sink: usize,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Vec<bool>> {
        let (starts, edges) = self.leaving();
        let mut levels = vec![UNREACHED; self.nodes];
        let mut queue = Vec::with_capacity(self.nodes);
        let mut next = Vec::with_capacity(self.nodes);
        let mut path: Vec<u32> = Vec::new();
        loop {
            levels.fill(UNREACHED);
            levels[source] = 0;
            queue.clear();
            queue.push(source as u32);
            let mut head = 0;
            while head < queue.len() {
                let node = queue[head] as usize;
                head += 1;
                for &edge in &edges[starts[node] as usize..starts[node + 1] as usize] {
                    let to = self.to[edge as usize] as usize;
                    if self.residue[edge as usize] > 0.0 && levels[to] == UNREACHED {
                        levels[to] = levels[node] + 1;
                        queue.push(to as u32);
                    }
                }
            }
            if levels[sink] == UNREACHED {
                return Ok(levels.into_iter().map(|level| level != UNREACHED).collect());
            }
            next.clear();
            next.extend_from_slice(&starts[..self.nodes]);
            path.clear();
            let mut node = source;
            let mut filled = 0_u32;
            loop {
                if node == sink {
                    filled += 1;
                    if filled.is_multiple_of(1024) && deadline.is_over() {
                        return Err(deadline.error(operation));
                    }
                    node = self.augment(&mut path);
                    continue;
                }
                let end = starts[node + 1];
                while next[node] < end {
                    let edge = edges[next[node] as usize] as usize;
                    if self.residue[edge] > 0.0
                        && levels[self.to[edge] as usize] == levels[node] + 1
                    {
                        break;
                    }
                    next[node] += 1;
                }
                if next[node] < end {
                    let edge = edges[next[node] as usize];
                    path.push(edge);
                    node = self.to[edge as usize] as usize;
                } else if let Some(edge) = path.pop() {
                    // A dead end: the edge is not used again in this phase.
                    node = self.to[edge as usize ^ 1] as usize;
                    next[node] += 1;
                } else {
                    break;
                }
            }
            if deadline.is_over() {
                return Err(deadline.error(operation));
            }
        }
    }

    /// Fills a path by its smallest residue, and shortens it to end before the first full edge.
    fn augment(&mut self, path: &mut Vec<u32>) -> usize {
        let amount =
            path.iter().map(|edge| self.residue[*edge as usize]).fold(f64::INFINITY, f64::min);
        let mut full = 0;
        for (index, &edge) in path.iter().enumerate().rev() {
            let edge = edge as usize;
            self.residue[edge] -= amount;
            self.residue[edge ^ 1] += amount;
            if self.residue[edge] <= 0.0 {
                full = index;
            }
        }
        let node = self.to[path[full] as usize ^ 1] as usize;
        path.truncate(full);
        node
    }

    /// Returns the edges that leave each node: `edges[starts[node]..starts[node + 1]]`.
    fn leaving(&self) -> (Vec<u32>, Vec<u32>) {
        let mut starts = vec![0_u32; self.nodes + 1];
        let from = |edge: usize| self.to[edge ^ 1] as usize;
        (0..self.to.len()).for_each(|edge| starts[from(edge) + 1] += 1);
        for node in 0..self.nodes {
            starts[node + 1] += starts[node];
        }
        let mut location = starts.clone();
        let mut edges = vec![0; self.to.len()];
        for edge in 0..self.to.len() {
            let node = from(edge);
            edges[location[node] as usize] = edge as u32;
            location[node] += 1;
        }
        (starts, edges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the minimum cut of a random network, by enumeration, with the flow.
    #[test]
    fn maximum_flow_equals_minimum_cut() {
        use rand::{Rng, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        for round in 0..400 {
            let nodes = 2 + round % 6;
            let mut edges = Vec::new();
            for from in 0..nodes {
                for to in (0..nodes).filter(|to| *to != from) {
                    let random = rng.next_u32();
                    // Ties, zeros and capacities of very different sizes.
                    let size = [1.0, 0.5, 1e-9, f64::from(random) / 4e9][random as usize % 4];
                    if rng.next_u32() % 3 > 0 {
                        edges.push((from, to, size));
                    }
                }
            }
            let least = (0..1_u32 << nodes)
                .filter(|side| side & 1 == 1 && side >> (nodes - 1) & 1 == 0)
                .map(|side| {
                    let across = |(from, to, _): &&(usize, usize, f64)| {
                        side >> from & 1 == 1 && side >> to & 1 == 0
                    };
                    edges.iter().filter(across).map(|edge| edge.2).sum::<f64>()
                })
                .fold(f64::INFINITY, f64::min);
            let mut network = Network::new(nodes, edges.len());
            let numbers: Vec<_> =
                edges.iter().map(|&(a, b, size)| network.edge(a, b, size, 0.0)).collect();
            let side = network.fill(0, nodes - 1, "flow", Deadline::after(f64::INFINITY)).unwrap();
            let through = |wanted: fn(&(usize, usize, f64), usize) -> bool| -> f64 {
                let chosen = edges.iter().zip(&numbers).filter(|(edge, _)| wanted(edge, nodes - 1));
                chosen.map(|(_, number)| network.flow(*number)).sum()
            };
            let arrived =
                through(|edge, sink| edge.1 == sink) - through(|edge, sink| edge.0 == sink);
            assert!((arrived - least).abs() < 1e-15, "{arrived} {least}");
            let cut: f64 =
                edges.iter().filter(|(a, b, _)| side[*a] && !side[*b]).map(|edge| edge.2).sum();
            assert!((cut - least).abs() < 1e-15, "{cut} {least}");
        }
    }
}
