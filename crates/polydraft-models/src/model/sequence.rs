//! The state of one sequence: its tokens and how many of them are computed.

use std::ops::Range;
use std::sync::Arc;

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::prefix::common_prefix;
use polydraft_kernels::Mask;

use super::logits::Logits;
use crate::cache::Cache;
use crate::transformer::pass::SequenceTokens;

/// A sequence and the draft tree after it. In the cache token i is in slot i, and node i of the
/// tree in slot `tokens - 1 + i`; the root, node 0, is the last token.
#[derive(Debug)]
pub(super) struct SequenceState {
    tokens: Vec<Token>,
    /// Tokens in the cache, from slot 0 on. After a truncation they can be more than the tokens of
    /// the sequence, and can differ from them.
    cached: Vec<Token>,
    /// Number of leading tokens of the sequence that are in the cache.
    computed: usize,
    /// Number of scored nodes of the tree, including the root.
    scored: usize,
    /// Logits of the scored nodes; outdated if `scored` is 0.
    logits: Logits,
    pub cache: Cache,
}

impl SequenceState {
    pub fn new(cache: Cache) -> Self {
        Self {
            tokens: Vec::new(),
            cached: Vec::new(),
            computed: 0,
            scored: 0,
            logits: Logits::default(),
            cache,
        }
    }

    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Index of the token from which to resume so that the first `max_tokens` tokens are computed.
    pub fn next(&self, max_tokens: usize) -> usize {
        self.cache.resume_point(self.computed.min(max_tokens))
    }

    pub fn scored(&self) -> usize {
        self.scored
    }

    /// Tokens in the KV cache.
    pub fn cached_tokens(&self) -> &[Token] {
        &self.cached
    }

    /// Tokens in the KV cache, and the cache.
    pub fn into_cached(self) -> (Vec<Token>, Cache) {
        (self.cached, self.cache)
    }

    /// Replaces the cache by one with the tokens `cached`, in a sequence without tokens.
    pub fn adopt(&mut self, cached: Vec<Token>, cache: Cache) {
        (self.cached, self.cache) = (cached, cache);
    }

    /// The first `tokens` cached tokens, and a cache of them.
    pub fn share_prefix(&self, tokens: usize) -> (Vec<Token>, Cache) {
        (self.cached[..tokens].to_vec(), self.cache.share(tokens))
    }

    /// Replaces the cache by one with the tokens `cached`, and drops the tree.
    pub fn share_kv_cache(&mut self, cached: Vec<Token>, cache: Cache) {
        self.adopt(cached, cache);
        self.computed = common_prefix(&self.cached, &self.tokens);
        self.scored = 0;
    }

    pub fn extend(&mut self, tokens: &[Token]) {
        if self.computed == self.tokens.len() {
            self.computed += common_prefix(&self.cached[self.computed..], tokens);
        }
        self.tokens.extend_from_slice(tokens);
        self.scored = 0;
    }

    pub fn truncate(&mut self, length: usize) {
        if length < self.tokens.len() {
            self.tokens.truncate(length);
            self.computed = self.computed.min(length);
            self.scored = 0;
        }
    }

    pub fn logits(&self, node: NodeId, vocabulary: usize) -> &[f32] {
        assert!(node < self.scored, "node {node} was not scored");
        self.logits.get(node, vocabulary)
    }

    /// Slots that must be computed to score `tree`, in a sequence that is not empty.
    pub fn unscored(&self, tree: &DraftTree) -> Range<usize> {
        let root = self.tokens.len() - 1;
        // Without its logits the root is computed again.
        let next = if self.scored == 0 { self.next(root) } else { root + self.scored };
        next..(root + tree.len()).max(next)
    }

    /// The part of a pass that computes the given slots; all slots before them are computed.
    pub fn part(&mut self, slots: Range<usize>, tree: Option<&DraftTree>) -> SequenceTokens<'_> {
        let length = self.tokens.len();
        if self.scored == 0 {
            self.logits.clear();
        }
        // Slots from `slots.start` on are overwritten.
        self.cached.truncate(slots.start.min(length));
        self.computed = self.computed.min(self.cached.len());
        let mut tokens = Vec::with_capacity(slots.len());
        let mut masks = Vec::with_capacity(slots.len());
        for slot in slots.clone() {
            match tree {
                Some(tree) if slot >= length => {
                    let node = slot + 1 - length;
                    tokens.push(tree.token(node));
                    let path = tree.path(node).into_iter().map(|node| length - 1 + node).collect();
                    masks.push(Mask { context: length, path });
                }
                _ => {
                    tokens.push(self.tokens[slot]);
                    masks.push(Mask { context: slot + 1, path: Vec::new() });
                }
            }
        }
        // Logits are wanted for the root and the nodes after it; without a tree for none.
        let wanted = match tree {
            None => 0,
            Some(_) => slots.end.saturating_sub(slots.start.max(length - 1)),
        };
        // The last token is not committed: a later tree may score it again as its root.
        let committed = slots.end.min(length.saturating_sub(1));
        SequenceTokens {
            cache: &mut self.cache,
            start: slots.start,
            tokens,
            masks,
            wanted,
            committed,
        }
    }

    /// Updates the state after a part was computed. `logits` contains the logits that the part
    /// requested, if any, and the index of its first one.
    pub fn finish_part(&mut self, slots: Range<usize>, logits: Option<(Arc<Vec<f32>>, usize)>) {
        let length = self.tokens.len();
        if slots.start < length {
            self.cached.extend_from_slice(&self.tokens[slots.start..slots.end.min(length)]);
            self.computed = self.cached.len();
        }
        if let Some((logits, from)) = logits {
            self.logits.add(self.scored, logits, from);
            self.scored = slots.end + 1 - length;
        }
    }

    /// Commits a path of the tree: its slots stay in the cache, the rest of the tree is dropped.
    pub fn commit(&mut self, tree: &DraftTree, path: &[NodeId]) {
        let length = self.tokens.len();
        let scored = path.iter().take_while(|&&node| node < self.scored);
        let slots: Vec<usize> = scored.map(|&node| length - 1 + node).collect();
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        self.scored = 0;
        if !slots.is_empty() {
            self.cached.truncate(length);
            self.cache.compact(length, &slots);
            self.cached.extend_from_slice(&tokens[..slots.len()]);
        }
        self.extend(&tokens);
    }
}
