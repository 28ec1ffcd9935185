//! A language model as a drafter.

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::{Drafter, DrafterInput};
use crate::{Error, Model, Result, Sequence, Sequences, Vocabulary};

/// A draft model with the target's vocabulary.
pub struct ModelDrafter {
    model: Box<dyn Model>,
    /// Whether the model reads the target's KV cache.
    shares_kv_cache: bool,
}

impl ModelDrafter {
    /// Checks that the model has the target's vocabulary.
    ///
    /// # Errors
    /// Different vocabularies; the message names the first token that differs.
    pub fn new(model: Box<dyn Model>, target: &Vocabulary) -> Result<Self> {
        target.check_draft(&model.info().vocabulary)?;
        Ok(Self { model, shares_kv_cache: false })
    }
}

impl Sequences for ModelDrafter {
    fn open(&mut self) -> Result<Sequence> {
        self.model.open()
    }

    fn close(&mut self, sequence: Sequence) {
        self.model.close(sequence);
    }

    fn token_bytes(&self) -> u64 {
        // With a shared KV cache the tokens are stored in the target.
        if self.shares_kv_cache { 0 } else { self.model.token_bytes() }
    }

    fn state_bytes(&self) -> u64 {
        self.model.state_bytes()
    }

    fn token_capacity(&self) -> Option<usize> {
        self.model.token_capacity()
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.model.len(sequence)
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.model.extend(sequence, tokens)
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.model.truncate(sequence, length);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        // A shared KV cache needs no prefill, and a model never drafts beyond its context.
        if self.shares_kv_cache || self.model.len(sequence) > self.model.info().context {
            return Ok(0);
        }
        self.model.prepare(sequence, most)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.model.score(batch)
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.model.commit(sequence, tree, path)
    }
}

impl Drafter for ModelDrafter {
    fn name(&self) -> &str {
        &self.model.info().name
    }

    fn context(&self) -> usize {
        self.model.info().context
    }

    fn max_sequences(&self) -> usize {
        self.model.info().max_sequences
    }

    fn attach(&mut self, target: &dyn Model) {
        let follower = self.model.as_kv_cache_follower();
        self.shares_kv_cache = follower.is_some_and(|model| model.follow_kv_cache(target));
    }

    fn input(&self) -> DrafterInput {
        if self.shares_kv_cache { DrafterInput::KvCache } else { DrafterInput::Tokens }
    }

    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        target_sequence: Sequence,
        known: usize,
    ) -> Result<()> {
        match self.model.as_kv_cache_follower() {
            Some(model) => model.sync_kv_cache(sequence, target, target_sequence, known),
            None => Ok(()),
        }
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        distribution_of(&*self.model, sequence, node, sampling, spare)
    }
}

/// Returns a draft model's next-token distribution after a scored node, over its own vocabulary.
///
/// # Errors
/// Logits that are not a valid distribution.
pub(super) fn distribution_of(
    model: &dyn Model,
    sequence: Sequence,
    node: NodeId,
    sampling: &Sampling,
    spare: Option<Distribution>,
) -> Result<Distribution> {
    let (logits, info) = (model.logits(sequence, node), model.info());
    let probs =
        Distribution::for_draft(spare, info.vocabulary.size(), model.outputs(), logits, sampling);
    probs.map_err(|source| Error::Logits { role: "draft", model: info.name.clone(), source })
}
