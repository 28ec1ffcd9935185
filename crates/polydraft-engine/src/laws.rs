//! The laws at the nodes of one step's tree.

use std::cell::{OnceCell, RefCell};

use polydraft::{Distribution, Error as LawError, Laws, NodeId, Result as LawResult, Sampling};

use crate::Model;

/// Distributions whose memory is used again in the next step.
#[derive(Default)]
pub(crate) struct Pool {
    spare: RefCell<Vec<Distribution>>,
}

impl Pool {
    /// The law that `sampling` makes of logits, shape `[vocabulary]`.
    pub fn law(&self, logits: &[f32], sampling: &Sampling) -> LawResult<Distribution> {
        match self.spare.borrow_mut().pop() {
            None => Distribution::from_logits(logits, sampling),
            Some(mut law) => {
                law.set_from_logits(logits, sampling)?;
                Ok(law)
            }
        }
    }

    pub fn take_back(&self, laws: impl IntoIterator<Item = Distribution>) {
        self.spare.borrow_mut().extend(laws);
    }
}

/// Draft laws as they were drawn from, and target laws made when a verifier first looks at them.
pub(crate) struct StepLaws<'a> {
    pub target: &'a dyn Model,
    pub sampling: &'a Sampling,
    pub pool: &'a Pool,
    /// By node.
    pub drafts: &'a [Distribution],
    /// By node.
    pub made: Vec<OnceCell<Distribution>>,
}

impl Laws for StepLaws<'_> {
    fn draft(&self, node: NodeId) -> LawResult<&Distribution> {
        self.drafts.get(node).ok_or_else(|| LawError::Unsupported {
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
        let law = self.pool.law(self.target.logits(node), self.sampling)?;
        Ok(cell.get_or_init(|| law))
    }
}
