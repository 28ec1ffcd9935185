//! An open sequence: its tokens, and the number of computed ones.

use polydraft::{NodeId, Token};
use polydraft_engine::prefix::common_prefix;

use super::branches::Branches;
use crate::native::Id;

/// A sequence and its draft tree. Token i is at position i, a node at depth d at position `tokens -
/// 1 + d`.
#[derive(Debug)]
pub(super) struct OpenSequence {
    pub tokens: Vec<Token>,
    /// Tokens in the cache under `id`, from the first on, without those of a tree. After a
    /// truncation they may be more than the sequence has, or others.
    pub cached: Vec<Token>,
    /// Number of the sequence's tokens that are in the cache.
    pub computed: usize,
    /// Id of the sequence in the cache.
    pub id: Id,
    /// Number of scored nodes of the tree, including the root.
    pub scored: usize,
    /// Logits of the scored nodes, `[scored, vocabulary]`.
    pub logits: Vec<f32>,
    /// Captured hidden states of the sequence's tokens, `[captured, layers · hidden]`, possibly
    /// followed by those of truncated tokens that are still in the cache.
    pub hidden_states: Vec<f32>,
    /// Number of tokens whose hidden states are captured.
    pub captured: usize,
    /// Captured hidden states of the scored nodes.
    pub node_hidden_states: Vec<f32>,
    /// Scored nodes in the cache; empty after path-by-path scoring.
    pub branches: Branches,
}

/// Writes row `number` of a table, which grows as needed.
pub(super) fn put(table: &mut Vec<f32>, number: usize, row: &[f32]) {
    let end = (number + 1) * row.len();
    if table.len() < end {
        table.resize(end, 0.0);
    }
    table[end - row.len()..end].copy_from_slice(row);
}

impl OpenSequence {
    pub fn new(id: Id) -> Self {
        Self {
            tokens: Vec::new(),
            cached: Vec::new(),
            computed: 0,
            id,
            scored: 0,
            logits: Vec::new(),
            hidden_states: Vec::new(),
            captured: 0,
            node_hidden_states: Vec::new(),
            branches: Branches::default(),
        }
    }

    /// Appends tokens to a sequence that has no tree.
    pub fn extend(&mut self, tokens: &[Token]) {
        if self.computed == self.tokens.len() {
            self.computed += common_prefix(&self.cached[self.computed..], tokens);
            // The hidden states of cached tokens were captured too.
            self.captured = self.captured.max(self.computed);
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Shortens a sequence that has no tree.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.computed = self.computed.min(length);
        self.captured = self.captured.min(length);
    }

    /// Stores the hidden states of a token, `[layers · hidden]`.
    pub fn set_hidden_states(&mut self, position: usize, hidden_states: &[f32]) {
        put(&mut self.hidden_states, position, hidden_states);
        if position == self.captured {
            self.captured += 1;
        }
    }

    /// Stores the hidden states of a path's nodes, which become tokens from `position` on.
    pub fn commit_hidden_states(&mut self, path: &[NodeId], position: usize, width: usize) {
        let scored = self.scored;
        for (depth, &node) in path.iter().take_while(|node| **node < scored).enumerate() {
            let hidden_states = self.node_hidden_states[node * width..(node + 1) * width].to_vec();
            self.set_hidden_states(position + depth, &hidden_states);
        }
    }

    /// Logits of a scored node.
    pub fn logits(&self, node: NodeId, vocabulary: usize) -> &[f32] {
        assert!(node < self.scored, "node {node} was not scored");
        &self.logits[node * vocabulary..(node + 1) * vocabulary]
    }
}
