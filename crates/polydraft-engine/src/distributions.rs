//! Target distributions at the nodes of one step's tree, computed when a verifier first needs them.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use polydraft::{
    Distribution, DraftTree, Error, NodeId, Result as ProbsResult, Sampling, TargetDistributions,
    Token,
};

use crate::{Limits, LogitsProcessor};

/// Pool of distributions whose memory the next step reuses.
#[derive(Default)]
pub(crate) struct Pool {
    spare: Mutex<Vec<Distribution>>,
}

impl Pool {
    pub fn spare(&self) -> MutexGuard<'_, Vec<Distribution>> {
        // After a panic the content does not matter: it is spare memory.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(&self) -> Option<Distribution> {
        self.spare().pop()
    }

    pub fn recycle(&self, distributions: impl IntoIterator<Item = Distribution>) {
        self.spare().extend(distributions);
    }
}

/// A session's logits processor, with its arguments.
#[derive(Clone, Copy)]
pub(crate) struct LogitsChange<'a> {
    pub processor: &'a dyn LogitsProcessor,
    /// Tokens decided so far.
    pub decided: &'a [Token],
    pub tree: &'a DraftTree,
    /// Nothing follows an end token, so the processor is not called after one.
    pub limits: &'a Limits,
}

/// Target distributions by node.
pub(crate) struct StepDistributions<'a> {
    /// Target logits by node, each of shape `[vocabulary]`.
    logits: Vec<&'a [f32]>,
    change: Option<LogitsChange<'a>>,
    sampling: &'a Sampling,
    pool: &'a Pool,
    computed: Vec<OnceLock<Distribution>>,
    /// Error of logits that are not a valid distribution. It is reported as the model's error,
    /// whatever the verifier returns.
    failure: OnceLock<Error>,
}

impl<'a> StepDistributions<'a> {
    pub fn new(
        logits: Vec<&'a [f32]>,
        change: Option<LogitsChange<'a>>,
        sampling: &'a Sampling,
        pool: &'a Pool,
    ) -> Self {
        let computed = vec![OnceLock::new(); logits.len()];
        Self { logits, change, sampling, pool, computed, failure: OnceLock::new() }
    }

    /// Returns the target's logits after a node.
    pub fn logits(&self, node: NodeId) -> &'a [f32] {
        self.logits[node]
    }

    /// Returns the distribution of the next token.
    pub fn root(&self) -> ProbsResult<&Distribution> {
        self.target(DraftTree::ROOT)
    }

    /// Returns the `count` likeliest tokens after a node, ascending, each with its probability at
    /// temperature 1, regardless of the request's sampling and processors.
    pub fn likeliest(&self, node: NodeId, count: usize) -> ProbsResult<Vec<(Token, f32)>> {
        let (logits, sampling) = (self.logits[node], Sampling::default());
        let tokens = largest(logits, count).into_iter();
        let pick = |probs: &Distribution| {
            let likely = tokens.map(|token| (token, probs.probability(token) as f32));
            likely.filter(|(_, p)| *p > 0.0).collect()
        };
        // Usually the verifier needs the same distribution anyway.
        if self.change.is_none() && *self.sampling == sampling {
            return self.target(node).map(pick);
        }
        let unprocessed = Distribution::from_logits_reusing(
            self.pool.take(),
            logits.len(),
            None,
            logits,
            &sampling,
        )?;
        let likeliest = pick(&unprocessed);
        self.pool.recycle([unprocessed]);
        Ok(likeliest)
    }

    /// Returns the memory to the pool, and the error of invalid logits, if any.
    pub fn recycle(self) -> Option<Error> {
        self.pool.recycle(self.computed.into_iter().filter_map(OnceLock::into_inner));
        self.failure.into_inner()
    }
}

/// Logits per chunk: chunks are skipped by their maximum.
const CHUNK: usize = 64;

/// Returns the tokens of the `count` largest logits, ascending; of equal logits the first.
pub(crate) fn largest(logits: &[f32], count: usize) -> Vec<Token> {
    let mut best: Vec<(f32, Token)> = Vec::with_capacity(count + 1);
    for (number, chunk) in logits.chunks(CHUNK).enumerate() {
        let least = best.last().filter(|_| best.len() == count).map(|last| last.0);
        // Maximum of a chunk, in a form that the compiler vectorizes.
        let most = chunk
            .iter()
            .fold(f32::NEG_INFINITY, |most, &logit| if logit > most { logit } else { most });
        if least.is_some_and(|least| most <= least) {
            continue;
        }
        for (offset, &logit) in chunk.iter().enumerate() {
            if best.len() == count && best.last().is_none_or(|last| logit <= last.0) {
                continue;
            }
            let at = best.partition_point(|(other, _)| *other >= logit);
            best.insert(at, (logit, (number * CHUNK + offset) as Token));
            best.truncate(count);
        }
    }
    let mut tokens: Vec<Token> = best.into_iter().map(|(_, token)| token).collect();
    tokens.sort_unstable();
    tokens
}

impl TargetDistributions for StepDistributions<'_> {
    fn target(&self, node: NodeId) -> ProbsResult<&Distribution> {
        let cell = &self.computed[node];
        if let Some(probs) = cell.get() {
            return Ok(probs);
        }
        let mut logits = Cow::Borrowed(self.logits[node]);
        let open = |change: &LogitsChange| !change.limits.ends_at(change.tree, node);
        if let Some(LogitsChange { processor, decided, tree, .. }) = self.change.filter(open) {
            let path: Vec<Token> =
                tree.path(node).into_iter().map(|node| tree.token(node)).collect();
            processor.process(decided, &path, logits.to_mut());
        }
        let probs = Distribution::from_logits_reusing(
            self.pool.take(),
            logits.len(),
            None,
            &logits,
            self.sampling,
        );
        let probs = probs.inspect_err(|error| {
            let _ = self.failure.set(error.clone());
        })?;
        Ok(cell.get_or_init(|| probs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_matches_a_full_sort() {
        let logits: Vec<f32> = (0..1000_u32).map(|n| (n * 7919 % 211) as f32 / 10.0).collect();
        for (length, count) in [(0, 3), (1, 3), (64, 1), (65, 0), (130, 8), (1000, 8), (1000, 300)]
        {
            let logits = &logits[..length];
            let mut sorted: Vec<Token> = (0..length as Token).collect();
            // Of equal logits the first: the sort is stable.
            sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            sorted.truncate(count);
            sorted.sort_unstable();
            assert_eq!(largest(logits, count), sorted, "{length} {count}");
        }
    }
}
