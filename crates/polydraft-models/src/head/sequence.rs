//! State of one sequence of a draft head.
//!
//! Position i of the draft head has the target's states of token i, and token i + 1. So T tokens
//! have T − 1 positions. The last position is the root of the tree, in slot T − 2 of the cache;
//! node k of the tree is in slot T − 2 + k. The input states of a node are the output states of its
//! parent: predictions, which are replaced by the target's states once these are known.
//!
//! With several MTP modules each has such a state. Module k has the tokens from number k on, and in
//! place of the target's states the output states of module k − 1: position i of module k − 1 is
//! the state of token k + i. The input states of a node are those of its parent in module k − 1. So
//! only nodes down to depth k have a state in module k, and those at depth k get their logits from
//! it.

use std::ops::Range;

use polydraft::{DraftTree, Token};
use polydraft_kernels::Mask;

use crate::cache::Cache;
use crate::transformer::pass::SequenceTokens;

#[derive(Debug)]
pub(super) struct SequenceState {
    tokens: Vec<Token>,
    /// Number of tokens whose target states are known.
    received: usize,
    /// Target states of the positions from `first` on, `[received - first, features]`: of all
    /// positions that are not computed yet, and of the last one.
    features: Vec<f32>,
    first: usize,
    /// Number of positions that were computed from the target's states.
    computed: usize,
    /// Number of scored nodes of the tree, including the root.
    scored: usize,
    /// `[nodes with logits, draft vocabulary]`, and these nodes, ascending.
    logits: Vec<f32>,
    logit_nodes: Vec<usize>,
    /// Output states, `[scored, hidden]`.
    states: Vec<f32>,
    cache: Cache,
    /// Whether the cache is the target's. Then nothing is computed before the root, and all nodes
    /// attend to the same slots.
    uses_target_cache: bool,
    /// Output states of the positions from `first_output` on, for a further module that reads them.
    outputs: Option<Vec<f32>>,
    first_output: usize,
}

impl SequenceState {
    pub fn new(cache: Cache, uses_target_cache: bool) -> Self {
        Self {
            tokens: Vec::new(),
            received: 0,
            features: Vec::new(),
            first: 0,
            computed: 0,
            scored: 0,
            logits: Vec::new(),
            logit_nodes: Vec::new(),
            states: Vec::new(),
            cache,
            uses_target_cache,
            outputs: None,
            first_output: 0,
        }
    }

    /// Keeps the output states of all positions for a further module.
    pub fn keeping_outputs(self) -> Self {
        Self { outputs: Some(Vec::new()), ..self }
    }

    /// Takes the output states of the positions before `end` that were not taken before,
    /// `[positions, width]`.
    pub fn take_outputs(&mut self, end: usize, width: usize) -> Vec<f32> {
        let Some(outputs) = &mut self.outputs else { return Vec::new() };
        let end = end.min(self.computed).max(self.first_output);
        let taken = outputs.drain(..(end - self.first_output) * width).collect();
        self.first_output = end;
        taken
    }

    /// Output state of a scored node.
    pub fn node_state(&self, node: usize, width: usize) -> Option<&[f32]> {
        self.states.get(node * width..(node + 1) * width)
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn cache_bytes(&self) -> usize {
        if self.uses_target_cache { 0 } else { self.cache.bytes() }
    }

    /// Replaces the cache by a shared one of the target.
    pub fn set_cache(&mut self, cache: Cache) {
        self.cache = cache;
    }

    pub fn received(&self) -> usize {
        self.received
    }

    pub fn extend(&mut self, tokens: impl IntoIterator<Item = Token>) {
        self.tokens.extend(tokens);
        self.scored = 0;
        self.logits.clear();
        self.logit_nodes.clear();
        self.states.clear();
    }

    /// Removes all but the first `length` tokens; `width` is the width of a token's target states.
    pub fn truncate(&mut self, length: usize, width: usize) {
        if length >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(length);
        self.extend([]);
        let received = self.received.min(length.saturating_sub(1));
        if received > self.first {
            self.features.truncate((received - self.first) * width);
            (self.received, self.computed) = (received, self.computed.min(received));
        } else {
            // The states that the root needs are gone: start over with the states of all tokens.
            self.features.clear();
            (self.received, self.first, self.computed) = (0, 0, 0);
        }
    }

    /// Appends target states of further tokens, one row of `width` numbers per token.
    pub fn receive(&mut self, features: &[f32], width: usize) {
        self.features.extend_from_slice(features);
        self.received += features.len() / width;
        if self.uses_target_cache && self.received > 0 {
            let last = self.received - 1;
            self.features.drain(..(last - self.first) * width);
            (self.first, self.computed) = (last, last);
        }
    }

    /// Slot of the root, if there are two tokens or more and the states of all but the last are
    /// known.
    pub fn root(&self) -> Option<usize> {
        (self.tokens.len() >= 2 && self.received + 1 == self.tokens.len())
            .then(|| self.received - 1)
    }

    /// Logits of a scored node.
    pub fn logits(&self, node: usize, width: usize) -> &[f32] {
        let Ok(row) = self.logit_nodes.binary_search(&node) else {
            panic!("node {node} was not scored");
        };
        &self.logits[row * width..(row + 1) * width]
    }

    /// The node in a slot; `None` for positions before the root.
    pub fn node(&self, slot: usize) -> Option<usize> {
        self.root().and_then(|root| slot.checked_sub(root))
    }

    /// Positions before the last one that must be computed, at most `max_tokens`.
    pub fn unprepared(&self, max_tokens: usize) -> Range<usize> {
        let last = self.received.saturating_sub(1);
        let next = self.computed.min(last);
        next..last.min(next.saturating_add(max_tokens))
    }

    /// Slots that can be computed now: positions of the sequence, or nodes whose parents are
    /// scored.
    pub fn ready(&self, tree: &DraftTree) -> Range<usize> {
        let Some(root) = self.root() else { return 0..0 };
        if self.scored == 0 {
            // Includes the root, even if only its logits are missing.
            return self.computed.min(root)..root + 1;
        }
        let nodes = self.scored..tree.len();
        let blocked = nodes.clone().find(|node| tree.parent(*node) >= self.scored);
        root + self.scored..root + blocked.unwrap_or(nodes.end).max(self.scored)
    }

    /// Target states of the positions in `slots`, `[positions, width]`.
    pub fn inputs(&self, slots: &Range<usize>, width: usize) -> &[f32] {
        let (from, to) = (slots.start.min(self.received), slots.end.min(self.received));
        &self.features[(from - self.first) * width..(to - self.first) * width]
    }

    /// Returns the tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Appends the input states of the nodes in `slots`: output states of their parents in
    /// `source`, or zeros for nodes that another module drafts.
    pub fn add_states(
        &self,
        source: Option<&Self>,
        slots: &Range<usize>,
        tree: &DraftTree,
        width: usize,
        states: &mut Vec<f32>,
    ) {
        for slot in slots.start.max(self.received)..slots.end {
            let parent = tree.parent(slot + 1 - self.received);
            match source.and_then(|source| source.node_state(parent, width)) {
                Some(state) => states.extend_from_slice(state),
                None => states.resize(states.len() + width, 0.0),
            }
        }
    }

    /// The part of a pass that computes `slots`.
    pub fn part(&mut self, slots: &Range<usize>, tree: &DraftTree) -> SequenceTokens<'_> {
        let mut tokens = Vec::with_capacity(slots.len());
        let mut masks = Vec::with_capacity(slots.len());
        let root = self.received - 1;
        for slot in slots.clone() {
            if slot <= root {
                tokens.push(self.tokens[slot + 1]);
                masks.push(Mask { context: slot + 1, path: Vec::new() });
            } else if self.uses_target_cache {
                tokens.push(tree.token(slot - root));
                masks.push(Mask { context: root + 1, path: Vec::new() });
            } else {
                let node = slot - root;
                tokens.push(tree.token(node));
                let path = tree.path(node).into_iter().map(|node| root + node).collect();
                masks.push(Mask { context: root + 1, path });
            }
        }
        // Slots from `slots.start` on are overwritten.
        self.computed = self.computed.min(slots.start);
        let from = self.root().unwrap_or(usize::MAX);
        let from = if self.outputs.is_some() { slots.start } else { from };
        let wanted = slots.end.saturating_sub(slots.start.max(from));
        // Draft heads have no recurrent layers, which alone need `committed`.
        SequenceTokens {
            cache: &mut self.cache,
            start: slots.start,
            tokens,
            masks,
            wanted,
            committed: 0,
        }
    }

    /// Updates the state after `slots` were computed, with the output states of the wanted slots,
    /// the nodes with logits, and these logits. `widths` are those of target and output states.
    pub fn finish_slots(
        &mut self,
        slots: &Range<usize>,
        (nodes, logits): (&[usize], &[f32]),
        states: &[f32],
        [width, state_width]: [usize; 2],
    ) {
        let wanted_from = slots.end - states.len() / state_width;
        if let Some(outputs) = &mut self.outputs {
            let end = slots.end.min(self.received);
            if end > slots.start {
                outputs.truncate(slots.start.saturating_sub(self.first_output) * state_width);
                let skipped = self.first_output.saturating_sub(slots.start);
                let rows = skipped.min(end - slots.start)..end - slots.start;
                outputs
                    .extend_from_slice(&states[rows.start * state_width..rows.end * state_width]);
            }
        }
        if slots.start < self.received {
            self.computed = slots.end.min(self.received);
            let first = self.computed.min(self.received - 1).max(self.first);
            self.features.drain(..(first - self.first) * width);
            self.first = first;
        }
        self.logits.extend_from_slice(logits);
        self.logit_nodes.extend_from_slice(nodes);
        if let Some(root) = self.root().filter(|root| slots.end > *root) {
            let skipped = root.saturating_sub(wanted_from);
            self.states.extend_from_slice(&states[skipped * state_width..]);
            self.scored = slots.end - root;
        }
    }
}
