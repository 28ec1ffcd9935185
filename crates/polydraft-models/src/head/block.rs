//! Block heads: drafters of a few layers that predict a block of tokens in one pass.
//!
//! Problem: an EAGLE head computes one pass for each token of a path; its cost grows with depth.
//! Sources: Chen et al. 2026 (DFlash); additions of DSpark and DFlash-2 from their published
//! configurations and the forward passes of vLLM and llama.cpp. See `net.rs` for the forward pass
//! and `link.rs` for the dependencies between the tokens of a block.
//! Deviations: 1. Engines draw one chain from a block. Here every node of a tree gets a full
//! distribution: that of its level, conditional on its parent if the format has a link. So any
//! number of paths costs one pass, and every verifier works at every temperature. 2. A block always
//! has its trained length, however shallow the tree is; logits are computed for the requested
//! levels only. 3. Confidence heads are not read.
//! Complexity: one pass over the block and the new tokens, then the output matrix.

pub(super) mod config;
mod convolution;
mod link;
pub(crate) mod load;
mod net;
mod sequence;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{
    Drafter, DrafterInput, Error as EngineError, HiddenState, Model, Result, Sequence, Sequences,
    Slots,
};

use super::hidden_states::target_states;
use crate::error;
use net::{Net, Work};
use sequence::SequenceState;

/// Maximum context tokens of a pass.
const MAX_PASS_TOKENS: usize = 256;

/// A block head with the sequences that it drafts for.
#[derive(Debug)]
pub struct BlockHead {
    name: String,
    /// Size of the target's vocabulary.
    vocabulary: usize,
    context: usize,
    net: Net,
    sequences: Slots<SequenceState>,
}

impl BlockHead {
    fn new(name: String, vocabulary: usize, context: usize, net: Net) -> Self {
        Self { name, vocabulary, context, net, sequences: Slots::default() }
    }

    /// Tokens that it can draft, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.net.tokens
    }

    /// Hidden states of the target that it reads, in order.
    pub fn hidden_states(&self) -> &[HiddenState] {
        &self.net.hidden_states
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// Writes target states of the given sequences to the caches, at most `max_tokens` tokens of
    /// each. With `blocks`, also computes the blocks of sequences whose states are then all
    /// written.
    fn compute(
        &mut self,
        sequences: &[Sequence],
        max_tokens: usize,
        blocks: bool,
    ) -> error::Result<()> {
        let mut chosen: Vec<&mut SequenceState> = Vec::with_capacity(sequences.len());
        for (sequence, state) in self.sequences.iter_mut() {
            if sequences.contains(&sequence) {
                chosen.push(state);
            }
        }
        let width = self.net.feature_width;
        let mut work: Vec<Work> =
            chosen.iter_mut().map(|state| state.work(width, max_tokens, blocks)).collect();
        let outputs = self.net.forward(&mut work)?;
        let written: Vec<usize> = work.iter().map(|work| work.states).collect();
        drop(work);
        let mut outputs = outputs.chunks_exact(self.net.levels() * self.net.width());
        for (state, written) in chosen.into_iter().zip(written) {
            let is_complete = state.finish_states(written, width);
            if blocks && is_complete {
                state.set_block(outputs.next().unwrap_or_default().to_vec());
            }
        }
        Ok(())
    }

    /// Computes the missing logits of levels, for all sequences in one product, and of nodes.
    fn compute_logits(&mut self, batch: &[(Sequence, &DraftTree)]) -> error::Result<()> {
        let Self { net, sequences, .. } = self;
        let mut ready = Vec::with_capacity(batch.len());
        for (sequence, state) in sequences.iter_mut().filter(|(_, state)| state.is_ready()) {
            if let Some((_, tree)) = batch.iter().find(|(other, _)| *other == sequence) {
                ready.push((state, *tree));
            }
        }
        loop {
            let mut states = Vec::new();
            let counts: Vec<usize> = ready
                .iter()
                .map(|(state, tree)| state.add_states(net, tree, &mut states))
                .collect();
            if states.is_empty() {
                break;
            }
            let mut levels = net.logits(states)?.into_iter();
            for ((state, _), count) in ready.iter_mut().zip(counts) {
                state.levels.extend(levels.by_ref().take(count));
            }
        }
        ready.into_iter().try_for_each(|(state, tree)| state.link(net, tree))
    }
}

impl Sequences for BlockHead {
    fn token_bytes(&self) -> u64 {
        self.net.decoder.token_bytes()
    }

    fn open(&mut self) -> Result<Sequence> {
        let cache = self.net.decoder.new_cache();
        Ok(self.sequences.open(SequenceState::new(cache)))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "draft head", vocabulary, got }.into());
        }
        self.sequences[sequence].extend(tokens.iter().copied());
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let width = self.net.feature_width;
        self.sequences[sequence].truncate(length, width);
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        let mut remaining = max_tokens;
        while remaining > 0 && self.sequences[sequence].unwritten() > 0 {
            let count = remaining.min(MAX_PASS_TOKENS);
            self.compute(&[sequence], count, false).map_err(|e| self.failed(e))?;
            remaining -= count;
        }
        Ok(self.sequences[sequence].unwritten())
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for (sequence, _) in batch {
            while self.sequences[*sequence].unwritten() > MAX_PASS_TOKENS {
                self.compute(&[*sequence], MAX_PASS_TOKENS, false).map_err(|e| self.failed(e))?;
            }
        }
        let unknown: Vec<Sequence> = batch
            .iter()
            .map(|(sequence, _)| *sequence)
            .filter(|sequence| self.sequences[*sequence].needs_block())
            .collect();
        if !unknown.is_empty() {
            self.compute(&unknown, MAX_PASS_TOKENS, true).map_err(|e| self.failed(e))?;
        }
        self.compute_logits(batch).map_err(|e| self.failed(e))
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.sequences[sequence].extend(path.iter().map(|&node| tree.token(node)));
        Ok(())
    }
}

impl Drafter for BlockHead {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.context
    }

    fn levels(&self) -> usize {
        self.net.levels()
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
        let received = self.sequences[sequence].received();
        if known <= received {
            return Ok(());
        }
        let (width, length) = (self.net.feature_width, self.len(sequence));
        let features = target_states(target, target_sequence, [received, known, length], width)?;
        self.sequences[sequence].receive(&features, width);
        Ok(())
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let tokens = &self.net.tokens;
        let uniform;
        let (tokens, logits) = match self.sequences[sequence].logits(node, tokens) {
            Some(found) => found,
            // An empty sequence, or a node below the last level: a uniform distribution.
            None => {
                uniform = vec![0.0; tokens.len()];
                (&tokens[..], &uniform[..])
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
