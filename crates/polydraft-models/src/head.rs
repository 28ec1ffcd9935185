//! Draft heads: drafters of a few layers that read the target's hidden states (EAGLE), and possibly
//! its KV cache.
//!
//! Like any drafter, a draft head returns its full distribution at every node, level by level, over
//! the target's vocabulary and with probability zero outside its own: every verifier works with it
//! at every temperature.

mod assistant;
pub(crate) mod block;
mod config;
pub(crate) mod describe;
mod hidden_states;
pub(crate) mod kind;
pub(crate) mod load;
pub(crate) mod mtp;
pub(crate) mod mtp_file;
mod net;
pub(crate) mod options;
mod sequence;
mod source;
pub(crate) mod target;
pub(crate) mod vocabulary;

use std::any::Any;
use std::ops::Range;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{
    Drafter, DrafterInput, Error as EngineError, Model, Result, Sequence, Sequences, Slots,
};

use crate::error;
use crate::model::TransformerModel;
use net::{Net, NetOutput};
use sequence::SequenceState;

/// Maximum tokens of a pass.
const MAX_PASS_TOKENS: usize = 256;

/// A draft head that drafts token by token, with its sequences.
#[derive(Debug)]
pub struct DraftHead {
    name: String,
    /// Size of the target's vocabulary.
    vocabulary: usize,
    context: usize,
    net: Net,
    sequences: Slots<SequenceState>,
}

/// Slots of a sequence to compute in a pass.
struct Work<'a> {
    sequence: Sequence,
    slots: Range<usize>,
    tree: &'a DraftTree,
}

impl DraftHead {
    fn new(name: String, vocabulary: usize, context: usize, net: Net) -> Self {
        Self { name, vocabulary, context, net, sequences: Slots::default() }
    }

    /// Tokens that it can draft, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.net.tokens
    }

    /// Hidden states of the target that it reads, in order.
    pub fn hidden_states(&self) -> &[polydraft_engine::HiddenState] {
        &self.net.hidden_states
    }

    /// Bytes of the KV caches of all sequences.
    pub fn cache_bytes(&self) -> usize {
        self.sequences.iter().map(|(_, state)| state.cache_bytes()).sum()
    }

    fn state(&self, sequence: Sequence) -> &SequenceState {
        &self.sequences[sequence]
    }

    fn state_mut(&mut self, sequence: Sequence) -> &mut SequenceState {
        &mut self.sequences[sequence]
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// Computes one pass.
    fn compute(&mut self, work: &[Work]) -> error::Result<()> {
        let (width, feature_width) = (self.net.width(), self.net.feature_width);
        let state = |sequence: Sequence| &self.sequences[sequence];
        let features: Vec<f32> = work
            .iter()
            .flat_map(|w| state(w.sequence).inputs(&w.slots, feature_width))
            .copied()
            .collect();
        let combined = self.net.combine(features)?;
        let mut combined = &combined[..];
        let mut states =
            Vec::with_capacity(work.iter().map(|w| w.slots.len()).sum::<usize>() * width);
        for Work { sequence, slots, tree } in work {
            let positions;
            (positions, combined) = combined.split_at(
                state(*sequence).inputs(slots, feature_width).len() / feature_width * width,
            );
            states.extend_from_slice(positions);
            state(*sequence).add_states(slots, tree, width, &mut states);
        }
        let mut parts = Vec::with_capacity(work.len());
        let mut sequences = self.sequences.iter_mut();
        for Work { sequence, slots, tree } in work {
            if let Some((_, state)) = sequences.find(|(other, _)| other == sequence) {
                parts.push(state.part(slots, tree));
            }
        }
        let NetOutput { logits, states } = self.net.forward(&mut parts, states)?;
        let wanted: Vec<usize> = parts.iter().map(|part| part.wanted).collect();
        let (mut logits, mut states) = (&logits[..], &states[..]);
        for (Work { sequence, slots, .. }, wanted) in work.iter().zip(wanted) {
            let (of_logits, of_states);
            (of_logits, logits) = logits.split_at(wanted * self.net.tokens.len());
            (of_states, states) = states.split_at(wanted * width);
            self.sequences[*sequence].finish_slots(slots, of_logits, of_states, feature_width);
        }
        Ok(())
    }
}

impl Sequences for DraftHead {
    fn token_bytes(&self) -> u64 {
        self.net.decoder.token_bytes()
    }

    fn open(&mut self) -> Result<Sequence> {
        let cache = self.net.decoder.new_cache();
        Ok(self.sequences.open(SequenceState::new(cache, self.net.uses_target_cache())))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.state(sequence).len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "draft head", vocabulary, got }.into());
        }
        self.state_mut(sequence).extend(tokens.iter().copied());
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let width = self.net.feature_width;
        self.state_mut(sequence).truncate(length, width);
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        let tree = &DraftTree::new();
        let mut slots = self.state(sequence).unprepared(max_tokens);
        while !slots.is_empty() {
            let end = slots.end.min(slots.start + MAX_PASS_TOKENS);
            self.compute(&[Work { sequence, slots: slots.start..end, tree }])
                .map_err(|e| self.failed(e))?;
            slots.start = end;
        }
        Ok(self.state(sequence).unprepared(usize::MAX).len())
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut batch: Vec<_> = batch.to_vec();
        batch.sort_unstable_by_key(|(sequence, _)| *sequence);
        loop {
            let mut budget = MAX_PASS_TOKENS;
            let mut work = Vec::with_capacity(batch.len());
            for &(sequence, tree) in &batch {
                let mut slots = self.state(sequence).ready(tree);
                slots.end = slots.end.min(slots.start + budget);
                budget -= slots.len();
                if !slots.is_empty() {
                    work.push(Work { sequence, slots, tree });
                }
            }
            if work.is_empty() {
                return Ok(());
            }
            self.compute(&work).map_err(|e| self.failed(e))?;
        }
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.state_mut(sequence).extend(path.iter().map(|&node| tree.token(node)));
        Ok(())
    }
}

impl Drafter for DraftHead {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.context
    }

    fn input(&self) -> DrafterInput {
        DrafterInput::HiddenStates
    }

    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        target_sequence: Sequence,
        known: usize,
    ) -> Result<()> {
        let received = self.state(sequence).received();
        if known <= received {
            return Ok(());
        }
        let (width, length) = (self.net.feature_width, self.state(sequence).len());
        let features = hidden_states::target_states(
            target,
            target_sequence,
            [received, known, length],
            width,
        )?;
        if self.net.uses_target_cache() {
            let target = (target as &dyn Any).downcast_ref::<TransformerModel>();
            let Some(target) = target else {
                return Err(EngineError::Setting {
                    setting: "target of an assistant",
                    expected: "a target on the native backend, whose KV cache it reads",
                    got: "another backend".to_owned(),
                });
            };
            self.state_mut(sequence).set_cache(target.share_prefix(target_sequence, known));
        }
        self.state_mut(sequence).receive(&features, width);
        Ok(())
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let (state, tokens) = (self.state(sequence), &self.net.tokens);
        let uniform;
        let logits = match state.root() {
            Some(_) => state.logits(node, tokens.len()),
            // A sequence of one token has no target states yet: a uniform distribution.
            None => {
                uniform = vec![0.0; tokens.len()];
                &uniform
            }
        };
        let probs = Distribution::for_draft(spare, self.vocabulary, Some(tokens), logits, sampling);
        probs.map_err(|source| EngineError::Logits {
            role: "draft",
            model: self.name.clone(),
            source,
        })
    }
}
