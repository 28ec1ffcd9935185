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
mod suffixes;
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
use suffixes::{Match, Suffixes};
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
            corpus_suffixes: Suffixes::default(),
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
            drafter.corpus_suffixes.add(self.corpus[end]);
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
    corpus_suffixes: Suffixes,
    shared: Option<SharedNgrams>,
    sequences: Slots<SequenceState>,
}

/// State of one sequence.
struct SequenceState {
    tokens: Vec<Token>,
    /// Number of counted tokens.
    counted: usize,
    counts: Counts,
    suffixes: Suffixes,
    /// Longest match in the corpus.
    in_corpus: Match,
    /// Weights w_n of the sequence's own counts and of the corpus's, estimated so far.
    hit_rates: HitRates,
    corpus_hit_rates: HitRates,
    /// Weights of the sequence's own prediction against the prediction of the shared table.
    source_weights: SourceWeights,
    /// By scored node.
    scored: Vec<Node>,
}

/// End of the text at a node: its last tokens, and the longest matches in the sequence and the
/// corpus.
#[derive(Clone)]
struct Node {
    last: Vec<Token>,
    matches: [Match; 2],
}

impl SequenceState {
    fn new(order: usize) -> Self {
        Self {
            tokens: Vec::new(),
            counted: 0,
            counts: Counts::new(order),
            suffixes: Suffixes::default(),
            in_corpus: Match::default(),
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
        let Self { corpus, corpus_suffixes, shared, sequences, .. } = self;
        let SequenceState {
            tokens,
            counted,
            counts,
            suffixes,
            in_corpus,
            hit_rates,
            corpus_hit_rates,
            source_weights,
            ..
        } = &mut sequences[sequence];
        for position in *counted..tokens.len().min(counted.saturating_add(max_tokens)) {
            let (before, token) = (&tokens[..position], tokens[position]);
            let sources = Sources {
                counts: [counts, corpus],
                suffixes: [suffixes, corpus_suffixes],
                hit_rates: [hit_rates, corpus_hit_rates],
            };
            let matches = [suffixes.repeated(), *in_corpus];
            if let Some(shared) = shared {
                let prediction = shared.with(|table| predict(before, table, &sources.counts));
                source_weights.learn(&sources.mixture(before, matches), &prediction, token);
            }
            let cases = sources.cases(before, matches, token);
            cases
                .iter()
                .for_each(|case| [&mut *hit_rates, corpus_hit_rates][case.source].learn(case));
            counts.add(before, token);
            suffixes.add(token);
            *in_corpus = corpus_suffixes.after(*in_corpus, token);
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
                let mut scored = match node {
                    DraftTree::ROOT => Node {
                        last: state.tokens[state.tokens.len().saturating_sub(order)..].to_vec(),
                        matches: [state.suffixes.repeated(), state.in_corpus],
                    },
                    _ => {
                        let Node { mut last, matches: [own, corpus] } =
                            state.scored[tree.parent(node)].clone();
                        let token = tree.token(node);
                        last.push(token);
                        let own = state.suffixes.after(own, token);
                        Node { last, matches: [own, self.corpus_suffixes.after(corpus, token)] }
                    }
                };
                scored.last.drain(..scored.last.len().saturating_sub(order));
                state.scored.push(scored);
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
        let counts = [&state.counts, &self.corpus];
        let sources = Sources {
            counts,
            suffixes: [&state.suffixes, &self.corpus_suffixes],
            hit_rates: [&state.hit_rates, &state.corpus_hit_rates],
        };
        let Node { last, matches } = &state.scored[node];
        let mixture = sources.mixture(last, *matches);
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
mod tests;
