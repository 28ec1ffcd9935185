//! The laws at the nodes of one step's tree.

use std::sync::{Mutex, OnceLock, PoisonError};

use polydraft::{Distribution, Error as LawError, Laws, NodeId, Result as LawResult, Sampling};

/// Distributions whose memory is used again in the next step.
#[derive(Default)]
pub(crate) struct Pool {
    spare: Mutex<Vec<Distribution>>,
}

impl Pool {
    /// The law that `sampling` makes of logits, shape `[vocabulary]`.
    pub fn law(&self, logits: &[f32], sampling: &Sampling) -> LawResult<Distribution> {
        // Whatever a thread that panicked has left is spare memory all the same.
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match spare {
            None => Distribution::from_logits(logits, sampling),
            Some(mut law) => {
                law.set_from_logits(logits, sampling)?;
                Ok(law)
            }
        }
    }

    pub fn take_back(&self, laws: impl IntoIterator<Item = Distribution>) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).extend(laws);
    }
}

/// Draft laws as they were drawn from, and target laws made when a verifier first looks at them.
pub(crate) struct StepLaws<'a> {
    /// The target's logits by node, each of shape `[vocabulary]`.
    pub logits: Vec<&'a [f32]>,
    pub sampling: &'a Sampling,
    pub pool: &'a Pool,
    /// By node; none where nothing was drawn.
    pub drafts: &'a [Option<Distribution>],
    /// By node.
    pub made: Vec<OnceLock<Distribution>>,
}

impl Laws for StepLaws<'_> {
    fn draft(&self, node: NodeId) -> LawResult<&Distribution> {
        self.drafts.get(node).and_then(Option::as_ref).ok_or_else(|| LawError::Unsupported {
            operation: "draft law",
            expected: "a node that was drafted at".to_owned(),
            got: format!("node {node}"),
        })
    }

    fn target(&self, node: NodeId) -> LawResult<&Distribution> {
        let cell = &self.made[node];
        if let Some(law) = cell.get() {
            return Ok(law);
        }
        let law = self.pool.law(self.logits[node], self.sampling)?;
        Ok(cell.get_or_init(|| law))
    }
}
