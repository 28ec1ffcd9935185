//! Drafting by n-grams of the sequence itself.
//!
//! Problem: propose the next token from the prompt and the output so far, without a model; and give
//! a probability to each token, so that every verifier works with it at every temperature. Engines
//! that look n-grams up propose one token as if it were certain.
//! Source: prediction by partial matching (Cleary and Witten 1984), from the longest context that
//! occurred before to the shortest, with its exclusion: a shorter context says what comes if it is
//! none of what followed the longer ones. Prompt lookup (Saxena 2023) is its deterministic special
//! case.
//! Method: with e_n the empirical distribution of those tokens that followed the last n tokens and
//! none of the longer contexts, and w_n the probability that what comes is one of them if it is
//! none of those before,
//!     P_n = w_n·e_n + (1 − w_n)·P_(n−1),
//! worked out from the longest context down, until next to nothing is left for shorter ones; the
//! sequence's own counts precede a corpus's at every length.
//! Complexity: one look-up per length, and the tokens that followed these contexts.
//! Deviations:
//! 1. w_n (one less than their probability of an escape) is counted as the sequence grows, by
//!    length and by how often and how variously the context was followed, with its values in other
//!    sequences as a prior (`mixture.rs`).
//! 2. The draft distribution is P², scaled to one: an overconfident draft is accepted more often,
//!    for the target's distribution is often concentrated where P is not. Overlap with the target's
//!    distribution, SmolLM2's chats, code and repeating text at temperature 1: 0.084, 0.134, 0.307
//!    with P², 0.076, 0.131, 0.290 with P.
//! 3. What the target wrote or said before ([`NgramTable`], [`LearningNgrams`]) is merged with what
//!    the sequence says after contexts as long as the table's or shorter (`merged.rs`), and that
//!    with P by what either foretold of the sequence so far (`trust.rs`). Then the power is 1.4.
//! 4. The confidence ([`Distribution::confidence`]) is the probability of a token so drafted under
//!    P, not under its square.

mod counts;
mod hash;
mod learning;
mod merged;
mod mixture;
mod source_weights;
mod table;

use std::path::PathBuf;
use std::sync::Arc;

use polydraft::{Distribution, DraftTree, NodeId, Sampling, Token};
use serde::{Deserialize, Serialize};

use super::{Drafter, DrafterSettings};
use crate::{ModelInfo, Result, Sequence, Sequences, Slots};
use counts::Counts;
pub use learning::{LEARNED_TOP_K, LearningNgrams};
use merged::{ContextTable, predict};
use mixture::{HitRates, Sources};
use source_weights::SourceWeights;
pub use table::{NgramLearner, NgramTable};

/// Settings of the drafter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Tokens of the longest context, from 1 to 16. Default 8.
    pub order: usize,
    /// Tokens of a corpus whose n-grams every sequence uses too, such as a file of the same kind.
    /// Not part of a record.
    #[serde(skip)]
    pub corpus: Vec<Token>,
    /// N-grams of what the target itself wrote. Not part of a record.
    #[serde(skip)]
    pub shared: Option<SharedNgrams>,
    /// Where the corpus or the table came from, for records.
    pub corpus_file: Option<PathBuf>,
}

/// N-grams that are known besides those of a sequence and a corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedNgrams {
    /// A table, as it is.
    Table(Arc<NgramTable>),
    /// A table that grows by what the target says.
    Learning(LearningNgrams),
}

impl SharedNgrams {
    /// Calls `then` with what is known now.
    fn with<T>(&self, then: impl FnOnce(&dyn ContextTable) -> T) -> T {
        match self {
            Self::Table(table) => then(table.as_ref()),
            Self::Learning(ngrams) => then(&*ngrams.read()),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self { order: 8, corpus: Vec::new(), shared: None, corpus_file: None }
    }
}

impl DrafterSettings for Settings {
    fn build(&self, target: &ModelInfo) -> Result<Box<dyn Drafter>> {
        if !(1..=16).contains(&self.order) {
            let got = self.order.to_string();
            return Err(polydraft::Error::Setting {
                setting: "order of n-grams",
                expected: "from 1 to 16",
                got,
            }
            .into());
        }
        let vocabulary = target.vocabulary.size();
        let mut drafter = NgramDrafter {
            vocabulary,
            order: self.order,
            corpus: Counts::new(self.order),
            shared: self.shared.clone(),
            sequences: Slots::default(),
        };
        match &self.shared {
            Some(SharedNgrams::Table(table)) => table.check(&target.vocabulary)?,
            Some(SharedNgrams::Learning(ngrams)) => ngrams.read().check(&target.vocabulary)?,
            None => {}
        }
        drafter.check(&self.corpus)?;
        for end in 0..self.corpus.len() {
            drafter.corpus.add(&self.corpus[..end], self.corpus[end]);
        }
        Ok(Box::new(drafter))
    }
}

/// The power of P in the draft distribution; with a table, which has the target's own
/// distributions, a smaller one.
const SHARPENING: f32 = 2.0;
const SHARPENING_WITH_TABLE: f32 = 1.4;

struct NgramDrafter {
    vocabulary: usize,
    order: usize,
    corpus: Counts,
    shared: Option<SharedNgrams>,
    sequences: Slots<SequenceState>,
}

/// One sequence.
struct SequenceState {
    tokens: Vec<Token>,
    /// How many of them are counted.
    counted: usize,
    counts: Counts,
    /// The weights w_n of the sequence's own counts and of the corpus's so far.
    hit_rates: HitRates,
    corpus_hit_rates: HitRates,
    /// In these counts, where something is known besides.
    source_weights: SourceWeights,
    /// The last tokens before each node that is ready, by node, its own among them.
    scored: Vec<Vec<Token>>,
}

impl SequenceState {
    fn new(order: usize) -> Self {
        Self {
            tokens: Vec::new(),
            counted: 0,
            counts: Counts::new(order),
            hit_rates: HitRates::new(order),
            corpus_hit_rates: HitRates::new(order),
            source_weights: SourceWeights::new(),
            scored: Vec::new(),
        }
    }
}

impl NgramDrafter {
    fn check(&self, tokens: &[Token]) -> Result<()> {
        match tokens.iter().find(|token| **token as usize >= self.vocabulary) {
            None => Ok(()),
            Some(&got) => {
                let (operation, vocabulary) = ("n-gram drafter", self.vocabulary);
                Err(polydraft::Error::Token { operation, vocabulary, got }.into())
            }
        }
    }

    /// Counts at most so many tokens that are not yet; returns how many are left.
    fn count(&mut self, sequence: Sequence, most: usize) -> usize {
        let Self { corpus, shared, sequences, .. } = self;
        let SequenceState {
            tokens,
            counted,
            counts,
            hit_rates,
            corpus_hit_rates,
            source_weights,
            ..
        } = &mut sequences[sequence];
        for position in *counted..tokens.len().min(counted.saturating_add(most)) {
            let (before, token) = (&tokens[..position], tokens[position]);
            let sources =
                Sources { counts: [counts, corpus], hit_rates: [hit_rates, corpus_hit_rates] };
            if let Some(shared) = shared {
                let prediction = shared.with(|table| predict(before, table, &sources.counts));
                source_weights.learn(&sources.mixture(before), &prediction, token);
            }
            let cases = sources.cases(before, token);
            cases
                .iter()
                .for_each(|case| [&mut *hit_rates, corpus_hit_rates][case.source].learn(case));
            counts.add(before, token);
            *counted = position + 1;
        }
        tokens.len() - *counted
    }

    fn append(&mut self, sequence: Sequence, tokens: impl IntoIterator<Item = Token>) {
        let state = &mut self.sequences[sequence];
        state.tokens.extend(tokens);
        state.scored.clear();
    }
}

impl Sequences for NgramDrafter {
    fn open(&mut self) -> Result<Sequence> {
        Ok(self.sequences.open(SequenceState::new(self.order)))
    }

    fn close(&mut self, sequence: Sequence) {
        self.sequences.close(sequence);
    }

    fn len(&self, sequence: Sequence) -> usize {
        self.sequences[sequence].tokens.len()
    }

    fn extend(&mut self, sequence: Sequence, tokens: &[Token]) -> Result<()> {
        self.check(tokens)?;
        self.append(sequence, tokens.iter().copied());
        Ok(())
    }

    fn truncate(&mut self, sequence: Sequence, length: usize) {
        let context = &mut self.sequences[sequence];
        if length >= context.tokens.len() {
            return;
        }
        context.tokens.truncate(length);
        context.scored.clear();
        if length < context.counted {
            // The counts of later tokens cannot be taken out: all is counted anew.
            let tokens = std::mem::take(&mut context.tokens);
            *context = SequenceState { tokens, ..SequenceState::new(self.order) };
        }
    }

    fn prepare(&mut self, sequence: Sequence, most: usize) -> Result<usize> {
        Ok(self.count(sequence, most))
    }

    fn score(&mut self, batch: &[(Sequence, &DraftTree)]) -> Result<()> {
        let order = self.order;
        for (sequence, tree) in batch {
            self.count(*sequence, usize::MAX);
            let state = &mut self.sequences[*sequence];
            for node in state.scored.len()..tree.len() {
                let mut last = match node {
                    DraftTree::ROOT => {
                        state.tokens[state.tokens.len().saturating_sub(order)..].to_vec()
                    }
                    _ => {
                        let mut last = state.scored[tree.parent(node)].clone();
                        last.push(tree.token(node));
                        last
                    }
                };
                last.drain(..last.len().saturating_sub(order));
                state.scored.push(last);
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: Sequence, tree: &DraftTree, path: &[NodeId]) -> Result<()> {
        self.append(sequence, path.iter().map(|&node| tree.token(node)));
        Ok(())
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &str {
        "ngram"
    }

    fn context(&self) -> usize {
        usize::MAX
    }

    fn learning_ngrams(&self) -> Option<&LearningNgrams> {
        match &self.shared {
            Some(SharedNgrams::Learning(ngrams)) => Some(ngrams),
            _ => None,
        }
    }

    fn distribution(
        &self,
        sequence: Sequence,
        node: NodeId,
        sampling: &Sampling,
        spare: Option<Distribution>,
    ) -> Result<Distribution> {
        let state = &self.sequences[sequence];
        let (counts, hit_rates) =
            ([&state.counts, &self.corpus], [&state.hit_rates, &state.corpus_hit_rates]);
        let sources = Sources { counts, hit_rates };
        let last = &state.scored[node];
        let mixture = sources.mixture(last);
        let (probs, sharpening) = match &self.shared {
            None => (mixture.distribution(), SHARPENING),
            Some(shared) => {
                let prediction = shared.with(|table| predict(last, table, &counts));
                (state.source_weights.mixed(mixture, prediction), SHARPENING_WITH_TABLE)
            }
        };
        let tokens: Vec<Token> = probs.iter().map(|(token, _)| *token).collect();
        let logits: Vec<f32> = probs.iter().map(|(_, p)| sharpening * p.ln() as f32).collect();
        if tokens.is_empty() {
            // Nothing is counted: the uniform distribution.
            let probs = vec![1.0 / self.vocabulary as f64; self.vocabulary];
            return Ok(Distribution::new(probs)?);
        }
        let drafted = Distribution::from_logits_reusing(
            spare,
            self.vocabulary,
            Some(&tokens),
            &logits,
            sampling,
        )?;
        let confidence = probs.iter().map(|(token, p)| p * drafted.probability(*token)).sum();
        Ok(drafted.with_confidence(confidence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vocabulary;

    fn drafter(settings: &Settings) -> Box<dyn Drafter> {
        let info = ModelInfo {
            name: "t".to_owned(),
            vocabulary: Vocabulary::numbered(10),
            context: 100,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: 1,
        };
        settings.build(&info).unwrap()
    }

    fn next(drafter: &mut dyn Drafter, sequence: Sequence, sampling: &Sampling) -> Distribution {
        drafter.score(&[(sequence, &DraftTree::new())]).unwrap();
        drafter.distribution(sequence, 0, sampling, None).unwrap()
    }

    #[test]
    fn what_was_said_is_expected_again_and_more_so_each_time() {
        let mut drafter = drafter(&Settings::default());
        let sequence = drafter.open().unwrap();
        let even = next(drafter.as_mut(), sequence, &Sampling::default());
        assert!((even.probability(3) - 0.1).abs() < 1e-12);
        let line = [1, 2, 3, 4, 5, 6];
        let mut last = 0.0;
        for round in 0..4 {
            drafter.extend(sequence, &line).unwrap();
            drafter.extend(sequence, &[1, 2, 3]).unwrap();
            let probs = next(drafter.as_mut(), sequence, &Sampling::default());
            assert!((probs.to_vec().iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(probs.probability(4) > last - 1e-6, "{round}: {} {last}", probs.probability(4));
            assert_eq!(probs.probability(9), 0.0);
            last = probs.probability(4);
            drafter.extend(sequence, &[4, 5, 6]).unwrap();
        }
        assert!(last > 0.9, "{last}");
        let cold =
            next(drafter.as_mut(), sequence, &Sampling { temperature: 0.0, ..Sampling::default() });
        assert_eq!((cold.support_size(), cold.probability(1)), (1, 1.0));
    }

    /// Of what came behind 1 half was 2: that is how sure it is, though it drafts what came more
    /// often with more than half.
    #[test]
    fn it_is_as_sure_as_it_was_right() {
        let mut drafter = drafter(&Settings { order: 2, ..Settings::default() });
        let sequence = drafter.open().unwrap();
        let mut other = 0;
        for round in 0..300_u32 {
            // Before 1 stands something else each time, so that longer contexts say nothing.
            other = (other + 3) % 5;
            let next = if round % 2 == 0 { 2 } else { 3 + round % 7 };
            drafter.extend(sequence, &[5 + other, 1, next]).unwrap();
        }
        drafter.extend(sequence, &[4, 1]).unwrap();
        for (temperature, most) in [(1.0, 0.95), (0.0, 1.0)] {
            let probs =
                next(drafter.as_mut(), sequence, &Sampling { temperature, ..Sampling::default() });
            assert!(
                probs.argmax() == 2 && probs.probability(2) > 0.7 && probs.probability(2) <= most,
                "{probs:?}"
            );
            assert!(
                (probs.confidence() - 0.5).abs() < 0.12,
                "at {temperature}: {}",
                probs.confidence()
            );
        }
    }

    #[test]
    fn nodes_of_a_tree_have_their_own_contexts() {
        let mut drafter = drafter(&Settings { order: 2, ..Settings::default() });
        let sequence = drafter.open().unwrap();
        drafter.extend(sequence, &[7, 1, 8, 7, 2, 9, 7]).unwrap();
        let mut tree = DraftTree::new();
        let (one, two) = (tree.add(0, 1), tree.add(0, 2));
        drafter.score(&[(sequence, &tree)]).unwrap();
        let probs =
            |node| drafter.distribution(sequence, node, &Sampling::default(), None).unwrap();
        assert_eq!((probs(one).argmax(), probs(two).argmax()), (8, 9));
        drafter.commit(sequence, &tree, &[two]).unwrap();
        assert_eq!(drafter.len(sequence), 8);
        assert_eq!(next(drafter.as_mut(), sequence, &Sampling::default()).argmax(), 9);
    }

    /// As if what was taken back had never been read.
    #[test]
    fn tokens_that_are_taken_back_leave_no_trace() {
        let mut drafter = drafter(&Settings::default());
        let (cut, full) = (drafter.open().unwrap(), drafter.open().unwrap());
        drafter.extend(cut, &[7, 1, 8, 7, 1, 9, 7, 1]).unwrap();
        next(drafter.as_mut(), cut, &Sampling::default());
        for (length, tokens) in [(5, &[2, 7][..]), (9, &[])] {
            drafter.truncate(cut, length);
            drafter.extend(cut, tokens).unwrap();
        }
        drafter.extend(full, &[7, 1, 8, 7, 1, 2, 7]).unwrap();
        assert_eq!(drafter.len(cut), 7);
        let distributions = [cut, full]
            .map(|sequence| next(drafter.as_mut(), sequence, &Sampling::default()).to_vec());
        assert_eq!(distributions[0], distributions[1]);
    }

    #[test]
    fn a_corpus_is_quoted_and_bad_tokens_are_refused() {
        let corpus = Settings { corpus: vec![3, 1, 4, 1, 5, 9, 2, 6], ..Settings::default() };
        let mut drafter = drafter(&corpus);
        let sequence = drafter.open().unwrap();
        drafter.extend(sequence, &[1, 5, 9]).unwrap();
        assert_eq!(next(drafter.as_mut(), sequence, &Sampling::default()).argmax(), 2);
        assert!(drafter.extend(sequence, &[10]).is_err());
        let info = ModelInfo {
            name: "t".to_owned(),
            vocabulary: Vocabulary::numbered(3),
            context: 9,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: 1,
        };
        assert!(corpus.build(&info).is_err());
        assert!(Settings { order: 0, ..Settings::default() }.build(&info).is_err());
    }

    /// What the sequence itself said is merged with what the table knows.
    #[test]
    fn a_table_stands_behind_the_sequence() {
        let mut learner = NgramLearner::new(&Vocabulary::numbered(10));
        (0..20).for_each(|_| learner.learn(&[1], &[(2, 0.9), (3, 0.1)]));
        let shared = Some(SharedNgrams::Table(Arc::new(learner.table())));
        let mut drafter = drafter(&Settings { shared, ..Settings::default() });
        let sequence = drafter.open().unwrap();
        drafter.extend(sequence, &[7, 8, 1]).unwrap();
        let probs = next(drafter.as_mut(), sequence, &Sampling::default());
        assert!(probs.argmax() == 2 && probs.probability(2) > 0.8, "{probs:?}");
        // The sequence, which never repeated itself, is half trusted to do so.
        assert!((0.6..0.9).contains(&probs.confidence()), "{}", probs.confidence());
        for _ in 0..4 {
            drafter.extend(sequence, &[5, 7, 8, 1]).unwrap();
        }
        let probs = next(drafter.as_mut(), sequence, &Sampling::default());
        assert_eq!(probs.argmax(), 5, "{probs:?}");
        let sum: f64 = probs.to_vec().iter().sum();
        assert!((sum - 1.0).abs() < 1e-12 && probs.probability(2) > 0.0, "{probs:?}");
    }
}
