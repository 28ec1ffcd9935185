//! One sequence of a draft head.
//!
//! Position i of the head holds the target's states of token i and token i + 1. So T tokens have
//! T − 1 positions; the last of them is the tree's root, in slot T − 2 of the cache, and node k of
//! the tree is in slot T − 2 + k. Nodes begin with the states that their parents left: predictions,
//! which the target's own states replace once these are known.

use std::ops::Range;

use polydraft::{DraftTree, Token};
use polydraft_kernels::Mask;

use crate::cache::Cache;
use crate::transformer::pass::Part;

#[derive(Debug)]
pub(super) struct Text {
    tokens: Vec<Token>,
    /// Of how many tokens the target's states are known.
    told: usize,
    /// Those of the positions from `first` on, `[told - first, features]`: what is not computed
    /// yet, and the last.
    features: Vec<f32>,
    first: usize,
    /// Positions that were computed from the target's states.
    computed: usize,
    /// Nodes of the tree that are scored, the root included; what was found for them follows.
    scored: usize,
    /// `[scored, draft vocabulary]`
    logits: Vec<f32>,
    /// `[scored, hidden]`
    states: Vec<f32>,
    cache: Cache,
    /// Whether the cache is the target's: then there is nothing to compute before the root, and all
    /// nodes see the same.
    follows: bool,
}

impl Text {
    pub fn new(cache: Cache, follows: bool) -> Self {
        Self {
            tokens: Vec::new(),
            told: 0,
            features: Vec::new(),
            first: 0,
            computed: 0,
            scored: 0,
            logits: Vec::new(),
            states: Vec::new(),
            cache,
            follows,
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn cache_bytes(&self) -> usize {
        if self.follows { 0 } else { self.cache.bytes() }
    }

    /// Takes the target's cache.
    pub fn follow(&mut self, cache: Cache) {
        self.cache = cache;
    }

    pub fn told(&self) -> usize {
        self.told
    }

    pub fn extend(&mut self, tokens: impl IntoIterator<Item = Token>) {
        self.tokens.extend(tokens);
        self.scored = 0;
        self.logits.clear();
        self.states.clear();
    }

    /// Takes back all but the first `length` tokens; `width` is that of a token's states.
    pub fn truncate(&mut self, length: usize, width: usize) {
        if length >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(length);
        self.extend([]);
        let told = self.told.min(length.saturating_sub(1));
        if told > self.first {
            self.features.truncate((told - self.first) * width);
            (self.told, self.computed) = (told, self.computed.min(told));
        } else {
            // The states that the root needs are no longer here: all are asked for anew.
            self.features.clear();
            (self.told, self.first, self.computed) = (0, 0, 0);
        }
    }

    /// States of as many more tokens as there are rows of `width`.
    pub fn tell(&mut self, features: &[f32], width: usize) {
        self.features.extend_from_slice(features);
        self.told += features.len() / width;
        if self.follows && self.told > 0 {
            let last = self.told - 1;
            self.features.drain(..(last - self.first) * width);
            (self.first, self.computed) = (last, last);
        }
    }

    /// The root's slot, if there is something to begin with: two tokens, and the states of all but
    /// the last.
    pub fn root(&self) -> Option<usize> {
        (self.tokens.len() >= 2 && self.told + 1 == self.tokens.len()).then(|| self.told - 1)
    }

    /// The logits of a node.
    pub fn logits(&self, node: usize, width: usize) -> &[f32] {
        assert!(node < self.scored, "node {node} was not scored");
        &self.logits[node * width..(node + 1) * width]
    }

    /// At most `most` positions that are to be computed before the last one.
    pub fn unprepared(&self, most: usize) -> Range<usize> {
        let last = self.told.saturating_sub(1);
        let next = self.computed.min(last);
        next..last.min(next.saturating_add(most))
    }

    /// Slots that can be computed now: positions of the sequence; or nodes whose parents are
    /// scored.
    pub fn ready(&self, tree: &DraftTree) -> Range<usize> {
        let Some(root) = self.root() else { return 0..0 };
        if self.scored == 0 {
            // The root again, where only its logits are missing.
            return self.computed.min(root)..root + 1;
        }
        let nodes = self.scored..tree.len();
        let blocked = nodes.clone().find(|node| tree.parent(*node) >= self.scored);
        root + self.scored..root + blocked.unwrap_or(nodes.end).max(self.scored)
    }

    /// The target's states of positions among `slots`, `[positions, width]`.
    pub fn inputs(&self, slots: &Range<usize>, width: usize) -> &[f32] {
        let (from, to) = (slots.start.min(self.told), slots.end.min(self.told));
        &self.features[(from - self.first) * width..(to - self.first) * width]
    }

    /// The states that nodes among `slots` begin with, appended.
    pub fn add_states(
        &self,
        slots: &Range<usize>,
        tree: &DraftTree,
        width: usize,
        states: &mut Vec<f32>,
    ) {
        for slot in slots.start.max(self.told)..slots.end {
            let parent = tree.parent(slot + 1 - self.told);
            states.extend_from_slice(&self.states[parent * width..(parent + 1) * width]);
        }
    }

    /// Their tokens and what they see.
    pub fn part(&mut self, slots: &Range<usize>, tree: &DraftTree) -> Part<'_> {
        let mut tokens = Vec::with_capacity(slots.len());
        let mut masks = Vec::with_capacity(slots.len());
        let root = self.told - 1;
        for slot in slots.clone() {
            if slot <= root {
                tokens.push(self.tokens[slot + 1]);
                masks.push(Mask { context: slot + 1, path: Vec::new() });
            } else if self.follows {
                tokens.push(tree.token(slot - root));
                masks.push(Mask { context: root + 1, path: Vec::new() });
            } else {
                let node = slot - root;
                tokens.push(tree.token(node));
                let path = tree.path(node).into_iter().map(|node| root + node).collect();
                masks.push(Mask { context: root + 1, path });
            }
        }
        // Whatever stands in these slots is no longer what was computed before.
        self.computed = self.computed.min(slots.start);
        let from = self.root().unwrap_or(usize::MAX);
        let wanted = slots.end.saturating_sub(slots.start.max(from));
        // No layer of a head is recurrent.
        Part { cache: &mut self.cache, start: slots.start, tokens, masks, wanted, settled: 0 }
    }

    /// Takes note of slots that are computed, with what was found for those that wanted it.
    pub fn computed(&mut self, slots: &Range<usize>, logits: &[f32], states: &[f32], width: usize) {
        if slots.start < self.told {
            self.computed = slots.end.min(self.told);
            let kept = self.computed.min(self.told - 1).max(self.first);
            self.features.drain(..(kept - self.first) * width);
            self.first = kept;
        }
        if !logits.is_empty() {
            self.logits.extend_from_slice(logits);
            self.states.extend_from_slice(states);
            self.scored = slots.end + 1 - self.told;
        }
    }
}
