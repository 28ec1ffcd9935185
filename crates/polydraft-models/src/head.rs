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
    /// The draft head, or the MTP modules in order.
    nets: Vec<Net>,
    sequences: Slots<Streams>,
}

/// State of a sequence.
#[derive(Debug)]
struct Streams {
    /// By module.
    modules: Vec<SequenceState>,
    /// Depths of the tree's nodes, with several modules.
    depths: Vec<usize>,
}

/// Slots of a sequence to compute in a pass.
struct Work<'a> {
    sequence: Sequence,
    slots: Range<usize>,
    tree: &'a DraftTree,
}

impl DraftHead {
    fn new(name: String, vocabulary: usize, context: usize, nets: Vec<Net>) -> Self {
        Self { name, vocabulary, context, nets, sequences: Slots::default() }
    }

    fn net(&self) -> &Net {
        &self.nets[0]
    }

    /// Whether each drafted token is that of a further module.
    fn has_modules(&self) -> bool {
        self.nets.len() > 1
    }

    fn new_streams(&self) -> Streams {
        let last = self.nets.len() - 1;
        let new = |(module, net): (usize, &Net)| {
            let state = SequenceState::new(net.decoder.new_cache(), net.uses_target_cache());
            if module < last { state.keeping_outputs() } else { state }
        };
        Streams { modules: self.nets.iter().enumerate().map(new).collect(), depths: Vec::new() }
    }

    /// Tokens that it can draft, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.net().tokens
    }

    /// Hidden states of the target that it reads, in order.
    pub fn hidden_states(&self) -> &[polydraft_engine::HiddenState] {
        &self.net().hidden_states
    }

    /// Bytes of the KV caches of all sequences.
    pub fn cache_bytes(&self) -> usize {
        let modules = self.sequences.iter().flat_map(|(_, streams)| &streams.modules);
        modules.map(SequenceState::cache_bytes).sum()
    }

    /// State of the first module, which knows all tokens.
    fn state(&self, sequence: Sequence) -> &SequenceState {
        &self.sequences[sequence].modules[0]
    }

    fn state_mut(&mut self, sequence: Sequence) -> &mut SequenceState {
        &mut self.sequences[sequence].modules[0]
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// Computes one pass of a module.
    fn compute(&mut self, module: usize, work: &[Work]) -> error::Result<()> {
        let (net, has_modules) = (&self.nets[module], self.has_modules());
        let (width, feature_width) = (net.width(), net.feature_width);
        let state = |sequence: Sequence| &self.sequences[sequence].modules[module];
        let features: Vec<f32> = work
            .iter()
            .flat_map(|w| state(w.sequence).inputs(&w.slots, feature_width))
            .copied()
            .collect();
        let combined = net.combine(features)?;
        let mut combined = &combined[..];
        let mut states =
            Vec::with_capacity(work.iter().map(|w| w.slots.len()).sum::<usize>() * width);
        for Work { sequence, slots, tree } in work {
            let positions;
            (positions, combined) = combined.split_at(
                state(*sequence).inputs(slots, feature_width).len() / feature_width * width,
            );
            states.extend_from_slice(positions);
            let before = module.checked_sub(1).map(|m| &self.sequences[*sequence].modules[m]);
            let source = if has_modules { before } else { Some(state(*sequence)) };
            state(*sequence).add_states(source, slots, tree, width, &mut states);
        }
        let mut parts = Vec::with_capacity(work.len());
        let mut sequences = self.sequences.iter_mut();
        for Work { sequence, slots, tree } in work {
            if let Some((_, streams)) = sequences.find(|(other, _)| other == sequence) {
                parts.push(streams.modules[module].part(slots, tree));
            }
        }
        let NetOutput { normed, states } = net.forward(&mut parts, states)?;
        let wanted: Vec<usize> = parts.iter().map(|part| part.wanted).collect();
        // Nodes with logits, by sequence, and their rows.
        let state = |sequence: Sequence| &self.sequences[sequence].modules[module];
        let (mut rows, mut nodes, mut first) = (Vec::new(), Vec::new(), 0);
        for (Work { sequence, slots, tree }, wanted) in work.iter().zip(&wanted) {
            let (state, begin) = (state(*sequence), slots.end - wanted);
            let found = (begin..slots.end).filter_map(|slot| Some((slot, state.node(slot)?)));
            let found = found.filter(|(_, node)| !has_modules || tree.depth(*node) == module);
            let (slots, of_sequence): (Vec<_>, Vec<_>) = found.unzip();
            rows.extend(slots.into_iter().map(|slot| first + slot - begin));
            nodes.push(of_sequence);
            first += wanted;
        }
        let logits = match normed {
            Some(normed) if rows.len() == normed.count() => net.logits(&normed)?,
            Some(normed) if !rows.is_empty() => net.logits(&normed.select(&rows))?,
            _ => Vec::new(),
        };
        let (vocabulary, widths) = (net.tokens.len(), [feature_width, width]);
        let (mut logits, mut states) = (&logits[..], &states[..]);
        for ((Work { sequence, slots, .. }, wanted), nodes) in work.iter().zip(wanted).zip(nodes) {
            let (of_logits, of_states);
            (of_logits, logits) = logits.split_at(nodes.len() * vocabulary);
            (of_states, states) = states.split_at(wanted * width);
            let state = &mut self.sequences[*sequence].modules[module];
            state.finish_slots(slots, (&nodes, of_logits), of_states, widths);
        }
        Ok(())
    }

    /// Passes the output states of a module's positions to the next one, as its input.
    fn forward_outputs(&mut self, sequence: Sequence, module: usize) {
        let width = self.nets[module].width();
        if let [from, to, ..] = &mut self.sequences[sequence].modules[module..] {
            let features = from.take_outputs(to.len().saturating_sub(1), width);
            to.receive(&features, width);
        }
    }

    /// Scores the new nodes of all trees in one module.
    fn score_module(&mut self, module: usize, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        loop {
            let mut budget = MAX_PASS_TOKENS;
            let mut work = Vec::with_capacity(batch.len());
            for &(sequence, tree) in batch {
                let state = &self.sequences[sequence].modules[module];
                let mut slots = state.ready(tree);
                if self.has_modules() {
                    // Deeper nodes are for further modules.
                    while slots.end > slots.start
                        && state.node(slots.end - 1).is_some_and(|node| tree.depth(node) > module)
                    {
                        slots.end -= 1;
                    }
                }
                slots.end = slots.end.min(slots.start + budget);
                budget -= slots.len();
                if !slots.is_empty() {
                    work.push(Work { sequence, slots, tree });
                }
            }
            if work.is_empty() {
                return Ok(());
            }
            self.compute(module, &work).map_err(|e| self.failed(e))?;
        }
    }

    /// Appends tokens to all modules: module k has those from number k on.
    fn append(&mut self, sequence: Sequence, tokens: &[Token]) {
        let streams = &mut self.sequences[sequence];
        let before = streams.modules[0].len();
        for (module, state) in streams.modules.iter_mut().enumerate() {
            let skipped = module.saturating_sub(before).min(tokens.len());
            state.extend(tokens[skipped..].iter().copied());
        }
    }
}

impl Sequences for DraftHead {
    fn token_bytes(&self) -> u64 {
        self.nets.iter().map(|net| net.decoder.token_bytes()).sum()
    }

    fn open(&mut self) -> Result<Sequence> {
        let streams = self.new_streams();
        Ok(self.sequences.open(streams))
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
        self.append(sequence, tokens);
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let width = self.net().feature_width;
        if !self.has_modules() {
            self.state_mut(sequence).truncate(length, width);
        } else if length < self.len(sequence) {
            // What further modules would need again is gone: all of it is computed anew.
            let tokens = self.state(sequence).tokens()[..length].to_vec();
            self.sequences[sequence] = self.new_streams();
            self.append(sequence, &tokens);
        }
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        let tree = &DraftTree::new();
        let mut left = 0;
        for module in 0..self.nets.len() {
            let state =
                |head: &Self| head.sequences[sequence].modules[module].unprepared(usize::MAX);
            let mut slots = state(self);
            slots.end = slots.end.min(slots.start.saturating_add(max_tokens));
            while !slots.is_empty() {
                let end = slots.end.min(slots.start + MAX_PASS_TOKENS);
                self.compute(module, &[Work { sequence, slots: slots.start..end, tree }])
                    .map_err(|e| self.failed(e))?;
                slots.start = end;
            }
            self.forward_outputs(sequence, module);
            left = left.max(state(self).len());
        }
        Ok(left)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut batch: Vec<_> = batch.to_vec();
        batch.sort_unstable_by_key(|(sequence, _)| *sequence);
        for module in 0..self.nets.len() {
            self.score_module(module, &batch)?;
            batch.iter().for_each(|(sequence, _)| self.forward_outputs(*sequence, module));
        }
        if self.has_modules() {
            for (sequence, tree) in batch {
                self.sequences[sequence].depths =
                    (0..tree.len()).map(|node| tree.depth(node)).collect();
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        let tokens: Vec<Token> = path.iter().map(|&node| tree.token(node)).collect();
        self.append(sequence, &tokens);
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

    fn levels(&self) -> usize {
        // As in transformers, no token is drafted beyond those of the modules.
        if self.has_modules() { self.nets.len() } else { usize::MAX }
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
        let (width, length) = (self.net().feature_width, self.state(sequence).len());
        let features = hidden_states::target_states(
            target,
            target_sequence,
            [received, known, length],
            width,
        )?;
        if self.net().uses_target_cache() {
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
        let (streams, tokens) = (&self.sequences[sequence], &self.net().tokens);
        let module = if self.has_modules() { streams.depths[node] } else { 0 };
        let uniform;
        let logits = match streams.modules.get(module) {
            Some(state) if state.root().is_some() => state.logits(node, tokens.len()),
            // A sequence of one token has no target states yet, one of k tokens none for module k:
            // a uniform distribution.
            _ => {
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
