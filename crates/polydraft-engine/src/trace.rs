//! Traces of steps: the tree, both distributions at its nodes, and the outcome.

use polydraft::{Distribution, DraftTree, NodeId, Outcome, Token};

use crate::Result;
use crate::observer::{CommittedStep, StepObserver, VerifiedStep};

/// Trace of one step of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Nodes of the tree, the root first, parents before children.
    pub nodes: Vec<TracedNode>,
    /// Accepted nodes, from a child of the root downwards.
    pub accepted: Vec<NodeId>,
    /// Token emitted after the accepted nodes.
    pub token: Token,
}

/// A node, with the distributions of the token after it.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedNode {
    /// Parent and token of the node; `None` for the root.
    pub drawn: Option<DraftedToken>,
    /// Number of draws below the node.
    pub draws: usize,
    /// Distribution of the drafts below the node, the likeliest first; empty at a leaf.
    pub draft: Vec<(Token, f64)>,
    /// The target's distribution after the node, the likeliest first.
    pub target: Vec<(Token, f64)>,
    /// Distribution of a draft's priority, by token of `draft`: intervals of [0, 1], each with its
    /// start, length and probability. Empty unless the verifier divides priorities among drafts.
    pub shares: Vec<(Token, Vec<[f64; 3]>)>,
    /// Overlap of the two distributions, Σ min: the probability that one draft is accepted here.
    /// `None` at a leaf.
    pub overlap: Option<f64>,
}

/// A drafted token.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftedToken {
    /// Node at which the token was drawn.
    pub parent: NodeId,
    /// Token id.
    pub token: Token,
    /// Probability under the draft.
    pub draft: f64,
    /// Probability under the target.
    pub target: f64,
}

fn likeliest(probs: &Distribution, top: usize) -> Vec<(Token, f64)> {
    probs.most_likely(top).into_iter().map(|token| (token, probs.probability(token))).collect()
}

impl Trace {
    /// Records the `top` likeliest tokens of each distribution. A target distribution that cannot
    /// be computed stays empty.
    fn new(step: &VerifiedStep, top: usize) -> Self {
        let (draft, tree) = (step.draft, step.draft.tree());
        let target = |node| step.distribution(node).ok();
        let traced = |node| {
            let drawn = (node != DraftTree::ROOT).then(|| {
                let (parent, token) = (tree.parent(node), tree.token(node));
                let probability = |probs: Option<&Distribution>| {
                    probs.map_or(0.0, |probs| probs.probability(token))
                };
                DraftedToken {
                    parent,
                    token,
                    draft: probability(draft.distribution(parent)),
                    target: probability(target(parent)),
                }
            });
            let priorities = step.verifier.and_then(|verifier| verifier.as_priority_intervals());
            let shares = draft.distribution(node).zip(priorities).map_or_else(
                Vec::new,
                |(probs, priorities)| {
                    let shares_of = |token| {
                        let distributions = step.distributions();
                        let intervals = priorities.priorities(draft, distributions, node, token);
                        (token, intervals.unwrap_or_default())
                    };
                    let shares = probs.most_likely(top).into_iter().map(shares_of);
                    shares.filter(|(_, intervals)| !intervals.is_empty()).collect()
                },
            );
            TracedNode {
                drawn,
                shares,
                draws: draft.draws(node).map_or(0, |draws| draws.count),
                draft: draft
                    .distribution(node)
                    .map(|probs| likeliest(probs, top))
                    .unwrap_or_default(),
                target: target(node).map(|probs| likeliest(probs, top)).unwrap_or_default(),
                overlap: draft
                    .distribution(node)
                    .zip(target(node))
                    .map(|(draft, target)| draft.overlap(target)),
            }
        };
        let nodes = (0..tree.len()).map(traced).collect();
        let Outcome { accepted, token } = step.outcome;
        Self { nodes, accepted: accepted.clone(), token: *token }
    }
}

/// Records the traces of a session's steps.
#[derive(Default)]
pub(crate) struct TraceRecorder {
    /// Number of tokens per distribution.
    top: usize,
    /// Trace of the current step, which is not committed yet.
    pending: Option<Trace>,
    traces: Vec<Trace>,
}

impl TraceRecorder {
    pub fn new(top: usize) -> Self {
        Self { top, ..Self::default() }
    }

    /// Takes the traces recorded since the last call.
    pub fn take(&mut self) -> Vec<Trace> {
        std::mem::take(&mut self.traces)
    }
}

impl StepObserver for TraceRecorder {
    fn verified(&mut self, step: &VerifiedStep) -> Result<()> {
        self.pending = Some(Trace::new(step, self.top));
        Ok(())
    }

    fn committed(&mut self, _: &CommittedStep) {
        self.traces.extend(self.pending.take());
    }

    fn needs_every_step(&self) -> bool {
        true
    }
}
