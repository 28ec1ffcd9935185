//! Observers of a session's steps: statistics, scores, traces, and the caller's own.
//!
//! An observer is called twice per step. After the verifier's decision the target's logits and
//! distributions are available, but the step is not final: a model may fail to commit it. After all
//! models have committed it and its tokens are emitted, it is final. An observer does not change
//! the output, and slows decoding down only by its own computation.

use std::time::Duration;

use polydraft::{
    Distribution, Draft, DraftTree, NodeId, Outcome, TargetDistributions, Token, Verifier,
};

use crate::distributions::StepDistributions;
use crate::{Emitted, Result};

/// Observes the steps of a session, see [`Session::add_observer`](crate::Session::add_observer).
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use polydraft_engine::observer::{CommittedStep, StepObserver, VerifiedStep};
/// use polydraft_engine::{Engine, Limits, Request, Result, TableModel};
///
/// /// Sends the entropy of the target's next-token distribution before each step.
/// struct Entropy {
///     pending: f64,
///     sender: Sender<f64>,
/// }
///
/// impl StepObserver for Entropy {
///     fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
///         let probs = step.distribution(polydraft::DraftTree::ROOT)?;
///         self.pending = probs.support().map(|(_, p)| -p * p.log2()).sum();
///         Ok(())
///     }
///
///     fn committed(&mut self, _: &CommittedStep) {
///         let _ = self.sender.send(self.pending);
///     }
/// }
///
/// let target = TableModel::from_json("coin", r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let mut engine = Engine::new(Box::new(target), None);
/// let mut session = engine.open(Request::new([0]).limits(Limits::tokens(3)))?;
/// let (sender, entropies) = channel();
/// session.add_observer(Entropy { pending: 0.0, sender });
/// engine.complete(session, &mut |_| true)?;
/// assert_eq!(entropies.iter().collect::<Vec<_>>(), [1.0, 1.0, 1.0]);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait StepObserver: Send {
    /// Called after the verifier's decision, while the target's logits are available. Results
    /// become final when [`committed`](Self::committed) follows; if a step is repeated after a
    /// failure, this is called again first.
    ///
    /// # Errors
    /// An error ends the session.
    fn verified(&mut self, _step: &VerifiedStep) -> Result<()> {
        Ok(())
    }

    /// Called when all models have committed the step and its tokens are emitted.
    fn committed(&mut self, _step: &CommittedStep) {}

    /// Called with forced tokens, which are emitted without a step.
    fn forced(&mut self, _tokens: &[Emitted]) {}

    /// Returns whether every token must come from a step; forced tokens then take a step too.
    fn needs_every_step(&self) -> bool {
        false
    }
}

/// A verifier's decision, not committed yet.
pub struct VerifiedStep<'a> {
    /// The drafted tree, with how and from which distributions its tokens were drawn.
    pub draft: &'a Draft,
    /// The accepted path, and the token after it.
    pub outcome: &'a Outcome,
    /// The verifier; `None` in plain decoding.
    pub verifier: Option<&'a dyn Verifier>,
    pub(crate) target: &'a StepDistributions<'a>,
}

impl<'a> VerifiedStep<'a> {
    /// Returns the target's logits after a node as the model returned them, of shape
    /// `[vocabulary]`.
    pub fn logits(&self, node: NodeId) -> &'a [f32] {
        self.target.logits(node)
    }

    /// Returns the target's distribution after a node as the verifier uses it: after temperature,
    /// filters and the session's logits processor. It is computed at the first call.
    ///
    /// # Errors
    /// Logits that are not a valid distribution.
    pub fn distribution(&self, node: NodeId) -> polydraft::Result<&'a Distribution> {
        self.target.target(node)
    }

    /// Returns the target's distributions at all nodes, as [`distribution`](Self::distribution).
    pub fn distributions(&self) -> &'a dyn TargetDistributions {
        self.target
    }

    /// Returns the `count` likeliest tokens after a node by the model's own distribution at
    /// temperature 1, ascending, each with its probability.
    ///
    /// # Errors
    /// Logits that are not a valid distribution.
    pub fn likeliest(&self, node: NodeId, count: usize) -> polydraft::Result<Vec<(Token, f32)>> {
        self.target.likeliest(node, count)
    }

    /// Returns the decided tokens in order, each with the node that it follows.
    pub fn decided(&self) -> impl Iterator<Item = (NodeId, Token)> {
        let Outcome { accepted, token } = self.outcome;
        let before = std::iter::once(DraftTree::ROOT).chain(accepted.iter().copied());
        let tree = self.draft.tree();
        before.zip(accepted.iter().map(|&node| tree.token(node)).chain([*token]))
    }
}

/// A committed step.
pub struct CommittedStep<'a> {
    /// The drafted tree.
    pub draft: &'a Draft,
    /// The accepted path, and the token after it.
    pub outcome: &'a Outcome,
    /// The emitted tokens of the step; fewer than decided if the sequence ends among them.
    pub emitted: &'a [Emitted],
    /// Nodes at which the verifier fell back to a weaker algorithm.
    pub fallbacks: u64,
    /// Times of the step: this sequence's share of the times of the batch.
    pub time: StepTime,
}

/// Times of the parts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTime {
    /// Time in the drafter, with its distributions and draws.
    pub draft: Duration,
    /// Time in the target model.
    pub target: Duration,
    /// Time in the verifier, with the target's distributions and observers.
    pub verify: Duration,
}

impl StepTime {
    /// Multiplies all times by a factor.
    pub(crate) fn scaled(&self, part: f64) -> Self {
        let scale = |time: Duration| time.mul_f64(part);
        Self { draft: scale(self.draft), target: scale(self.target), verify: scale(self.verify) }
    }
}
