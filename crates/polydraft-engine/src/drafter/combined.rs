//! Several drafters combined into one: each draws its own paths in a shared tree, or n-grams are
//! mixed into the distribution of another drafter.
//!
//! Problem: use drafts of different models, of a head and of n-grams, or of a model and of the
//! target's own weights in the tree of one pass.
//! Source: Miao et al. 2023 (SpecInfer), trees merged from several small models; Khisti et al.
//! 2025, section 5, distinct drafts.
//! Complexity: the sum over all drafters.
//! Deviations: 1. every drafter scores all nodes of the tree, also those that only paths of another
//! one reach.

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};

use super::mixed::mixed;
use super::ngram::LearningNgrams;
use super::{Drafter, DrafterInput};
use crate::{Error, Model, Result, Sequence, Sequences, Slots};

/// At least two drafters of one target, in the order of the drafts of a `distinct` tree.
pub struct CombinedDrafter {
    drafters: Vec<Box<dyn Drafter>>,
    name: String,
    /// Whether the second drafter's distributions are mixed into the first one's.
    mixes_ngrams: bool,
    /// Each drafter's sequence, by combined sequence.
    sequences: Slots<Vec<Sequence>>,
}

impl CombinedDrafter {
    /// Combines drafters that have no open sequence.
    ///
    /// # Errors
    /// Fewer than two drafters.
    pub fn new(drafters: Vec<Box<dyn Drafter>>) -> Result<Self> {
        if drafters.len() < 2 {
            return Err(Error::Setting {
                setting: "drafters",
                expected: "at least two",
                got: drafters.len().to_string(),
            });
        }
        let names: Vec<&str> = drafters.iter().map(|drafter| drafter.name()).collect();
        let name = names.join(" + ");
        Ok(Self { drafters, name, mixes_ngrams: false, sequences: Slots::default() })
    }

    /// Mixes n-grams into a drafter's distribution; the result counts as one drafter.
    pub fn with_ngrams(drafter: Box<dyn Drafter>, ngrams: Box<dyn Drafter>) -> Self {
        let name = format!("{} with {}", drafter.name(), ngrams.name());
        let drafters = vec![drafter, ngrams];
        Self { drafters, name, mixes_ngrams: true, sequences: Slots::default() }
    }

    fn distribution_of_drafter(
        &self,
        number: usize,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let sequence = self.sequences[sequence][number];
        self.drafters[number].distribution(sequence, node, sampling, spare)
    }

    /// Each drafter with its sequence.
    fn with_sequences(
        &mut self,
        sequence: Sequence,
    ) -> impl Iterator<Item = (&mut Box<dyn Drafter>, Sequence)> {
        let sequences = &self.sequences[sequence];
        self.drafters.iter_mut().zip(sequences.iter().copied())
    }
}

impl Sequences for CombinedDrafter {
    fn open(&mut self) -> Result<Sequence> {
        let mut opened = Vec::with_capacity(self.drafters.len());
        for at in 0..self.drafters.len() {
            match self.drafters[at].open() {
                Ok(sequence) => opened.push(sequence),
                Err(error) => {
                    for (drafter, sequence) in self.drafters.iter_mut().zip(opened) {
                        drafter.close(sequence);
                    }
                    return Err(error);
                }
            }
        }
        Ok(self.sequences.open(opened))
    }

    fn close(&mut self, sequence: Sequence) {
        for (drafter, sequence) in
            self.drafters.iter_mut().zip(self.sequences.close(sequence).into_iter().flatten())
        {
            drafter.close(sequence);
        }
    }

    /// Returns an impossible length if the drafters' lengths differ, because one failed and others
    /// did not.
    fn len(&self, sequence: Sequence) -> usize {
        let pairs = self.drafters.iter().zip(&self.sequences[sequence]);
        let mut lengths = pairs.map(|(drafter, sequence)| drafter.len(*sequence));
        let first = lengths.next().unwrap_or(0);
        if lengths.all(|length| length == first) { first } else { usize::MAX }
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.with_sequences(sequence)
            .try_for_each(|(drafter, sequence)| drafter.extend(sequence, tokens))
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        self.with_sequences(sequence)
            .for_each(|(drafter, sequence)| drafter.truncate(sequence, length));
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        let mut left = 0;
        for (drafter, sequence) in self.with_sequences(sequence) {
            left = left.max(drafter.prepare(sequence, most)?);
        }
        Ok(left)
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        for (number, drafter) in self.drafters.iter_mut().enumerate() {
            let batch: Vec<(Sequence, &DraftTree)> = batch
                .iter()
                .map(|(sequence, tree)| (self.sequences[*sequence][number], *tree))
                .collect();
            drafter.score(&batch)?;
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.with_sequences(sequence)
            .try_for_each(|(drafter, sequence)| drafter.commit(sequence, tree, path))
    }

    fn state_bytes(&self) -> u64 {
        self.drafters.iter().map(|drafter| drafter.state_bytes()).sum()
    }

    fn token_bytes(&self) -> u64 {
        self.drafters.iter().map(|drafter| drafter.token_bytes()).sum()
    }

    fn token_capacity(&self) -> Option<usize> {
        self.drafters.iter().filter_map(|drafter| drafter.token_capacity()).min()
    }
}

impl Drafter for CombinedDrafter {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.context()).min().unwrap_or(0)
    }

    fn levels(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.levels()).min().unwrap_or(0)
    }

    fn max_sequences(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.max_sequences()).min().unwrap_or(0)
    }

    fn drafter_count(&self) -> usize {
        if self.mixes_ngrams { 1 } else { self.drafters.len() }
    }

    fn learning_ngrams(&self) -> Option<&LearningNgrams> {
        self.drafters.iter().find_map(|drafter| drafter.learning_ngrams())
    }

    fn make_reproducible(&mut self, sequence: Sequence) {
        self.with_sequences(sequence)
            .for_each(|(drafter, sequence)| drafter.make_reproducible(sequence));
    }

    fn may_be_late(&self) -> bool {
        self.drafters.iter().any(|drafter| drafter.may_be_late())
    }

    fn is_ready(&self, sequence: Sequence) -> bool {
        let mut pairs = self.drafters.iter().zip(&self.sequences[sequence]);
        pairs.any(|(drafter, sequence)| drafter.is_ready(*sequence))
    }

    fn take_warning(&mut self) -> Option<String> {
        self.drafters.iter_mut().find_map(|drafter| drafter.take_warning())
    }

    fn attach(&mut self, target: &dyn Model) {
        self.drafters.iter_mut().for_each(|drafter| drafter.attach(target));
    }

    /// Hidden states are synchronized during the prefill, a KV cache only before drafting. A
    /// drafter that reads hidden states needs the earlier call; the KV cache is available then too.
    fn input(&self) -> DrafterInput {
        let any = |input| self.drafters.iter().any(|drafter| drafter.input() == input);
        match () {
            () if any(DrafterInput::HiddenStates) => DrafterInput::HiddenStates,
            () if any(DrafterInput::KvCache) => DrafterInput::KvCache,
            () => DrafterInput::Tokens,
        }
    }

    fn sync_target(
        &mut self,
        sequence: Sequence,
        target: &dyn Model,
        target_sequence: Sequence,
        known: usize,
    ) -> Result<()> {
        let needs_target = |drafter: &dyn Drafter| drafter.input() != DrafterInput::Tokens;
        self.with_sequences(sequence)
            .filter(|(drafter, _)| needs_target(drafter.as_ref()))
            .try_for_each(|(drafter, sequence)| {
                drafter.sync_target(sequence, target, target_sequence, known)
            })
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        self.distribution_from(0, sequence, node, sampling, spare)
    }

    fn distribution_from(
        &self,
        number: usize,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let draft = self.distribution_of_drafter(number, sequence, node, sampling, spare)?;
        if !self.mixes_ngrams {
            return Ok(draft);
        }
        mixed(draft, self.distribution_of_drafter(1, sequence, node, sampling, None)?, sampling)
    }
}
