//! Drafting by n-grams of the sequence itself.
//!
//! Problem: propose the next token from the prompt and the output so far, without a model, and with
//! a probability for each token, so that every verifier works at every temperature. Engines with
//! n-gram look-up propose one token as if it were certain.
//! Source: prediction by partial matching (Cleary and Witten 1984), from the longest context that
//! occurred before to the shortest, with its exclusion: a shorter context predicts only tokens that
//! followed none of the longer ones. Prompt lookup (Saxena 2023) is its deterministic special case.
//! Method: let e_n be the empirical distribution of the tokens that followed the last n tokens and
//! none of the longer contexts, and w_n the probability that the next token is one of them if it
//! followed none of the longer contexts:
//!     P_n = w_n·e_n + (1 − w_n)·P_(n−1),
//! evaluated from the longest context down until the remaining mass is negligible; at every length
//! the sequence's own counts precede those of a corpus.
//! Complexity: one look-up per length, and the tokens that followed these contexts.
//! Deviations:
//! 1. w_n (one minus the escape probability of Cleary and Witten) is estimated as the sequence
//!    grows, by context length and by how often and how variously the context was followed, with
//!    its values in other sequences as a prior (`mixture.rs`).
//! 2. The draft distribution is P², normalized: an overconfident draft is accepted more often,
//!    because the target's distribution is often concentrated where P is not. The overlap with the
//!    target's distribution, Σ min(p, q), in SmolLM2's chats, code and repeating text at
//!    temperature 1, is 0.084, 0.134 and 0.307 with P², and 0.076, 0.131 and 0.290 with P.
//! 3. A table of the target's earlier output ([`NgramTable`], [`LearningNgrams`]) is merged with
//!    the sequence's counts of contexts up to the table's length (`merged.rs`), and the result with
//!    P, weighted by how well each predicted the sequence so far (`source_weights.rs`). The
//!    exponent is then 1.4 instead of 2.
//! 4. The confidence ([`Distribution::confidence`]) is the probability of the drafted token under
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
    /// Tokens of the longest context, 1 to 16; default 8.
    pub order: usize,
    /// Tokens of a corpus, such as a similar file, whose n-grams every sequence also uses. Not
    /// serialized.
    #[serde(skip)]
    pub corpus: Vec<Token>,
    /// N-grams of the target's own output. Not serialized.
    #[serde(skip)]
    pub shared: Option<SharedNgrams>,
    /// File of the corpus or of the table, for records.
    pub corpus_file: Option<PathBuf>,
}

/// N-grams shared by all sequences, in addition to those of a sequence and of a corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedNgrams {
    /// A fixed table.
    Table(Arc<NgramTable>),
    /// A table that learns from the target's output.
    Learning(LearningNgrams),
}

impl SharedNgrams {
    /// Calls `then` with the current table.
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

/// Exponents of P in the draft distribution. The exponent is smaller with a table, which stores the
/// target's own distributions.
const SHARPENING: f32 = 2.0;
const SHARPENING_WITH_TABLE: f32 = 1.4;

struct NgramDrafter {
    vocabulary: usize,
    order: usize,
    corpus: Counts,
    shared: Option<SharedNgrams>,
    sequences: Slots<SequenceState>,
}

/// State of one sequence.
struct SequenceState {
    tokens: Vec<Token>,
    /// Number of counted tokens.
    counted: usize,
    counts: Counts,
    /// Weights w_n of the sequence's own counts and of the corpus's, estimated so far.
    hit_rates: HitRates,
    corpus_hit_rates: HitRates,
    /// Weights of the sequence's own prediction against the prediction of the shared table.
    source_weights: SourceWeights,
    /// Last tokens up to each scored node, by node.
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

    /// Counts at most `max_tokens` further tokens and returns how many remain.
    fn count(&mut self, sequence: Sequence, max_tokens: usize) -> usize {
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
        for position in *counted..tokens.len().min(counted.saturating_add(max_tokens)) {
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
            // Later tokens cannot be removed from the counts: count again from the start.
            let tokens = std::mem::take(&mut context.tokens);
            *context = SequenceState { tokens, ..SequenceState::new(self.order) };
        }
    }

    fn prepare(&mut self, sequence: Sequence, max_tokens: usize) -> Result<usize> {
        Ok(self.count(sequence, max_tokens))
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
            // Nothing is counted yet: the uniform distribution.
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

    fn info() -> ModelInfo {
        ModelInfo {
            name: "t".to_owned(),
            vocabulary: Vocabulary::numbered(10),
            context: 100,
            hidden: None,
            accepts_empty_context: true,
            max_sequences: 1,
        }
    }

    fn drafter(settings: &Settings) -> Box<dyn Drafter> {
        settings.build(&info()).unwrap()
    }

    fn next(drafter: &mut dyn Drafter, sequence: Sequence, sampling: &Sampling) -> Distribution {
        drafter.score(&[(sequence, &DraftTree::new())]).unwrap();
        drafter.distribution(sequence, 0, sampling, None).unwrap()
    }

    #[test]
    fn repeated_lines_become_likelier_each_time() {
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

    /// Token 1 was followed by 2 half of the time: the confidence is one half, although 2 is
    /// drafted more often.
    #[test]
    fn confidence_matches_past_accuracy() {
        let mut drafter = drafter(&Settings { order: 2, ..Settings::default() });
        let sequence = drafter.open().unwrap();
        let mut other = 0;
        for round in 0..300_u32 {
            // A different token precedes 1 each time, so that longer contexts predict nothing.
            other = (other + 3) % 5;
            let next = if round % 2 == 0 { 2 } else { 3 + round % 7 };
            drafter.extend(sequence, &[5 + other, 1, next]).unwrap();
        }
        drafter.extend(sequence, &[4, 1]).unwrap();
        for (temperature, max_probability) in [(1.0, 0.95), (0.0, 1.0)] {
            let probs =
                next(drafter.as_mut(), sequence, &Sampling { temperature, ..Sampling::default() });
            assert!(
                probs.argmax() == 2
                    && probs.probability(2) > 0.7
                    && probs.probability(2) <= max_probability,
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
    fn each_node_drafts_from_its_own_context() {
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

    /// The result is the same as if the removed tokens had never been added.
    #[test]
    fn truncated_tokens_do_not_affect_drafts() {
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
    fn drafts_from_a_corpus() {
        let corpus = Settings { corpus: vec![3, 1, 4, 1, 5, 9, 2, 6], ..Settings::default() };
        let mut drafter = drafter(&corpus);
        let sequence = drafter.open().unwrap();
        drafter.extend(sequence, &[1, 5, 9]).unwrap();
        assert_eq!(next(drafter.as_mut(), sequence, &Sampling::default()).argmax(), 2);
    }

    #[test]
    fn rejects_tokens_outside_the_vocabulary() {
        let mut drafter = drafter(&Settings::default());
        let sequence = drafter.open().unwrap();
        assert!(drafter.extend(sequence, &[10]).is_err());
        let corpus = Settings { corpus: vec![3, 10], ..Settings::default() };
        assert!(corpus.build(&info()).is_err());
    }

    #[test]
    fn rejects_order_out_of_range() {
        for order in [0, 17] {
            assert!(Settings { order, ..Settings::default() }.build(&info()).is_err());
        }
    }

    /// The sequence's own n-grams are merged with those of the table.
    #[test]
    fn table_drafts_until_the_sequence_repeats_itself() {
        let mut learner = NgramLearner::new(&Vocabulary::numbered(10));
        (0..20).for_each(|_| learner.learn(&[1], &[(2, 0.9), (3, 0.1)]));
        let shared = Some(SharedNgrams::Table(Arc::new(learner.table())));
        let mut drafter = drafter(&Settings { shared, ..Settings::default() });
        let sequence = drafter.open().unwrap();
        drafter.extend(sequence, &[7, 8, 1]).unwrap();
        let probs = next(drafter.as_mut(), sequence, &Sampling::default());
        assert!(probs.argmax() == 2 && probs.probability(2) > 0.8, "{probs:?}");
        // The sequence has not repeated itself: its own prediction gets half of the weight.
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
