//! Drafts for other servers: distributions of the target along probable continuations.
//!
//! A job is computed between the steps of running requests: its tokens are prefilled in chunks like
//! prompts, then its trees are scored in one pass per level. Its sequences are closed afterwards,
//! so that their KV cache serves the next job, which has nearly the same tokens.

use std::time::Instant;

use polydraft_engine::drafter::remote::{DraftQuery, DraftedTree, expand};
use polydraft_engine::{Engine, Sequence};
use tokio::sync::oneshot;

use super::job::DraftJob;
use super::pace::PrefillPace;
use super::{Failure, catch_panic};

/// A job in progress.
pub(super) struct Drafting {
    job: DraftJob,
    /// Sequences of the target, by query; empty before they are opened.
    sequences: Vec<Sequence>,
}

impl Drafting {
    pub fn new(job: DraftJob) -> Self {
        Self { job, sequences: Vec::new() }
    }

    /// Whether the client is gone.
    pub fn is_gone(&self) -> bool {
        self.job.answer.is_closed()
    }

    /// Whether its sequences are open.
    pub fn is_open(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Sequences and tokens that it needs.
    pub fn required(&self) -> (usize, usize) {
        let tokens = |query: &DraftQuery| query.tokens.len() + query.levels * query.width;
        (self.job.queries.len(), self.job.queries.iter().map(tokens).sum())
    }

    /// Prefills a chunk, or computes the answer and sends it. Returns whether the job is done.
    pub fn advance(&mut self, engine: &mut Engine, pace: &mut PrefillPace) -> bool {
        match catch_panic(|| self.compute(engine, pace)) {
            Ok(None) => false,
            Ok(Some(trees)) => {
                self.end(engine, Ok(trees));
                true
            }
            Err(failure) => {
                self.end(engine, Err(failure));
                true
            }
        }
    }

    /// Returns the trees; `None` while tokens remain to be prefilled.
    fn compute(
        &mut self,
        engine: &mut Engine,
        pace: &mut PrefillPace,
    ) -> Result<Option<Vec<DraftedTree>>, Failure> {
        let model = engine.target();
        if self.sequences.is_empty() {
            for query in &self.job.queries {
                let sequence = model.open()?;
                self.sequences.push(sequence);
                model.extend(sequence, &query.tokens)?;
            }
        }
        for &sequence in &self.sequences {
            let (before, started) = (model.prepare(sequence, 0)?, Instant::now());
            if before > 0 {
                let left = model.prepare(sequence, pace.next_tokens())?;
                pace.record(before.saturating_sub(left), started.elapsed());
                return Ok(None);
            }
        }
        let queries: Vec<_> = self.sequences.iter().copied().zip(&self.job.queries).collect();
        Ok(Some(expand(model, &queries)?))
    }

    /// Closes its sequences and sends the answer; a client that is gone gets nothing.
    pub fn end(&mut self, engine: &mut Engine, answer: Result<Vec<DraftedTree>, Failure>) {
        for sequence in self.sequences.drain(..) {
            engine.target().close(sequence);
        }
        let (sender, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.job.answer, sender).send(answer);
    }
}
