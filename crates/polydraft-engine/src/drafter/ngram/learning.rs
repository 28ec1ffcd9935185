//! N-grams that are learned from what the target says while it decodes.
//!
//! Problem: a table knows what its maker let the model write, not what its users ask for.
//! Source: ours. Token recycling (Luo et al. 2024) keeps the target's likeliest tokens after each
//! token, without their probabilities.
//! Method: at every token that is decided, the target's distribution has been computed: its
//! likeliest tokens go into the table that drafts come from, for all sequences of the engine. A
//! draft is drawn from what the table says then, which depends on the past alone, and verifiers are
//! told what it was drawn from: the output has the target's distribution.
//! Complexity: a pass over the logits of each decided token.
//! Deviations: none.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use polydraft::Token;

use super::merged::TABLE_ORDER;
use super::table::{NgramLearner, NgramTable};
use crate::observer::{CommittedStep, StepObserver, VerifiedStep};
use crate::{Emitted, Result};

/// Likeliest tokens that are learned of each place: with four 0.008 less is accepted, with sixteen
/// 0.003 more.
pub const LEARNED_TOP_K: usize = 8;

/// N-grams that are being learned: one table, and who holds a copy of this holds the same.
///
/// ```
/// use polydraft_engine::Vocabulary;
/// use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner};
///
/// let ngrams = LearningNgrams::new(NgramLearner::new(&Vocabulary::numbered(10)));
/// assert_eq!(ngrams.table().learned(), 0);
/// ```
#[derive(Debug, Clone)]
pub struct LearningNgrams(Arc<RwLock<NgramLearner>>);

/// The same where both are the same one.
impl PartialEq for LearningNgrams {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LearningNgrams {}

impl LearningNgrams {
    /// Goes on with what is learned already.
    pub fn new(learner: NgramLearner) -> Self {
        Self(Arc::new(RwLock::new(learner)))
    }

    /// What is learned so far, as a table.
    pub fn table(&self) -> NgramTable {
        NgramLearner::table_with(|| self.read())
    }

    /// Tokens whose distributions were learned.
    pub fn learned(&self) -> u64 {
        self.read().learned()
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, NgramLearner> {
        // What a panic left is a draft all the same.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, NgramLearner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What learns from a sequence with this prompt.
    pub(crate) fn observer(&self, prompt: &[Token]) -> impl StepObserver + use<> {
        let last = prompt[prompt.len().saturating_sub(TABLE_ORDER)..].to_vec();
        LearningObserver { ngrams: self.clone(), last, pending: Vec::new() }
    }
}

struct LearningObserver {
    ngrams: LearningNgrams,
    /// The last tokens, as many as a context has.
    last: Vec<Token>,
    /// The likeliest tokens at each place of a step that does not count yet.
    pending: Vec<Vec<(Token, f32)>>,
}

impl LearningObserver {
    fn push(&mut self, token: Token) {
        self.last.push(token);
        self.last.drain(..self.last.len().saturating_sub(TABLE_ORDER));
    }
}

impl StepObserver for LearningObserver {
    fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
        self.pending.clear();
        for (node, _) in step.decided() {
            self.pending.push(step.likeliest(node, LEARNED_TOP_K)?);
        }
        Ok(())
    }

    fn committed(&mut self, step: &CommittedStep) {
        let ngrams = self.ngrams.clone();
        let mut learner = ngrams.write();
        for (likeliest, emitted) in std::mem::take(&mut self.pending).iter().zip(step.emitted) {
            learner.learn(&self.last, likeliest);
            self.push(emitted.token);
        }
    }

    fn forced(&mut self, tokens: &[Emitted]) {
        tokens.iter().for_each(|emitted| self.push(emitted.token));
    }
}
