//! One sequence: its tokens, and how far they are computed.

use polydraft::{NodeId, Token};

use super::branches::Branches;
use crate::native::Id;

/// A text and, behind it, a tree. Token i stands at place i, a node at depth d at place `tokens - 1 + d`.
#[derive(Debug)]
pub(super) struct Text {
    pub tokens: Vec<Token>,
    /// The tokens that the cache holds under `id`, from the first on; those of a tree apart. They may be more than there are
    /// in the text, and others, where some were taken back.
    pub held: Vec<Token>,
    /// How many tokens of the text are among them.
    pub computed: usize,
    pub id: Id,
    /// How many nodes of the tree are scored, the root included.
    pub scored: usize,
    /// `[scored, vocabulary]`.
    pub logits: Vec<f32>,
    /// Where the scored nodes are in the cache; none of them after they were scored path by path.
    pub branches: Branches,
}

/// Of how many tokens two texts begin alike.
pub(super) fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
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
            branches: Branches::default(),
        }
    }

    /// Appends tokens to a text that has no tree.
    pub fn extend(&mut self, tokens: &[Token]) {
        if self.computed == self.tokens.len() {
            self.computed += common(&self.held[self.computed..], tokens);
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Shortens a text that has no tree.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.computed = self.computed.min(length);
    }

    pub fn logits(&self, node: NodeId, vocabulary: usize) -> &[f32] {
        assert!(node < self.scored, "node {node} was not scored");
        &self.logits[node * vocabulary..(node + 1) * vocabulary]
    }
}
