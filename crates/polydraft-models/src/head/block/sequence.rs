//! State of one sequence of a block head.
//!
//! Slot i of the cache has keys and values from the target's states of token i. The last token has
//! no such states yet. It begins the block, whose slots follow the context's and are overwritten
//! each time.

use polydraft::{DraftTree, Token};

use super::link::Level;
use super::net::{Net, Work};
use crate::cache::Cache;
use crate::error::Result;

/// Number of levels whose logits are computed in one product. A product of four rows takes 1.4
/// times as long as one of a single row (`bench model`), and trees on CPUs are two to four levels
/// deep.
const LEVELS_PER_PRODUCT: usize = 4;

#[derive(Debug)]
pub(super) struct SequenceState {
    tokens: Vec<Token>,
    /// Number of tokens in the cache.
    written: usize,
    /// Target states of the tokens after these, `[tokens, features]`.
    features: Vec<f32>,
    /// Number of tokens whose target states are known.
    received: usize,
    /// Output states of the block, `[levels, hidden]`, if it is computed.
    states: Option<Vec<f32>>,
    /// Levels with logits.
    pub levels: Vec<Level>,
    /// Level of each scored node of the tree, and the node's logits if they differ from the
    /// level's.
    nodes: Vec<(usize, Option<Vec<f32>>)>,
    cache: Cache,
}

impl SequenceState {
    pub fn new(cache: Cache) -> Self {
        Self {
            tokens: Vec::new(),
            written: 0,
            features: Vec::new(),
            received: 0,
            states: None,
            levels: Vec::new(),
            nodes: Vec::new(),
            cache,
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn received(&self) -> usize {
        self.received
    }

    /// Number of tokens whose states are known but not in the cache.
    pub fn unwritten(&self) -> usize {
        self.received - self.written
    }

    /// Whether a block can be computed: the states of all tokens but the last are known.
    pub fn is_ready(&self) -> bool {
        !self.tokens.is_empty() && self.received + 1 == self.tokens.len()
    }

    /// Whether the block must be computed.
    pub fn needs_block(&self) -> bool {
        self.is_ready() && self.states.is_none()
    }

    fn clear_block(&mut self) {
        self.states = None;
        self.levels.clear();
        self.nodes.clear();
    }

    pub fn extend(&mut self, tokens: impl IntoIterator<Item = Token>) {
        let before = self.tokens.len();
        self.tokens.extend(tokens);
        // Without new tokens only the tree changes.
        match self.tokens.len() == before {
            true => self.nodes.clear(),
            false => self.clear_block(),
        }
    }

    /// Removes all but the first `length` tokens; `width` is the width of a token's target states.
    pub fn truncate(&mut self, length: usize, width: usize) {
        if length >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(length);
        self.clear_block();
        // The states of the last token are requested again: the token may have been committed as
        // the last of a path.
        self.received = self.received.min(length.saturating_sub(1));
        self.written = self.written.min(self.received);
        self.features.truncate(self.unwritten() * width);
    }

    /// Appends target states of further tokens, one row of `width` numbers per token.
    pub fn receive(&mut self, features: &[f32], width: usize) {
        self.features.extend_from_slice(features);
        self.received += features.len() / width;
    }

    /// Work of a pass that writes states of at most `max_tokens` tokens to the cache.
    pub fn work(&mut self, width: usize, max_tokens: usize, block: bool) -> Work<'_> {
        let states = self.unwritten().min(max_tokens);
        let is_complete = states == self.unwritten() && self.is_ready();
        Work {
            start: self.written,
            states,
            features: &self.features[..states * width],
            anchor: self.tokens.last().copied().filter(|_| block && is_complete),
            cache: &mut self.cache,
        }
    }

    /// Updates the state after `states` tokens were written to the cache. Returns whether all are.
    pub fn finish_states(&mut self, states: usize, width: usize) -> bool {
        self.features.drain(..states * width);
        self.written += states;
        self.unwritten() == 0
    }

    /// Stores the output states of a block.
    pub fn set_block(&mut self, states: Vec<f32>) {
        self.states = Some(states);
    }

    /// Appends the states of the next levels that need logits for the nodes of a tree. Returns the
    /// number of these levels.
    pub fn add_states(&self, net: &Net, tree: &DraftTree, states: &mut Vec<f32>) -> usize {
        let Some(block) = &self.states else { return 0 };
        let new = self.nodes.len()..tree.len();
        let wanted = new.map(|node| tree.depth(node) + 1).max().unwrap_or(0).min(net.levels());
        let from = self.levels.len();
        let to = if from < wanted { net.levels().min(from + LEVELS_PER_PRODUCT) } else { from };
        states.extend_from_slice(&block[from * net.width()..to * net.width()]);
        to - from
    }

    /// Computes the logits of all nodes of a tree that have none.
    pub fn link(&mut self, net: &Net, tree: &DraftTree) -> Result<()> {
        let linked: Vec<(usize, Token)> = (self.nodes.len()..tree.len())
            .map(|node| {
                let token = match node {
                    DraftTree::ROOT => self.tokens.last().copied().unwrap_or(0),
                    _ => tree.token(node),
                };
                (tree.depth(node), token)
            })
            .collect();
        let mut of_nodes = net.linked(&self.levels, &linked)?.into_iter();
        for (depth, _) in linked {
            let logits = if depth < self.levels.len() { of_nodes.next().flatten() } else { None };
            self.nodes.push((depth, logits));
        }
        Ok(())
    }

    /// Logits of a node and their tokens; `None` below the last level or without a block. `all` are
    /// the tokens of the draft vocabulary.
    pub fn logits<'a>(&'a self, node: usize, all: &'a [Token]) -> Option<(&'a [Token], &'a [f32])> {
        if !self.is_ready() {
            return None;
        }
        assert!(node < self.nodes.len(), "node {node} was not scored");
        let (level, logits) = &self.nodes[node];
        let level = self.levels.get(*level)?;
        let tokens = level.candidates.as_deref().unwrap_or(all);
        Some((tokens, logits.as_deref().unwrap_or(&level.logits)))
    }
}
