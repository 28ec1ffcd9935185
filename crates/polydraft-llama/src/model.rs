//! Models on llama.cpp with many sequences: implements the engine's model traits.
//!
//! All sequences share one KV cache, in which each token carries the ids of the sequences that it
//! belongs to. A sequence has one id; while a tree follows it, each leaf has an id too: the first
//! child of a node takes the node's id, the other children get new ones, which share the common
//! prefix. So
//! 1. a tree is scored in one pass: a node's ids are those of the leaves below it, and a token
//!    attends to the tokens that carry its id;
//! 2. committing a path keeps its leaf's id, which becomes the sequence's own, and releases the
//!    others;
//! 3. where ids run out, or where a model has a recurrent state that cannot be rolled back
//!    (recurrent and hybrid models), each path of a tree is scored under an id of its own, with a
//!    copy of the state, and nothing of it stays in the cache: the committed path is computed once
//!    more with the next tree. A pass scores as many paths as there are free ids, at least one.

mod branches;
mod ids;
mod open_sequence;
mod pass;

use std::ops::Range;
use std::path::Path;

use polydraft::{DraftTree, NodeId, Token};
use polydraft_engine::model::{no_hidden_states, too_many_sequences};
use polydraft_engine::prefix::{Cached, PrefixCache, Reuse, Source, common_prefix};
use polydraft_engine::{
    Error as EngineError, HiddenState, HiddenStates, Model, ModelInfo, Result, Sequence, Sequences,
    Slots, Vocabulary,
};

use crate::native::{Batch, Context, Id, Weights};
use crate::{Error, LlamaOptions};
use ids::Ids;
use open_sequence::OpenSequence;
use pass::{Row, Work};

/// Maximum number of ids for sequences and the leaves of their trees: llama.cpp supports 256, and
/// each costs a vector of logits.
const MAX_IDS: usize = 64;
/// Maximum number of ids for models with a recurrent state, which is large and separate for each
/// id.
const MAX_RECURRENT_IDS: usize = 8;
/// Maximum number of closed sequences that stay cached, for sequences with the same prefix.
const MAX_CLOSED: usize = 8;

/// Architectures whose hidden states llama.cpp can capture, among those that `polydraft-models`
/// reads too; for others llama.cpp aborts.
const CAPTURABLE: [&str; 2] = ["llama", "qwen3"];

/// Cached state of a closed sequence.
#[derive(Debug)]
struct ClosedSequence {
    id: Id,
    hidden_states: Vec<f32>,
}

/// Model on llama.cpp with its open sequences.
#[derive(Debug)]
pub struct LlamaModel {
    info: ModelInfo,
    context: Context,
    sequences: Slots<OpenSequence>,
    closed: PrefixCache<ClosedSequence>,
    max_closed: usize,
    ids: Ids,
    /// Id reserved for path-by-path scoring when no other is free.
    spare: Id,
    /// Whether the model has a recurrent state, which cannot be rolled back.
    has_state: bool,
    /// Width of the sliding window, if some layers have one.
    window: Option<usize>,
    batch: Batch,
    /// Tokens of the batch: sequence, position and role.
    rows: Vec<(Sequence, usize, Row)>,
    /// Whether llama.cpp can capture the model's hidden states.
    can_capture: bool,
    /// Number of captured layers.
    captured_layers: usize,
}

impl LlamaModel {
    pub(crate) fn new(
        path: &Path,
        name: String,
        vocabulary: Vocabulary,
        architecture: &str,
        weights: Weights,
        options: &LlamaOptions,
    ) -> crate::Result<Self> {
        let trained = weights.trained_context();
        let usual = trained.min(LlamaOptions::USUAL_CONTEXT as usize);
        let context = options.context.map_or(usual, |tokens| tokens as usize);
        if context == 0 || context > trained {
            let expected = format!("1 to {trained} tokens, for which the model was trained");
            return Err(Error::Setting { setting: "context", expected, got: context.to_string() });
        }
        let default_cells = context.saturating_add(LlamaOptions::SPARE as usize);
        let cells = options.cells.map_or(default_cells, |cells| cells as usize);
        if cells < context {
            let expected = format!("capacity for at least one sequence of {context} tokens");
            return Err(Error::Setting {
                setting: "cache",
                expected,
                got: format!("{cells} tokens"),
            });
        }
        let (has_state, window) = (weights.has_state(), weights.window());
        let (ids, max_closed, reuse) = match has_state {
            true => (MAX_RECURRENT_IDS, 1, Reuse::FullOnly),
            false => (MAX_IDS, MAX_CLOSED, Reuse::AnyPrefix),
        };
        let llama_context = Context::new(weights, path, cells, ids, options)?;
        let sequences = ids / 2;
        let can_capture = CAPTURABLE.contains(&architecture);
        let hidden = can_capture.then(|| llama_context.weights().hidden());
        let info = ModelInfo {
            name,
            vocabulary,
            context,
            hidden,
            accepts_empty_context: false,
            max_sequences: sequences,
        };
        Ok(Self {
            info,
            context: llama_context,
            sequences: Slots::default(),
            closed: PrefixCache::new(reuse),
            max_closed,
            ids: Ids::new(ids - 1),
            spare: ids as Id - 1,
            has_state,
            window,
            batch: Batch::default(),
            rows: Vec::new(),
            can_capture,
            captured_layers: 0,
        })
    }

    /// Capacity of the cache in tokens, for all sequences.
    pub fn cells(&self) -> usize {
        self.context.cells()
    }

    /// Number of computed tokens of a sequence.
    pub fn computed(&self, sequence: Sequence) -> usize {
        self.open_sequence(sequence).computed
    }

    /// Whether trees are scored path by path, because the model has a recurrent state.
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// Drops the cache of closed sequences.
    pub fn forget_closed(&mut self) {
        while self.evict() {}
    }

    /// Limits the ids for the leaves of trees and for cached closed sequences to `count`; with 0,
    /// trees are scored path by path. For tests that compare both methods.
    #[doc(hidden)]
    pub fn limit_ids(&mut self, count: usize) {
        self.forget_closed();
        self.ids.limit(count);
    }

    /// Captured numbers per token.
    fn hidden_state_width(&self) -> usize {
        self.captured_layers * self.context.weights().hidden()
    }

    fn open_sequence(&self, sequence: Sequence) -> &OpenSequence {
        &self.sequences[sequence]
    }

    fn open_sequence_mut(&mut self, sequence: Sequence) -> &mut OpenSequence {
        &mut self.sequences[sequence]
    }

    fn failed(&self, source: Error) -> EngineError {
        EngineError::Model { model: self.info.name.clone(), source: Box::new(source) }
    }

    /// Checks that a sequence of `tokens` tokens fits the context.
    fn check_context(&self, tokens: usize) -> Result<()> {
        match tokens > self.info.context {
            true => Err(EngineError::PromptTooLong { prompt: tokens, context: self.info.context }),
            false => Ok(()),
        }
    }

    /// Evicts the closed sequence that was cached the longest ago. Returns whether there was one.
    fn evict(&mut self) -> bool {
        let Some(ClosedSequence { id, .. }) = self.closed.evict() else { return false };
        self.release(id);
        true
    }

    /// Removes an id from the cache and frees it.
    fn release(&mut self, id: Id) {
        self.context.remove(id, 0);
        self.ids.release(id);
    }

    /// Takes a free id, evicting closed sequences if necessary.
    fn take_id(&mut self) -> Option<Id> {
        while self.ids.left() == 0 && self.evict() {}
        self.ids.take()
    }

    /// Removes a sequence's tree from the cache.
    fn drop_tree(&mut self, sequence: Sequence) {
        let open = self.open_sequence_mut(sequence);
        let (own, length) = (open.id, open.cached.len());
        open.scored = 0;
        let tips = open.branches.clear();
        for (id, tip) in tips {
            if id != own {
                self.release(id);
            } else if tip != DraftTree::ROOT {
                self.context.remove(own, length);
            }
        }
    }

    /// Removes a sequence from the cache; it will be recomputed.
    fn clear_cached(&mut self, sequence: Sequence) {
        self.drop_tree(sequence);
        let open = self.open_sequence_mut(sequence);
        open.cached.clear();
        open.computed = 0;
        let id = open.id;
        self.context.remove(id, 0);
    }

    /// Reuses the cached prefix of `tokens` from another sequence, if it is longer than the
    /// sequence's own.
    fn reuse_cached(&mut self, sequence: Sequence, tokens: &[Token]) {
        let own = common_prefix(&self.sequences[sequence].cached, tokens);
        // A recurrent state can only be reused in full, and open sequences need their own.
        let others =
            self.sequences.iter().filter(|(other, _)| *other != sequence && !self.has_state);
        let others = others.map(|(other, open)| (other, &open.cached[..]));
        let Some(source) = self.closed.source(tokens, own, others) else { return };
        let (width, id) = (self.hidden_state_width(), self.sequences[sequence].id);
        self.context.remove(id, 0);
        let (id, cached, hidden_states) = match source {
            Source::Open(other, shared) => {
                let other = &self.sequences[other];
                self.context.copy(other.id, id, Some(shared));
                (id, tokens[..shared].to_vec(), prefix(&other.hidden_states, shared * width))
            }
            Source::Cache => match self.closed.take(tokens) {
                None => return,
                Some(Cached::Removed(cached, ClosedSequence { id: cached_id, hidden_states })) => {
                    self.ids.release(id);
                    (cached_id, cached, hidden_states)
                }
                Some(Cached::Prefix(shared, closed)) => {
                    self.context.copy(closed.id, id, Some(shared));
                    (id, tokens[..shared].to_vec(), prefix(&closed.hidden_states, shared * width))
                }
            },
        };
        let open = &mut self.sequences[sequence];
        (open.id, open.cached, open.hidden_states) = (id, cached, hidden_states);
    }
}

fn prefix(numbers: &[f32], count: usize) -> Vec<f32> {
    numbers[..count.min(numbers.len())].to_vec()
}

impl Sequences for LlamaModel {
    fn open(&mut self) -> Result<Sequence> {
        if self.sequences.len() >= self.info.max_sequences {
            return too_many_sequences(&self.info);
        }
        let Some(id) = self.take_id() else { return too_many_sequences(&self.info) };
        Ok(self.sequences.open(OpenSequence::new(id)))
    }

    fn close(&mut self, sequence: Sequence) {
        if self.sequences.get(sequence).is_none() {
            return;
        }
        self.drop_tree(sequence);
        let Some(OpenSequence { cached, id, hidden_states, .. }) = self.sequences.close(sequence)
        else {
            return;
        };
        for evicted in self.closed.insert(cached, ClosedSequence { id, hidden_states }) {
            self.release(evicted.id);
        }
        while self.closed.len() > self.max_closed {
            self.evict();
        }
    }

    fn token_capacity(&self) -> Option<usize> {
        let cells = self.context.cells();
        // The rest is reserved for trees.
        Some(cells - (LlamaOptions::SPARE as usize).min(cells / 8))
    }

    fn caches_closed_sequences(&self) -> bool {
        self.max_closed > 0
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.open_sequence(sequence).tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.info.vocabulary.size();
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "context", vocabulary, got }.into());
        }
        self.drop_tree(sequence);
        if self.open_sequence(sequence).tokens.is_empty() {
            self.reuse_cached(sequence, tokens);
        }
        self.open_sequence_mut(sequence).extend(tokens);
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        if length < self.open_sequence(sequence).tokens.len() {
            self.drop_tree(sequence);
            self.open_sequence_mut(sequence).truncate(length);
        }
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        let open = self.open_sequence(sequence);
        self.check_context(open.tokens.len())?;
        let last = open.tokens.len().saturating_sub(1);
        let end = last.min(open.computed.saturating_add(max_tokens));
        if open.computed < end {
            self.compute(vec![Work { sequence, end, tree: None }]).map_err(|e| self.failed(e))?;
        }
        Ok(last.saturating_sub(self.open_sequence(sequence).computed))
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut work = Vec::with_capacity(batch.len());
        for &(sequence, tree) in batch {
            let open = self.open_sequence(sequence);
            let end = open.tokens.len();
            if end == 0 {
                return Err(EngineError::EmptyPrompt);
            }
            let depth =
                (open.scored.max(1)..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
            if open.scored < tree.len() {
                self.check_context(end + depth)?;
                work.push(Work { sequence, end, tree: Some(tree) });
            }
        }
        if work.is_empty() { Ok(()) } else { self.compute(work).map_err(|e| self.failed(e)) }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let width = self.hidden_state_width();
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        let open = self.open_sequence_mut(sequence);
        if width > 0 {
            let position = open.tokens.len();
            open.commit_hidden_states(path, position, width);
        }
        let in_cache = path.iter().take_while(|&&node| open.branches.contains(node)).count();
        let Some(&last) = path[..in_cache].last() else {
            self.drop_tree(sequence);
            self.open_sequence_mut(sequence).extend(&tokens);
            return Ok(());
        };
        let winner = open.branches.through(last);
        open.id = winner;
        open.scored = 0;
        open.cached.extend_from_slice(&tokens[..in_cache]);
        let (length, tips) = (open.cached.len(), open.branches.clear());
        for (id, tip) in tips {
            if id != winner {
                self.release(id);
            } else if tree.depth(tip) > in_cache {
                self.context.remove(winner, length);
            }
        }
        self.open_sequence_mut(sequence).extend(&tokens);
        Ok(())
    }
}

impl Model for LlamaModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.open_sequence(sequence).logits(node, self.info.vocabulary.size())
    }

    fn as_hidden_states(&self) -> Option<&dyn HiddenStates> {
        Some(self)
    }

    fn as_hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        Some(self)
    }
}

impl HiddenStates for LlamaModel {
    fn capture_hidden_states(&mut self, features: &[HiddenState]) -> Result<()> {
        let layers = self.context.weights().layers();
        let layer_input = |feature: &HiddenState| match feature {
            HiddenState::After(layer) if *layer < layers => u32::try_from(*layer).ok(),
            _ => None,
        };
        let Some(inputs) = features.iter().map(layer_input).collect::<Option<Vec<u32>>>() else {
            return no_hidden_states(
                &self.info,
                "inputs of layers, which is all that llama.cpp can capture,",
            );
        };
        if !self.can_capture {
            return no_hidden_states(
                &self.info,
                "an architecture whose hidden states llama.cpp can capture (llama, qwen3)",
            );
        }
        if !self.sequences.is_empty() {
            return no_hidden_states(&self.info, "to be requested before a sequence is open");
        }
        self.forget_closed();
        self.context.capture_hidden_states(&inputs).map_err(|e| self.failed(e))?;
        self.captured_layers = inputs.len();
        Ok(())
    }

    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>> {
        let (open, width) = (self.open_sequence(sequence), self.hidden_state_width());
        if width == 0 {
            return no_hidden_states(&self.info, "captured hidden states");
        }
        match tokens.end <= open.captured {
            true => Ok(open.hidden_states[tokens.start * width..tokens.end * width].to_vec()),
            false => no_hidden_states(&self.info, "computed tokens"),
        }
    }
}
