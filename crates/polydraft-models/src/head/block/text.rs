//! One sequence of a block head.
//!
//! Slot i of the cache holds what the head made of the target's states of token i. The last token
//! has no such states yet: with it a block begins, whose slots follow the context's and are written
//! anew each time.

use polydraft::{DraftTree, Token};

use super::link::Level;
use super::net::{Net, Work};
use crate::cache::Cache;
use crate::error::Result;

/// Levels that the output matrix makes logits of at once. A product of four rows takes 1.4 times as
/// long as one of a single row (`bench model`), and trees on CPUs are two to four levels deep.
const LEVELS: usize = 4;

#[derive(Debug)]
pub(super) struct Text {
    tokens: Vec<Token>,
    /// Of how many tokens the cache holds something.
    taken: usize,
    /// The target's states of the tokens after these, `[tokens, features]`.
    features: Vec<f32>,
    /// Of how many tokens the target's states are known.
    told: usize,
    /// What the block's positions came to, `[levels, hidden]`, if it is computed.
    states: Option<Vec<f32>>,
    /// Those that logits were made of.
    pub levels: Vec<Level>,
    /// Of each node of the tree that is scored its level, and the logits that are its own.
    nodes: Vec<(usize, Option<Vec<f32>>)>,
    cache: Cache,
}

impl Text {
    pub fn new(cache: Cache) -> Self {
        Self {
            tokens: Vec::new(),
            taken: 0,
            features: Vec::new(),
            told: 0,
            states: None,
            levels: Vec::new(),
            nodes: Vec::new(),
            cache,
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn told(&self) -> usize {
        self.told
    }

    /// Tokens whose states are known and not taken into the cache.
    pub fn untaken(&self) -> usize {
        self.told - self.taken
    }

    /// Whether there is something to begin with: the states of all tokens but the last.
    pub fn is_ready(&self) -> bool {
        !self.tokens.is_empty() && self.told + 1 == self.tokens.len()
    }

    /// Whether the block is to be computed.
    pub fn wants_block(&self) -> bool {
        self.is_ready() && self.states.is_none()
    }

    fn forget_block(&mut self) {
        self.states = None;
        self.levels.clear();
        self.nodes.clear();
    }

    pub fn extend(&mut self, tokens: impl IntoIterator<Item = Token>) {
        let before = self.tokens.len();
        self.tokens.extend(tokens);
        // Without new tokens the block is what it was; the tree is another.
        match self.tokens.len() == before {
            true => self.nodes.clear(),
            false => self.forget_block(),
        }
    }

    /// Takes back all but the first `length` tokens; `width` is that of a token's states.
    pub fn truncate(&mut self, length: usize, width: usize) {
        if length >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(length);
        self.forget_block();
        // The states of the last token are the target's to say anew: it may have been committed as
        // the last of a path.
        self.told = self.told.min(length.saturating_sub(1));
        self.taken = self.taken.min(self.told);
        self.features.truncate(self.untaken() * width);
    }

    /// States of as many more tokens as there are rows of `width`.
    pub fn tell(&mut self, features: &[f32], width: usize) {
        self.features.extend_from_slice(features);
        self.told += features.len() / width;
    }

    /// What a pass does that takes states of at most so many tokens into the cache.
    pub fn work(&mut self, width: usize, most: usize, block: bool) -> Work<'_> {
        let states = self.untaken().min(most);
        let is_whole = states == self.untaken() && self.is_ready();
        Work {
            start: self.taken,
            states,
            features: &self.features[..states * width],
            anchor: self.tokens.last().copied().filter(|_| block && is_whole),
            cache: &mut self.cache,
        }
    }

    /// Takes note of so many tokens in the cache; whether there are no more to take.
    pub fn took(&mut self, states: usize, width: usize) -> bool {
        self.features.drain(..states * width);
        self.taken += states;
        self.untaken() == 0
    }

    /// Takes note of a block.
    pub fn found(&mut self, states: Vec<f32>) {
        self.states = Some(states);
    }

    /// Appends the states of the levels that are to get logits next, for the nodes of a tree; how
    /// many levels that is.
    pub fn add_states(&self, net: &Net, tree: &DraftTree, states: &mut Vec<f32>) -> usize {
        let Some(own) = &self.states else { return 0 };
        let new = self.nodes.len()..tree.len();
        let wanted = new.map(|node| tree.depth(node) + 1).max().unwrap_or(0).min(net.levels());
        let from = self.levels.len();
        let to = if from < wanted { net.levels().min(from + LEVELS) } else { from };
        states.extend_from_slice(&own[from * net.width()..to * net.width()]);
        to - from
    }

    /// Makes the logits of all nodes of a tree that have none.
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
        let mut own = net.linked(&self.levels, &linked)?.into_iter();
        for (depth, _) in linked {
            let logits = if depth < self.levels.len() { own.next().flatten() } else { None };
            self.nodes.push((depth, logits));
        }
        Ok(())
    }

    /// The logits of a node and the tokens that they are of, if there are such; `all` are those
    /// that the head can draft.
    pub fn logits<'a>(&'a self, node: usize, all: &'a [Token]) -> Option<(&'a [Token], &'a [f32])> {
        if !self.is_ready() {
            return None;
        }
        assert!(node < self.nodes.len(), "node {node} was not scored");
        let (level, own) = &self.nodes[node];
        let level = self.levels.get(*level)?;
        let tokens = level.candidates.as_deref().unwrap_or(all);
        Some((tokens, own.as_deref().unwrap_or(&level.logits)))
    }
}
