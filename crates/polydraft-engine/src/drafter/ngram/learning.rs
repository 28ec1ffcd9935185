//! N-grams learned from the target's output while it decodes.
//!
//! Problem: a table learned offline contains the output of its author's prompts, not of its users'.
//! Source: ours. Token recycling (Luo et al. 2024) stores the target's likeliest tokens after each
//! token, without their probabilities.
//! Method: the target's distribution is known at every decided token. Its likeliest tokens are
//! added to the table that drafts of all sequences of the engine use. A draft is drawn from the
//! table's current state, which depends on the past only, and verifiers get the distribution that
//! it was drawn from: the output has the target's distribution.
//! Complexity: one pass over the logits of each decided token.
//! Deviations: none.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use polydraft::Token;

use super::merged::TABLE_ORDER;
use super::table::{NgramLearner, NgramTable};
use crate::observer::{CommittedStep, StepObserver, VerifiedStep};
use crate::{Emitted, Result};

/// Likeliest tokens learned at each position. With four the acceptance rate is 0.008 lower, with
/// sixteen 0.003 higher.
pub const LEARNED_TOP_K: usize = 8;

/// A shared table of n-grams that is being learned; clones refer to the same table.
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

/// Equal if both refer to the same table.
impl PartialEq for LearningNgrams {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LearningNgrams {}

impl LearningNgrams {
    /// Continues learning from the state of `learner`.
    pub fn new(learner: NgramLearner) -> Self {
        Self(Arc::new(RwLock::new(learner)))
    }

    /// Returns what was learned so far, as a table.
    pub fn table(&self) -> NgramTable {
        NgramLearner::table_with(|| self.read())
    }

    /// Returns the number of tokens whose distributions were learned.
    pub fn learned(&self) -> u64 {
        self.read().learned()
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, NgramLearner> {
        // A table left by a panic is still a valid draft.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, NgramLearner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an observer that learns from a sequence with this prompt.
    pub(crate) fn observer(&self, prompt: &[Token]) -> impl StepObserver + use<> {
        let last = prompt[prompt.len().saturating_sub(TABLE_ORDER)..].to_vec();
        LearningObserver { ngrams: self.clone(), last, pending: Vec::new() }
    }
}

struct LearningObserver {
    ngrams: LearningNgrams,
    /// Last tokens, up to the length of the longest context.
    last: Vec<Token>,
    /// Likeliest tokens at each position of a step that is not committed yet.
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
