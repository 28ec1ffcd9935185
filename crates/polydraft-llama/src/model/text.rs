//! One sequence: its tokens, and how far they are computed.

use polydraft::{NodeId, Token};
use polydraft_engine::prefix::common_prefix;

use super::branches::Branches;
use crate::native::Id;

/// A sequence and, after it, a draft tree. Token i is at position i, a node at depth d at position
/// `tokens - 1 + d`.
#[derive(Debug)]
pub(super) struct Text {
    pub tokens: Vec<Token>,
    /// The tokens that the cache holds under `id`, from the first on; those of a tree apart. They
    /// may be more than the sequence has, and others, where some were taken back.
    pub held: Vec<Token>,
    /// How many tokens of the sequence are in the cache.
    pub computed: usize,
    pub id: Id,
    /// How many nodes of the tree are scored, the root included.
    pub scored: usize,
    /// `[scored, vocabulary]`.
    pub logits: Vec<f32>,
    /// With hidden-state capture, the hidden states of its tokens: `[stated, watched · hidden]`,
    /// and perhaps of tokens that were taken back and are still in the cache.
    pub states: Vec<f32>,
    /// Of how many tokens they are known.
    pub stated: usize,
    /// The same of the scored nodes.
    pub node_states: Vec<f32>,
    /// Where the scored nodes are in the cache; none of them after they were scored path by path.
    pub branches: Branches,
}

/// Writes row number `number` of a table that grows.
pub(super) fn put(table: &mut Vec<f32>, number: usize, row: &[f32]) {
    let end = (number + 1) * row.len();
    if table.len() < end {
        table.resize(end, 0.0);
    }
    table[end - row.len()..end].copy_from_slice(row);
}

impl Text {
    pub fn new(id: Id) -> Self {
        Self {
            tokens: Vec::new(),
            held: Vec::new(),
            computed: 0,
            id,
            scored: 0,
            logits: Vec::new(),
            states: Vec::new(),
            stated: 0,
            node_states: Vec::new(),
            branches: Branches::default(),
        }
    }

    /// Appends tokens to a sequence that has no tree.
    pub fn extend(&mut self, tokens: &[Token]) {
        if self.computed == self.tokens.len() {
            self.computed += common_prefix(&self.held[self.computed..], tokens);
            // The hidden states of cached tokens were captured too.
            self.stated = self.stated.max(self.computed);
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Shortens a sequence that has no tree.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.computed = self.computed.min(length);
        self.stated = self.stated.min(length);
    }

    /// Takes in the states of a token, `[watched · hidden]`.
    pub fn state(&mut self, place: usize, states: &[f32]) {
        put(&mut self.states, place, states);
        if place == self.stated {
            self.stated += 1;
        }
    }

    /// The nodes of a path become tokens from position `place` on: their states go with them.
    pub fn commit_states(&mut self, path: &[NodeId], place: usize, width: usize) {
        let scored = self.scored;
        for (depth, &node) in path.iter().take_while(|node| **node < scored).enumerate() {
            let states = self.node_states[node * width..(node + 1) * width].to_vec();
            self.state(place + depth, &states);
        }
    }

    pub fn logits(&self, node: NodeId, vocabulary: usize) -> &[f32] {
        assert!(node < self.scored, "node {node} was not scored");
        &self.logits[node * vocabulary..(node + 1) * vocabulary]
    }
}
