//! The engine's interface of a model with many sequences, on llama.cpp.
//!
//! All sequences share one KV cache, in which a token carries the ids of those that it belongs to.
//! A sequence has an id of its own, and while a tree follows it each leaf has one too: the first
//! leaf below a node takes the node's id, others get new ones, which share the common beginning. So
//! 1. a tree is scored in one pass: a node's ids are those of the leaves below it, and a token sees
//!    what carries its id;
//! 2. committing a path keeps its leaf's id, which is the sequence's own from then on, and takes
//!    back the others';
//! 3. where ids run out, or where a model keeps a state that cannot be taken back (recurrent and
//!    hybrid ones), each path of a tree is scored under an id of its own, with a copy of the state,
//!    and nothing of it stays in the cache: the path that is committed is computed once more with
//!    the next tree. As many paths go through one pass as there are free ids, one at least.

mod branches;
mod ids;
mod pass;
mod text;

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
use pass::{Row, Work};
use text::Text;

/// Ids for sequences and the leaves of their trees: llama.cpp has 256, and each costs a vector of
/// logits.
const IDS: usize = 64;
/// The same for models with a recurrent state, which is large; each id has one.
const STATES: usize = 8;
/// Closed sequences that stay cached, for sequences with the same beginning.
const KEPT: usize = 8;

/// Architectures whose hidden states llama.cpp can capture, of those whose files can be read here
/// too; for others llama.cpp ends the process.
const WATCHABLE: [&str; 2] = ["llama", "qwen3"];

/// The cached state of a closed sequence.
#[derive(Debug)]
struct Kept {
    id: Id,
    states: Vec<f32>,
}

/// A model on llama.cpp with its open sequences.
#[derive(Debug)]
pub struct LlamaModel {
    info: ModelInfo,
    context: Context,
    texts: Slots<Text>,
    kept: PrefixCache<Kept>,
    most_kept: usize,
    ids: Ids,
    /// For paths that are scored apart, where no other id is free.
    spare: Id,
    /// Whether a sequence's state cannot be taken back.
    has_state: bool,
    window: Option<usize>,
    batch: Batch,
    /// What the tokens of the batch are: the sequence, the position in it, and their role.
    rows: Vec<(Sequence, usize, Row)>,
    /// Whether its hidden states can be captured.
    watchable: bool,
    /// How many layers are captured.
    watched: usize,
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
        let least = context.saturating_add(LlamaOptions::SPARE as usize);
        let cells = options.cells.map_or(least, |cells| cells as usize);
        if cells < context {
            let expected = format!("room for at least one sequence of {context} tokens");
            return Err(Error::Setting {
                setting: "cache",
                expected,
                got: format!("{cells} tokens"),
            });
        }
        let (has_state, window) = (weights.has_state(), weights.window());
        let (ids, most_kept, reuse) = match has_state {
            true => (STATES, 1, Reuse::WholeOnly),
            false => (IDS, KEPT, Reuse::AnyPrefix),
        };
        let context_of_all = Context::new(weights, path, cells, ids, options)?;
        let sequences = ids / 2;
        let watchable = WATCHABLE.contains(&architecture);
        let hidden = watchable.then(|| context_of_all.weights().hidden());
        let info = ModelInfo { name, vocabulary, context, hidden, begins: false, sequences };
        Ok(Self {
            info,
            context: context_of_all,
            texts: Slots::default(),
            kept: PrefixCache::new(reuse),
            most_kept,
            ids: Ids::new(ids - 1),
            spare: ids as Id - 1,
            has_state,
            window,
            batch: Batch::default(),
            rows: Vec::new(),
            watchable,
            watched: 0,
        })
    }

    /// Tokens that the cache holds, of all sequences together.
    pub fn cells(&self) -> usize {
        self.context.cells()
    }

    /// How many tokens of a sequence are computed.
    pub fn computed(&self, sequence: Sequence) -> usize {
        self.text(sequence).computed
    }

    /// Whether trees are scored path by path, because the model's state cannot be taken back.
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// Drops the cache of closed sequences.
    pub fn forget_closed(&mut self) {
        while self.evict() {}
    }

    /// Leaves only so many ids for the leaves of trees and for cached closed sequences: with none,
    /// trees are scored path by path. For tests, which compare both methods.
    #[doc(hidden)]
    pub fn leave_ids(&mut self, count: usize) {
        self.forget_closed();
        self.ids.leave(count);
    }

    /// Numbers that are captured of a token.
    fn states(&self) -> usize {
        self.watched * self.context.weights().hidden()
    }

    fn text(&self, sequence: Sequence) -> &Text {
        &self.texts[sequence]
    }

    fn text_mut(&mut self, sequence: Sequence) -> &mut Text {
        &mut self.texts[sequence]
    }

    fn failed(&self, source: Error) -> EngineError {
        EngineError::Model { model: self.info.name.clone(), source: Box::new(source) }
    }

    fn check_room(&self, tokens: usize) -> Result<()> {
        match tokens > self.info.context {
            true => Err(EngineError::PromptTooLong { prompt: tokens, context: self.info.context }),
            false => Ok(()),
        }
    }

    /// Drops the closed sequence that was cached longest ago. False if there is none.
    fn evict(&mut self) -> bool {
        let Some(Kept { id, .. }) = self.kept.evict() else { return false };
        self.release(id);
        true
    }

    fn release(&mut self, id: Id) {
        self.context.remove(id, 0);
        self.ids.give(id);
    }

    fn take_id(&mut self) -> Option<Id> {
        while self.ids.left() == 0 && self.evict() {}
        self.ids.take()
    }

    /// Takes the tree after a sequence from the cache.
    fn drop_tree(&mut self, sequence: Sequence) {
        let text = self.text_mut(sequence);
        let (own, length) = (text.id, text.held.len());
        text.scored = 0;
        let tips = text.branches.clear();
        for (id, tip) in tips {
            if id != own {
                self.release(id);
            } else if tip != DraftTree::ROOT {
                self.context.remove(own, length);
            }
        }
    }

    /// Takes all of a sequence from the cache; it will be computed anew.
    fn forget(&mut self, sequence: Sequence) {
        self.drop_tree(sequence);
        let text = self.text_mut(sequence);
        text.held.clear();
        text.computed = 0;
        let id = text.id;
        self.context.remove(id, 0);
    }

    /// The cached beginning of `tokens` from another sequence, where that is more than of the
    /// sequence's own.
    fn adopt(&mut self, sequence: Sequence, tokens: &[Token]) {
        let own = common_prefix(&self.texts[sequence].held, tokens);
        // Of a state the whole is of use, and an open sequence needs its own.
        let others = self.texts.iter().filter(|(other, _)| *other != sequence && !self.has_state);
        let others = others.map(|(other, text)| (other, &text.held[..]));
        let Some(source) = self.kept.source(tokens, own, others) else { return };
        let (width, id) = (self.states(), self.texts[sequence].id);
        self.context.remove(id, 0);
        let (id, held, states) = match source {
            Source::Open(other, shared) => {
                let other = &self.texts[other];
                self.context.copy(other.id, id, Some(shared));
                (id, tokens[..shared].to_vec(), beginning(&other.states, shared * width))
            }
            Source::Cache => match self.kept.take(tokens) {
                None => return,
                Some(Cached::Whole(held, Kept { id: theirs, states })) => {
                    self.ids.give(id);
                    (theirs, held, states)
                }
                Some(Cached::Prefix(shared, kept)) => {
                    self.context.copy(kept.id, id, Some(shared));
                    (id, tokens[..shared].to_vec(), beginning(&kept.states, shared * width))
                }
            },
        };
        let text = &mut self.texts[sequence];
        (text.id, text.held, text.states) = (id, held, states);
    }
}

fn beginning(numbers: &[f32], count: usize) -> Vec<f32> {
    numbers[..count.min(numbers.len())].to_vec()
}

impl Sequences for LlamaModel {
    fn open(&mut self) -> Result<Sequence> {
        if self.texts.len() >= self.info.sequences {
            return too_many_sequences(&self.info);
        }
        let Some(id) = self.take_id() else { return too_many_sequences(&self.info) };
        Ok(self.texts.open(Text::new(id)))
    }

    fn close(&mut self, sequence: Sequence) {
        if self.texts.get(sequence).is_none() {
            return;
        }
        self.drop_tree(sequence);
        let Some(Text { held, id, states, .. }) = self.texts.close(sequence) else { return };
        for useless in self.kept.insert(held, Kept { id, states }) {
            self.release(useless.id);
        }
        while self.kept.len() > self.most_kept {
            self.evict();
        }
    }

    fn room(&self) -> Option<usize> {
        let cells = self.context.cells();
        // The rest is for trees.
        Some(cells - (LlamaOptions::SPARE as usize).min(cells / 8))
    }

    fn keeps_closed(&self) -> bool {
        self.most_kept > 0
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.text(sequence).tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.info.vocabulary.size();
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "context", vocabulary, got }.into());
        }
        self.drop_tree(sequence);
        if self.text(sequence).tokens.is_empty() {
            self.adopt(sequence, tokens);
        }
        self.text_mut(sequence).extend(tokens);
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        if length < self.text(sequence).tokens.len() {
            self.drop_tree(sequence);
            self.text_mut(sequence).truncate(length);
        }
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let text = self.text(sequence);
        self.check_room(text.tokens.len())?;
        let last = text.tokens.len().saturating_sub(1);
        let end = last.min(text.computed.saturating_add(most));
        if text.computed < end {
            self.compute(vec![Work { sequence, end, tree: None }]).map_err(|e| self.failed(e))?;
        }
        Ok(last.saturating_sub(self.text(sequence).computed))
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut work = Vec::with_capacity(batch.len());
        for &(sequence, tree) in batch {
            let text = self.text(sequence);
            let end = text.tokens.len();
            if end == 0 {
                return Err(EngineError::EmptyPrompt);
            }
            let depth =
                (text.scored.max(1)..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
            if text.scored < tree.len() {
                self.check_room(end + depth)?;
                work.push(Work { sequence, end, tree: Some(tree) });
            }
        }
        if work.is_empty() { Ok(()) } else { self.compute(work).map_err(|e| self.failed(e)) }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let width = self.states();
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        let text = self.text_mut(sequence);
        if width > 0 {
            let place = text.tokens.len();
            text.commit_states(path, place, width);
        }
        let kept = path.iter().take_while(|&&node| text.branches.holds(node)).count();
        let Some(&last) = path[..kept].last() else {
            self.drop_tree(sequence);
            self.text_mut(sequence).extend(&tokens);
            return Ok(());
        };
        let winner = text.branches.through(last);
        text.id = winner;
        text.scored = 0;
        text.held.extend_from_slice(&tokens[..kept]);
        let (length, tips) = (text.held.len(), text.branches.clear());
        for (id, tip) in tips {
            if id != winner {
                self.release(id);
            } else if tree.depth(tip) > kept {
                self.context.remove(winner, length);
            }
        }
        self.text_mut(sequence).extend(&tokens);
        Ok(())
    }
}

impl Model for LlamaModel {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn logits(&self, sequence: Sequence, node: NodeId) -> &[f32] {
        self.text(sequence).logits(node, self.info.vocabulary.size())
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
        let of = |feature: &HiddenState| match feature {
            HiddenState::After(layer) if *layer < layers => u32::try_from(*layer).ok(),
            _ => None,
        };
        let Some(inputs) = features.iter().map(of).collect::<Option<Vec<u32>>>() else {
            return no_hidden_states(
                &self.info,
                "the inputs of layers, which is all that llama.cpp gives,",
            );
        };
        if !self.watchable {
            return no_hidden_states(
                &self.info,
                "an architecture whose hidden states llama.cpp can capture (llama, qwen3)",
            );
        }
        if !self.texts.is_empty() {
            return no_hidden_states(&self.info, "to be asked for before a sequence is open");
        }
        self.forget_closed();
        self.context.capture_hidden_states(&inputs).map_err(|e| self.failed(e))?;
        self.watched = inputs.len();
        Ok(())
    }

    fn hidden_states(&self, sequence: Sequence, tokens: Range<usize>) -> Result<Vec<f32>> {
        let (text, width) = (self.text(sequence), self.states());
        if width == 0 {
            return no_hidden_states(&self.info, "some that are captured");
        }
        match tokens.end <= text.stated {
            true => Ok(text.states[tokens.start * width..tokens.end * width].to_vec()),
            false => no_hidden_states(&self.info, "tokens that are computed"),
        }
    }
}
