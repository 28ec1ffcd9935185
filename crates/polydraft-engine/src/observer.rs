//! Observers of a session's steps: statistics, scores, traces, and the caller's own.
//!
//! An observer is called twice a step. When the verifier has decided, the target's logits and
//! distributions are available, but the step does not count yet: a model may fail to commit it.
//! When all models have committed it and its tokens are emitted, it counts. An observer does not
//! change the output, and it changes the speed only by its own computation.

use std::time::Duration;

use polydraft::{
    Distribution, Draft, DraftTree, NodeId, Outcome, TargetDistributions, Token, Verifier,
};

use crate::distributions::StepDistributions;
use crate::{Emitted, Result};

/// Observes the steps of a session, see [`Session::observe`](crate::Session::add_observer).
///
/// ```
/// use std::sync::mpsc::{Sender, channel};
/// use polydraft_engine::observer::{CommittedStep, StepObserver, VerifiedStep};
/// use polydraft_engine::{Engine, Limits, Request, Result, TableModel};
///
/// /// Sends the entropy of the target's next-token distribution before each step.
/// struct Entropy {
///     of_step: f64,
///     told: Sender<f64>,
/// }
///
/// impl StepObserver for Entropy {
///     fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
///         let probs = step.distribution(polydraft::DraftTree::ROOT)?;
///         self.of_step = probs.support().map(|(_, p)| -p * p.log2()).sum();
///         Ok(())
///     }
///
///     fn committed(&mut self, _: &CommittedStep) {
///         let _ = self.told.send(self.of_step);
///     }
/// }
///
/// let target = TableModel::from_json("coin", r#"{"vocabulary": 2, "next": {"": [0.5, 0.5]}}"#)?;
/// let mut engine = Engine::new(Box::new(target), None);
/// let mut session = engine.open(Request::new([0]).limits(Limits::tokens(3)))?;
/// let (told, entropies) = channel();
/// session.add_observer(Entropy { of_step: 0.0, told });
/// engine.complete(session, &mut |_| true)?;
/// assert_eq!(entropies.iter().collect::<Vec<_>>(), [1.0, 1.0, 1.0]);
/// # Ok::<(), polydraft_engine::Error>(())
/// ```
pub trait StepObserver: Send {
    /// The verifier has decided, and the target's logits are available. Results computed from them
    /// count when [`committed`](Self::committed) follows; where a step is repeated after a failure,
    /// this is called again first.
    ///
    /// # Errors
    /// An error ends the session.
    fn verified(&mut self, _step: &VerifiedStep) -> Result<()> {
        Ok(())
    }

    /// The step counts: all models have committed it, and its tokens are emitted.
    fn committed(&mut self, _step: &CommittedStep) {}

    /// These tokens were certain, and are emitted without a step.
    fn forced(&mut self, _tokens: &[Emitted]) {}

    /// Whether every token has to come from a step: then those that are certain take one too.
    fn needs_every_step(&self) -> bool {
        false
    }
}

/// A verifier's decision.
pub struct VerifiedStep<'a> {
    /// What was drafted: the tree, and how and from what its tokens were drawn.
    pub draft: &'a Draft,
    /// The path that is accepted, and the token after it.
    pub outcome: &'a Outcome,
    /// The verifier; none in plain decoding.
    pub verifier: Option<&'a dyn Verifier>,
    pub(crate) target: &'a StepDistributions<'a>,
}

impl<'a> VerifiedStep<'a> {
    /// The target's logits after a node as the model gave them, shape `[vocabulary]`.
    pub fn logits(&self, node: NodeId) -> &'a [f32] {
        self.target.logits(node)
    }

    /// The target's distribution after a node as the verifier sees it: with temperature, filters
    /// and the session's changes to the logits. It is computed at the first call.
    ///
    /// # Errors
    /// Logits that make no distribution.
    pub fn distribution(&self, node: NodeId) -> polydraft::Result<&'a Distribution> {
        self.target.target(node)
    }

    /// The same at all nodes.
    pub fn distributions(&self) -> &'a dyn TargetDistributions {
        self.target
    }

    /// So many of the likeliest tokens after a node by the model's own distribution at temperature
    /// 1, ascending, each with its probability.
    ///
    /// # Errors
    /// Logits that make no distribution.
    pub fn likeliest(&self, node: NodeId, count: usize) -> polydraft::Result<Vec<(Token, f32)>> {
        self.target.likeliest(node, count)
    }

    /// The tokens that are decided, in order, each with the node that it comes after.
    pub fn decided(&self) -> impl Iterator<Item = (NodeId, Token)> {
        let Outcome { accepted, token } = self.outcome;
        let before = std::iter::once(DraftTree::ROOT).chain(accepted.iter().copied());
        let tree = self.draft.tree();
        before.zip(accepted.iter().map(|&node| tree.token(node)).chain([*token]))
    }
}

/// A step that counts.
pub struct CommittedStep<'a> {
    /// What was drafted.
    pub draft: &'a Draft,
    /// The path that was accepted, and the token after it.
    pub outcome: &'a Outcome,
    /// Its tokens that are emitted: fewer where the sequence ends among them.
    pub emitted: &'a [Emitted],
    /// Nodes at which a weaker algorithm took over from the verifier's own.
    pub fallbacks: u64,
    /// Where the time went, this sequence's share of the batch's.
    pub time: StepTime,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTime {
    /// In the drafter, its distributions and draws included.
    pub draft: Duration,
    /// In the target model.
    pub target: Duration,
    /// In the verifier, the target's distributions and observers included.
    pub verify: Duration,
}

impl StepTime {
    /// A part of it.
    pub(crate) fn scaled(&self, part: f64) -> Self {
        let scale = |time: Duration| time.mul_f64(part);
        Self { draft: scale(self.draft), target: scale(self.target), verify: scale(self.verify) }
    }
}
