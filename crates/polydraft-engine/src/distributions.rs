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

    pub fn give_back(&self, distributions: impl IntoIterator<Item = Distribution>) {
        self.spare().extend(distributions);
    }
}

/// A session's changes to its target's logits.
#[derive(Clone, Copy)]
pub(crate) struct Changed<'a> {
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
    changed: Option<Changed<'a>>,
    sampling: &'a Sampling,
    pool: &'a Pool,
    made: Vec<OnceLock<Distribution>>,
    /// Logits that make no distribution: the error is the model's, whatever the verifier returns.
    failed: OnceLock<Error>,
}

impl<'a> StepDistributions<'a> {
    pub fn new(
        logits: Vec<&'a [f32]>,
        changed: Option<Changed<'a>>,
        sampling: &'a Sampling,
        pool: &'a Pool,
    ) -> Self {
        let made = vec![OnceLock::new(); logits.len()];
        Self { logits, changed, sampling, pool, made, failed: OnceLock::new() }
    }

    /// The target's logits after a node.
    pub fn logits(&self, node: NodeId) -> &'a [f32] {
        self.logits[node]
    }

    /// The distribution of the next token.
    pub fn root(&self) -> ProbsResult<&Distribution> {
        self.target(DraftTree::ROOT)
    }

    /// The error of logits that make no distribution.
    pub fn give_back(self) -> Option<Error> {
        self.pool.give_back(self.made.into_iter().filter_map(OnceLock::into_inner));
        self.failed.into_inner()
    }
}

impl TargetDistributions for StepDistributions<'_> {
    fn target(&self, node: NodeId) -> ProbsResult<&Distribution> {
        let cell = &self.made[node];
        if let Some(probs) = cell.get() {
            return Ok(probs);
        }
        let mut logits = Cow::Borrowed(self.logits[node]);
        let open = |changed: &Changed| !changed.limits.end_at(changed.tree, node);
        if let Some(Changed { processor, decided, tree, .. }) = self.changed.filter(open) {
            let path: Vec<Token> =
                tree.path(node).into_iter().map(|node| tree.token(node)).collect();
            processor.process(decided, &path, logits.to_mut());
        }
        let probs =
            Distribution::remade(self.pool.take(), logits.len(), None, &logits, self.sampling);
        let probs = probs.inspect_err(|error| {
            let _ = self.failed.set(error.clone());
        })?;
        Ok(cell.get_or_init(|| probs))
    }
}
