//! A drafter whose distribution is mixed with that of n-grams of the sequence.
//!
//! Problem: a head or a small model does not copy; n-grams of the text so far do nothing else. Two
//! drafters in one tree cost nodes ([`SeveralDrafters`]); one distribution of both costs none.
//! Method: at a node with the draft's q, the n-grams' g and their confidence c, how likely the
//! token that they draft is right,
//!     (1 − c)·q + c·g:
//! the confidence is small where nothing was said before. At temperature 0, where both are certain
//! of a token, that of the larger confidence. Drafts are drawn from what verifiers are told, so the
//! output has the target's distribution whatever c is.
//! Complexity: a pass over the tokens of q, where c is not next to nothing.

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::{Drafter, DrafterInput, SeveralDrafters};
use crate::{Model, Result, Sequence, Sequences};

/// Shares of n-grams below this are left out.
const LEAST: f64 = 0.02;

/// A drafter with n-grams mixed in.
pub struct MixedDrafter {
    both: SeveralDrafters,
    name: String,
}

impl MixedDrafter {
    /// Of a drafter and of n-grams for the same target; nothing was asked of either yet.
    ///
    /// # Errors
    /// None: two drafters are enough.
    pub fn new(drafter: Box<dyn Drafter>, ngrams: Box<dyn Drafter>) -> Result<Self> {
        let name = format!("{} with {}", drafter.name(), ngrams.name());
        Ok(Self { both: SeveralDrafters::new(vec![drafter, ngrams])?, name })
    }
}

impl Sequences for MixedDrafter {
    fn open(&mut self) -> Result<Sequence> {
        self.both.open()
    }

    fn close(&mut self, sequence: Sequence) {
        self.both.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.both.len(sequence)
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.both.extend(sequence, tokens)
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.both.truncate(sequence, length);
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        self.both.prepare(sequence, most)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        self.both.score(batch)
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.both.commit(sequence, tree, path)
    }

    fn state_bytes(&self) -> u64 {
        self.both.state_bytes()
    }

    fn token_bytes(&self) -> u64 {
        self.both.token_bytes()
    }

    fn room(&self) -> Option<usize> {
        self.both.room()
    }
}

impl Drafter for MixedDrafter {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.both.context()
    }

    fn sequences(&self) -> usize {
        self.both.sequences()
    }

    fn attach(&mut self, target: &dyn Model) {
        self.both.attach(target);
    }

    fn inputs(&self) -> DrafterInput {
        self.both.inputs()
    }

    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        of: Sequence,
        known: usize,
    ) -> Result<()> {
        self.both.sync_target(sequence, target, of, known)
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let own = self.both.distribution_of(0, sequence, node, sampling, spare)?;
        let ngrams = self.both.distribution_of(1, sequence, node, sampling, None)?;
        mixed(own, ngrams, sampling)
    }
}

fn mixed(own: Distribution, ngrams: Distribution, sampling: &Sampling) -> Result<Distribution> {
    let share = ngrams.confidence();
    if sampling.temperature == 0.0 {
        return Ok(if share > own.confidence() { ngrams } else { own });
    }
    if share < LEAST {
        return Ok(own);
    }
    let confidence = (1.0 - share) * own.confidence() + share * share;
    Ok(own.mixed(&ngrams, share)?.with_confidence(confidence))
}
