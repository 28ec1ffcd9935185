//! Logits of a sequence's tree, stored in the output of the passes that computed them.
//!
//! Sequences of a pass share its output. In a batch of 32 with a vocabulary of 262,144 tokens,
//! copying the logits of each sequence took a tenth of the single-threaded time.

use std::mem;
use std::sync::Arc;

use polydraft::NodeId;

/// Logits of the scored nodes.
#[derive(Debug, Default)]
pub(super) struct Logits {
    /// Outputs of the passes, in the order of the nodes that they scored.
    passes: Vec<Scored>,
}

#[derive(Debug)]
struct Scored {
    first: NodeId,
    /// `[nodes, vocabulary]`, of all sequences of the pass.
    logits: Arc<Vec<f32>>,
    /// Index of the first logit of node `first`.
    from: usize,
}

impl Logits {
    /// Adds the logits of the nodes from `first` on, which begin at index `from`.
    pub fn add(&mut self, first: NodeId, logits: Arc<Vec<f32>>, from: usize) {
        self.passes.push(Scored { first, logits, from });
    }

    pub fn clear(&mut self) {
        self.passes.clear();
    }

    /// Logits of a scored node.
    pub fn get(&self, node: NodeId, vocabulary: usize) -> &[f32] {
        let pass = self.passes.partition_point(|pass| pass.first <= node) - 1;
        let Scored { first, logits, from } = &self.passes[pass];
        &logits[from + (node - first) * vocabulary..][..vocabulary]
    }
}

/// A buffer is reused only if its capacity is at most this many times the required size.
const MAX_EXCESS: usize = 4;

/// Buffer for logits that is reused from pass to pass, which avoids page faults of new memory.
#[derive(Debug, Default)]
pub(super) struct LogitsBuffer(Arc<Vec<f32>>);

impl LogitsBuffer {
    /// Takes a buffer for `size` logits: the one of the last pass if its capacity fits and no
    /// sequence needs its contents. Sizes are rounded up to powers of two, so that most fit.
    pub fn take(&mut self, size: usize) -> Vec<f32> {
        if size == 0 {
            return Vec::new();
        }
        let size = size.next_power_of_two();
        Arc::into_inner(mem::take(&mut self.0))
            .filter(|buffer| (size..=MAX_EXCESS * size).contains(&buffer.capacity()))
            .unwrap_or_else(|| Vec::with_capacity(size))
    }

    /// Stores the logits of a pass for later reuse, unless they are empty.
    pub fn put(&mut self, logits: Vec<f32>) -> Arc<Vec<f32>> {
        let logits = Arc::new(logits);
        if !logits.is_empty() {
            self.0 = logits.clone();
        }
        logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_nodes_in_the_pass_that_scored_them() {
        let mut logits = Logits::default();
        // The logits of another sequence come first.
        logits.add(0, Arc::new((0..8).map(|i| i as f32).collect()), 2);
        logits.add(3, Arc::new(vec![10.0, 11.0, 12.0, 13.0]), 0);
        let found: Vec<&[f32]> = (0..5).map(|node| logits.get(node, 2)).collect();
        assert_eq!(found, [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [10.0, 11.0], [12.0, 13.0]]);
    }

    #[test]
    fn reuses_a_buffer_that_is_free_and_fits() {
        let mut buffer = LogitsBuffer::default();
        let in_use = buffer.put(vec![0.0; 8]);
        assert!(buffer.take(6).is_empty());
        drop(in_use);
        drop(buffer.put(vec![1.0; 8]));
        // A pass without logits does not change the buffer.
        assert!(buffer.take(0).is_empty());
        drop(buffer.put(Vec::new()));
        assert_eq!(buffer.take(6), [1.0; 8]);
        // The buffer is much too large.
        drop(buffer.put(vec![1.0; 8]));
        assert_eq!(buffer.take(1).capacity(), 1);
    }
}
