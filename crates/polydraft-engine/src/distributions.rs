//! The target's distributions at the nodes of one step's tree, made when a verifier first looks at
//! them.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use polydraft::{
    Distribution, DraftTree, Error, NodeId, Result as ProbsResult, Sampling, TargetDistributions,
    Token,
};

use crate::{Limits, LogitsProcessor};

/// Distributions whose memory is reused in the next step.
#[derive(Default)]
pub(crate) struct Pool {
    spare: Mutex<Vec<Distribution>>,
}

impl Pool {
    pub fn spare(&self) -> MutexGuard<'_, Vec<Distribution>> {
        // The content after a panic does not matter: it is spare memory.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn take(&self) -> Option<Distribution> {
        self.spare().pop()
    }

    pub fn recycle(&self, distributions: impl IntoIterator<Item = Distribution>) {
        self.spare().extend(distributions);
    }
}

/// A session's changes to its target's logits.
#[derive(Clone, Copy)]
pub(crate) struct LogitsChange<'a> {
    pub processor: &'a dyn LogitsProcessor,
    /// The tokens decided so far.
    pub decided: &'a [Token],
    pub tree: &'a DraftTree,
    /// After an end token nothing follows, and a logits processor is not called.
    pub limits: &'a Limits,
}

/// By node.
pub(crate) struct StepDistributions<'a> {
    /// The target's logits, each of shape `[vocabulary]`.
    logits: Vec<&'a [f32]>,
    change: Option<LogitsChange<'a>>,
    sampling: &'a Sampling,
    pool: &'a Pool,
    computed: Vec<OnceLock<Distribution>>,
    /// Logits that make no distribution: the error is the model's, whatever the verifier returns.
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

    /// The target's logits after a node.
    pub fn logits(&self, node: NodeId) -> &'a [f32] {
        self.logits[node]
    }

    /// The distribution of the next token.
    pub fn root(&self) -> ProbsResult<&Distribution> {
        self.target(DraftTree::ROOT)
    }

    /// So many of the likeliest tokens after a node, ascending, each with its probability at
    /// temperature 1, whatever the request makes of the logits.
    pub fn likeliest(&self, node: NodeId, count: usize) -> ProbsResult<Vec<(Token, f32)>> {
        let (logits, sampling) = (self.logits[node], Sampling::default());
        let tokens = largest(logits, count).into_iter();
        let pick = |probs: &Distribution| {
            let likely = tokens.map(|token| (token, probs.probability(token) as f32));
            likely.filter(|(_, p)| *p > 0.0).collect()
        };
        // Mostly that is what the verifier asks for anyway.
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

    /// The error of logits that make no distribution.
    pub fn recycle(self) -> Option<Error> {
        self.pool.recycle(self.computed.into_iter().filter_map(OnceLock::into_inner));
        self.failure.into_inner()
    }
}

/// Logits that are looked at together: of most lots it is enough to know the largest.
const CHUNK: usize = 64;

/// The tokens of the largest logits, ascending; of equal ones the first.
fn largest(logits: &[f32], count: usize) -> Vec<Token> {
    let mut best: Vec<(f32, Token)> = Vec::with_capacity(count + 1);
    for (number, chunk) in logits.chunks(CHUNK).enumerate() {
        let least = best.last().filter(|_| best.len() == count).map(|last| last.0);
        // The largest of a lot: in a form that the compiler does with vectors.
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
        let open = |change: &LogitsChange| !change.limits.end_at(change.tree, node);
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
    fn the_largest_are_those_of_a_sorted_list() {
        let logits: Vec<f32> = (0..1000_u32).map(|n| (n * 7919 % 211) as f32 / 10.0).collect();
        for (length, count) in [(0, 3), (1, 3), (64, 1), (65, 0), (130, 8), (1000, 8), (1000, 300)]
        {
            let logits = &logits[..length];
            let mut sorted: Vec<Token> = (0..length as Token).collect();
            // Of equal ones the first: the order is stable.
            sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            sorted.truncate(count);
            sorted.sort_unstable();
            assert_eq!(largest(logits, count), sorted, "{length} {count}");
        }
    }
}
