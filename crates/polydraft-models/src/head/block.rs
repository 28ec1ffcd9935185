//! Block heads: drafters of a few layers that predict a whole block of tokens in one pass.
//!
//! Problem: an EAGLE head computes one pass for each token of a path; its cost grows with depth.
//! Sources: Chen et al. 2026 (DFlash); what DSpark and DFlash-2 add to it, as their
//! published configurations and vLLM's and llama.cpp's forward passes say. See `net.rs` for what is
//! computed, and `link.rs` for how a block's tokens hang together.
//! Deviations: 1. Engines draw one chain from a block. Here every node of a tree gets its whole
//! distribution: that of its level, given its parent where the format has a link. So any number of
//! paths costs one pass, and every verifier works at every temperature. 2. A block is always
//! computed as long as it was trained, however shallow the tree is; logits are made for the levels
//! that are asked for. 3. Confidence heads are not read.
//! Complexity: one pass over the block and the new tokens, then the output matrix.

pub(super) mod config;
mod convolution;
mod link;
pub(crate) mod load;
mod net;
mod text;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{
    Drafter, DrafterInput, Error as EngineError, HiddenState, Model, Result, Sequence, Sequences,
    Slots,
};

use super::reads::states;
use crate::error;
use net::{Net, Work};
use text::Text;

/// Tokens of the context that one pass takes in at most.
const PASS: usize = 256;

/// A block head with the sequences that it drafts for.
#[derive(Debug)]
pub struct BlockHead {
    name: String,
    /// Tokens of the target.
    vocabulary: usize,
    context: usize,
    net: Net,
    texts: Slots<Text>,
}

impl BlockHead {
    fn new(name: String, vocabulary: usize, context: usize, net: Net) -> Self {
        Self { name, vocabulary, context, net, texts: Slots::default() }
    }

    /// The tokens that it can draft, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.net.tokens
    }

    /// The hidden states of the target that it reads, in order.
    pub fn hidden_states(&self) -> &[HiddenState] {
        &self.net.reads
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// Takes states of the target into the caches, at most so many of each of these sequences, and
    /// computes blocks where that is all.
    fn compute(&mut self, sequences: &[Sequence], most: usize, blocks: bool) -> error::Result<()> {
        let mut chosen: Vec<&mut Text> = Vec::with_capacity(sequences.len());
        for (sequence, text) in self.texts.iter_mut() {
            if sequences.contains(&sequence) {
                chosen.push(text);
            }
        }
        let width = self.net.features;
        let mut work: Vec<Work> =
            chosen.iter_mut().map(|text| text.work(width, most, blocks)).collect();
        let found = self.net.forward(&mut work)?;
        let taken: Vec<usize> = work.iter().map(|work| work.states).collect();
        drop(work);
        let mut found = found.chunks_exact(self.net.levels() * self.net.width());
        for (text, taken) in chosen.into_iter().zip(taken) {
            let is_whole = text.took(taken, width);
            if blocks && is_whole {
                text.found(found.next().unwrap_or_default().to_vec());
            }
        }
        Ok(())
    }

    /// Makes logits of levels, of all sequences in one product, and of nodes, of which there are
    /// none yet.
    fn read_out(&mut self, batch: &[(Sequence, &DraftTree)]) -> error::Result<()> {
        let Self { net, texts, .. } = self;
        let mut ready = Vec::with_capacity(batch.len());
        for (sequence, text) in texts.iter_mut().filter(|(_, text)| text.is_ready()) {
            if let Some((_, tree)) = batch.iter().find(|(own, _)| *own == sequence) {
                ready.push((text, *tree));
            }
        }
        loop {
            let mut states = Vec::new();
            let counts: Vec<usize> =
                ready.iter().map(|(text, tree)| text.add_states(net, tree, &mut states)).collect();
            if states.is_empty() {
                break;
            }
            let mut levels = net.read_out(states)?.into_iter();
            for ((text, _), count) in ready.iter_mut().zip(counts) {
                text.levels.extend(levels.by_ref().take(count));
            }
        }
        ready.into_iter().try_for_each(|(text, tree)| text.link(net, tree))
    }
}

impl Sequences for BlockHead {
    fn token_bytes(&self) -> u64 {
        self.net.decoder.token_bytes()
    }

    fn open(&mut self) -> Result<Sequence> {
        let cache = self.net.decoder.new_cache();
        Ok(self.texts.open(Text::new(cache)))
    }

    fn close(&mut self, sequence: Sequence) {
        self.texts.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.texts[sequence].len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "draft head", vocabulary, got }.into());
        }
        self.texts[sequence].extend(tokens.iter().copied());
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let width = self.net.features;
        self.texts[sequence].truncate(length, width);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let mut left = most;
        while left > 0 && self.texts[sequence].untaken() > 0 {
            let now = left.min(PASS);
            self.compute(&[sequence], now, false).map_err(|e| self.failed(e))?;
            left -= now;
        }
        Ok(self.texts[sequence].untaken())
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for (sequence, _) in batch {
            while self.texts[*sequence].untaken() > PASS {
                self.compute(&[*sequence], PASS, false).map_err(|e| self.failed(e))?;
            }
        }
        let unknown: Vec<Sequence> = batch
            .iter()
            .map(|(sequence, _)| *sequence)
            .filter(|sequence| self.texts[*sequence].wants_block())
            .collect();
        if !unknown.is_empty() {
            self.compute(&unknown, PASS, true).map_err(|e| self.failed(e))?;
        }
        self.read_out(batch).map_err(|e| self.failed(e))
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.texts[sequence].extend(path.iter().map(|&node| tree.token(node)));
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

    fn inputs(&self) -> DrafterInput {
        DrafterInput::HiddenStates
    }

    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        of: Sequence,
        known: usize,
    ) -> Result<()> {
        let told = self.texts[sequence].told();
        if known <= told {
            return Ok(());
        }
        let (width, length) = (self.net.features, self.len(sequence));
        let features = states(target, of, [told, known, length], width)?;
        self.texts[sequence].tell(&features, width);
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
        let unknown;
        let (tokens, logits) = match self.texts[sequence].logits(node, tokens) {
            Some(found) => found,
            // An empty sequence, or below the last level: any token, as good as another.
            None => {
                unknown = vec![0.0; tokens.len()];
                (&tokens[..], &unknown[..])
            }
        };
        let probs = Distribution::drafted(spare, self.vocabulary, Some(tokens), logits, sampling);
        probs.map_err(|source| EngineError::Logits {
            role: "draft",
            model: self.name.clone(),
            source,
        })
    }
}
