//! Traces of steps: the tree, both distributions at its nodes, and the outcome.

use polydraft::{Distribution, DraftTree, NodeId, Outcome, Token};

use crate::Result;
use crate::observer::{CommittedStep, StepObserver, VerifiedStep};

/// One step of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The tree's nodes, the root first, parents before children.
    pub nodes: Vec<TracedNode>,
    /// The nodes that were accepted, from a child of the root downwards.
    pub accepted: Vec<NodeId>,
    /// The token that was emitted after them.
    pub token: Token,
}

/// A node, and the distributions of the token after it.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedNode {
    /// Its parent and its token; none for the root.
    pub drawn: Option<DraftedToken>,
    /// Draws that were made below it.
    pub draws: usize,
    /// The distribution of the drafts below it, the likeliest first; none at a leaf.
    pub draft: Vec<(Token, f64)>,
    /// The target's distribution there, the likeliest first.
    pub target: Vec<(Token, f64)>,
    /// For tokens of `draft`, where the verifier shares priorities out among drafts: the
    /// distribution of a draft's priority, as intervals of [0, 1], each with its beginning, its
    /// length and its probability.
    pub shares: Vec<(Token, Vec<[f64; 3]>)>,
    /// The overlap of the two distributions, Σ min: the probability that one draft is accepted
    /// here. None at a leaf.
    pub overlap: Option<f64>,
}

/// A drafted token.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftedToken {
    /// The node that it was drawn at.
    pub parent: NodeId,
    /// The token.
    pub token: Token,
    /// Its probability there under the draft and under the target.
    pub draft: f64,
    /// Under the target.
    pub target: f64,
}

fn likeliest(probs: &Distribution, top: usize) -> Vec<(Token, f64)> {
    probs.most_likely(top).into_iter().map(|token| (token, probs.probability(token))).collect()
}

impl Trace {
    /// With the `top` likeliest tokens of each distribution. Where the target has none, none is
    /// shown.
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
                        let parts = priorities.priorities(draft, distributions, node, token);
                        (token, parts.unwrap_or_default())
                    };
                    let shares = probs.most_likely(top).into_iter().map(shares_of);
                    shares.filter(|(_, parts)| !parts.is_empty()).collect()
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
    /// How many tokens of each distribution.
    top: usize,
    /// Of the current step.
    pending: Option<Trace>,
    traces: Vec<Trace>,
}

impl TraceRecorder {
    pub fn new(top: usize) -> Self {
        Self { top, ..Self::default() }
    }

    /// Those that were not taken yet.
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
