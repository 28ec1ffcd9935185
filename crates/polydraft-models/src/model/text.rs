//! One sequence: its tokens, and how far they are computed.

use std::ops::Range;
use std::sync::Arc;

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::prefix::common_prefix;
use polydraft_kernels::Mask;

use super::logits::Logits;
use crate::cache::Cache;
use crate::transformer::pass::Part;

/// A sequence and, after it, a draft tree. Slots of the cache: token i lies in slot i, node i of
/// the tree in slot `tokens - 1 + i`, the root as node 0.
#[derive(Debug)]
pub(super) struct Text {
    tokens: Vec<Token>,
    /// The tokens that the cache holds from slot 0 on. They may be more than the sequence has, and
    /// others, where some were taken back.
    held: Vec<Token>,
    /// How many tokens of the sequence are in the cache.
    computed: usize,
    /// How many nodes of the tree are scored, the root included.
    scored: usize,
    /// Theirs; where none is scored they are not known any more.
    logits: Logits,
    pub cache: Cache,
}

impl Text {
    pub fn new(cache: Cache) -> Self {
        Self {
            tokens: Vec::new(),
            held: Vec::new(),
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

    /// From which token on to compute where the first `most` are to be known.
    pub fn next(&self, most: usize) -> usize {
        self.cache.restart(self.computed.min(most))
    }

    pub fn scored(&self) -> usize {
        self.scored
    }

    /// The tokens in the KV cache.
    pub fn held(&self) -> &[Token] {
        &self.held
    }

    /// What the cache holds.
    pub fn into_held(self) -> (Vec<Token>, Cache) {
        (self.held, self.cache)
    }

    /// Takes another cache, which holds these tokens, into a sequence that has none yet.
    pub fn adopt(&mut self, held: Vec<Token>, cache: Cache) {
        (self.held, self.cache) = (held, cache);
    }

    /// The first of its tokens that are computed, so many, and a cache that holds them.
    pub fn beginning(&self, tokens: usize) -> (Vec<Token>, Cache) {
        (self.held[..tokens].to_vec(), self.cache.share(tokens))
    }

    /// Takes another cache, which holds these tokens, in place of its own, and drops the tree.
    pub fn share_kv_cache(&mut self, held: Vec<Token>, cache: Cache) {
        self.adopt(held, cache);
        self.computed = common_prefix(&self.held, &self.tokens);
        self.scored = 0;
    }

    pub fn extend(&mut self, tokens: &[Token]) {
        if self.computed == self.tokens.len() {
            self.computed += common_prefix(&self.held[self.computed..], tokens);
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
        self.logits.of(node, vocabulary)
    }

    /// The slots that scoring `tree` has still to compute, in a sequence that is not empty.
    pub fn unscored(&self, tree: &DraftTree) -> Range<usize> {
        let root = self.tokens.len() - 1;
        // The root is computed again where its logits are not known.
        let next = if self.scored == 0 { self.next(root) } else { root + self.scored };
        next..(root + tree.len()).max(next)
    }

    /// The tokens of these slots, all of what is before them computed.
    pub fn part(&mut self, slots: Range<usize>, tree: Option<&DraftTree>) -> Part<'_> {
        let length = self.tokens.len();
        if self.scored == 0 {
            self.logits.clear();
        }
        // From here on slots are written over.
        self.held.truncate(slots.start.min(length));
        self.computed = self.computed.min(self.held.len());
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
        // The root's logits are wanted, and those of the nodes after it; of a part without a tree
        // none.
        let wanted = match tree {
            None => 0,
            Some(_) => slots.end.saturating_sub(slots.start.max(length - 1)),
        };
        // The last token's logits are asked for with any tree.
        let settled = slots.end.min(length.saturating_sub(1));
        Part { cache: &mut self.cache, start: slots.start, tokens, masks, wanted, settled }
    }

    /// Takes note of a part that is computed, with where the logits begin that it wanted, if it
    /// wanted any.
    pub fn computed_part(&mut self, slots: Range<usize>, logits: Option<(Arc<Vec<f32>>, usize)>) {
        let length = self.tokens.len();
        if slots.start < length {
            self.held.extend_from_slice(&self.tokens[slots.start..slots.end.min(length)]);
            self.computed = self.held.len();
        }
        if let Some((logits, from)) = logits {
            self.logits.add(self.scored, logits, from);
            self.scored = slots.end + 1 - length;
        }
    }

    /// Commits a path of the tree: its cache stays, the rest of the tree is dropped.
    pub fn commit(&mut self, tree: &DraftTree, path: &[NodeId]) {
        let length = self.tokens.len();
        let scored = path.iter().take_while(|&&node| node < self.scored);
        let slots: Vec<usize> = scored.map(|&node| length - 1 + node).collect();
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        self.scored = 0;
        if !slots.is_empty() {
            self.held.truncate(length);
            self.cache.keep(length, &slots);
            self.held.extend_from_slice(&tokens[..slots.len()]);
        }
        self.extend(&tokens);
    }
}
