//! Draft heads: drafters of a few layers that read the target's hidden states (EAGLE), or its KV
//! cache too.
//!
//! A head is asked level by level like any drafter, and gives its whole distribution at every node,
//! over the target's vocabulary and zero outside of its own: every verifier works with it at every
//! temperature. Published engines propose its most likely tokens as if they were certain.

mod assistant;
pub(crate) mod block;
mod config;
pub(crate) mod describe;
pub(crate) mod further;
pub(crate) mod kind;
pub(crate) mod load;
mod net;
pub(crate) mod options;
mod reads;
mod source;
pub(crate) mod target;
mod text;
pub(crate) mod vocabulary;

use std::any::Any;
use std::ops::Range;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};
use polydraft_engine::{
    Drafter, DrafterInput, Error as EngineError, Model, Result, Sequence, Sequences, Slots,
};

use crate::error;
use crate::model::TransformerModel;
use net::{Found, Net};
use text::Text;

/// Tokens of a pass at most.
const PASS: usize = 256;

/// A head with the sequences that it drafts for.
#[derive(Debug)]
pub struct Head {
    name: String,
    /// Tokens of the target.
    vocabulary: usize,
    context: usize,
    net: Net,
    texts: Slots<Text>,
}

/// Slots of a sequence that a pass computes.
struct Work<'a> {
    sequence: Sequence,
    slots: Range<usize>,
    tree: &'a DraftTree,
}

impl Head {
    fn new(name: String, vocabulary: usize, context: usize, net: Net) -> Self {
        Self { name, vocabulary, context, net, texts: Slots::default() }
    }

    /// The tokens that it can draft, ascending.
    pub fn tokens(&self) -> &[Token] {
        &self.net.tokens
    }

    /// The hidden states of the target that it reads, in order.
    pub fn hidden_states(&self) -> &[polydraft_engine::HiddenState] {
        &self.net.reads
    }

    /// Bytes of the KV cache of all its sequences.
    pub fn cache_bytes(&self) -> usize {
        self.texts.iter().map(|(_, text)| text.cache_bytes()).sum()
    }

    fn text(&self, sequence: Sequence) -> &Text {
        &self.texts[sequence]
    }

    fn text_mut(&mut self, sequence: Sequence) -> &mut Text {
        &mut self.texts[sequence]
    }

    fn failed(&self, source: error::Error) -> EngineError {
        EngineError::Model { model: self.name.clone(), source: Box::new(source) }
    }

    /// One pass.
    fn compute(&mut self, work: &[Work]) -> error::Result<()> {
        let (width, reads) = (self.net.width(), self.net.features);
        let text = |sequence: Sequence| &self.texts[sequence];
        let told: Vec<f32> =
            work.iter().flat_map(|w| text(w.sequence).inputs(&w.slots, reads)).copied().collect();
        let combined = self.net.combine(told)?;
        let mut combined = &combined[..];
        let mut states =
            Vec::with_capacity(work.iter().map(|w| w.slots.len()).sum::<usize>() * width);
        for Work { sequence, slots, tree } in work {
            let own;
            (own, combined) =
                combined.split_at(text(*sequence).inputs(slots, reads).len() / reads * width);
            states.extend_from_slice(own);
            text(*sequence).add_states(slots, tree, width, &mut states);
        }
        let mut parts = Vec::with_capacity(work.len());
        let mut texts = self.texts.iter_mut();
        for Work { sequence, slots, tree } in work {
            if let Some((_, text)) = texts.find(|(own, _)| own == sequence) {
                parts.push(text.part(slots, tree));
            }
        }
        let Found { logits, states } = self.net.forward(&mut parts, states)?;
        let wanted: Vec<usize> = parts.iter().map(|part| part.wanted).collect();
        let (mut logits, mut states) = (&logits[..], &states[..]);
        for (Work { sequence, slots, .. }, wanted) in work.iter().zip(wanted) {
            let (own_logits, own_states);
            (own_logits, logits) = logits.split_at(wanted * self.net.tokens.len());
            (own_states, states) = states.split_at(wanted * width);
            self.texts[*sequence].computed(slots, own_logits, own_states, reads);
        }
        Ok(())
    }
}

impl Sequences for Head {
    fn token_bytes(&self) -> u64 {
        self.net.decoder.token_bytes()
    }

    fn open(&mut self) -> Result<Sequence> {
        let cache = self.net.decoder.new_cache();
        Ok(self.texts.open(Text::new(cache, self.net.follows())))
    }

    fn close(&mut self, sequence: Sequence) {
        self.texts.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.text(sequence).len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        let vocabulary = self.vocabulary;
        if let Some(&got) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(polydraft::Error::Token { operation: "draft head", vocabulary, got }.into());
        }
        self.text_mut(sequence).extend(tokens.iter().copied());
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let width = self.net.features;
        self.text_mut(sequence).truncate(length, width);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let tree = &DraftTree::new();
        let mut slots = self.text(sequence).unprepared(most);
        while !slots.is_empty() {
            let end = slots.end.min(slots.start + PASS);
            self.compute(&[Work { sequence, slots: slots.start..end, tree }])
                .map_err(|e| self.failed(e))?;
            slots.start = end;
        }
        Ok(self.text(sequence).unprepared(usize::MAX).len())
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let mut batch: Vec<_> = batch.to_vec();
        batch.sort_unstable_by_key(|(sequence, _)| *sequence);
        loop {
            let mut room = PASS;
            let mut work = Vec::with_capacity(batch.len());
            for &(sequence, tree) in &batch {
                let mut slots = self.text(sequence).ready(tree);
                slots.end = slots.end.min(slots.start + room);
                room -= slots.len();
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
        self.text_mut(sequence).extend(path.iter().map(|&node| tree.token(node)));
        Ok(())
    }
}

impl Drafter for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.context
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
        let told = self.text(sequence).told();
        if known <= told {
            return Ok(());
        }
        let (width, length) = (self.net.features, self.text(sequence).len());
        let features = reads::states(target, of, [told, known, length], width)?;
        if self.net.follows() {
            let target = (target as &dyn Any).downcast_ref::<TransformerModel>();
            let Some(target) = target else {
                return Err(EngineError::Setting {
                    setting: "target of an assistant",
                    expected: "one of the same backend, whose KV cache it reads",
                    got: "another".to_owned(),
                });
            };
            self.text_mut(sequence).follow(target.beginning(of, known));
        }
        self.text_mut(sequence).tell(&features, width);
        Ok(())
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let (text, tokens) = (self.text(sequence), &self.net.tokens);
        let unknown;
        let logits = match text.root() {
            Some(_) => text.logits(node, tokens.len()),
            // A sequence of one token gives nothing to predict from: any token, as good as another.
            None => {
                unknown = vec![0.0; tokens.len()];
                &unknown
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
