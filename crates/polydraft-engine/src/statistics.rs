//! The cost of a generation, and the gain by speculation.

use std::time::Duration;

use polydraft::policy::Choices;
use polydraft::{DraftTree, NodeId};

use crate::Emitted;
use crate::observer::{CommittedStep, StepObserver};

/// Counts and times of one generation.
///
/// ```
/// use polydraft_engine::Statistics;
///
/// // In ten passes the first token drafted was accepted eight times, the second four times.
/// let (drafted, accepted) = (vec![10, 10], vec![8, 4]);
/// let statistics = Statistics {
///     tokens: 22,
///     target_calls: 10,
///     drafted,
///     accepted,
///     ..Statistics::default()
/// };
/// assert_eq!(statistics.block_efficiency(), 2.2);
/// assert_eq!(statistics.accepted_by_position(), [0.8, 0.4]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistics {
    /// Tokens emitted.
    pub tokens: usize,
    /// Those of them that were certain, and took no pass.
    pub forced: usize,
    /// Passes over the target's weights, without the prefill.
    pub target_calls: usize,
    /// For each position on the drafted path, how often a token was drafted there.
    pub drafted: Vec<usize>,
    /// For each position on the drafted path, how often the token there was accepted.
    pub accepted: Vec<usize>,
    /// Distinct tokens drafted, in all.
    pub nodes: usize,
    /// How often the first, the second, .. distinct token drafted at a node was the one accepted.
    pub accepted_by_rank: Vec<usize>,
    /// Passes in which nothing was left to verify after the accepted tokens.
    pub complete_paths: usize,
    /// Nodes at which a weaker algorithm took over from the verifier's own, which could not do
    /// them.
    pub fallbacks: u64,
    /// The choices of an adaptive tree.
    pub choices: Option<Choices>,
    /// Prefill, by both models.
    pub prompt_time: Duration,
    /// In the draft model, its distributions and draws included.
    pub draft_time: Duration,
    /// In the target model.
    pub target_time: Duration,
    /// In the verifier, the target's distributions included.
    pub verify_time: Duration,
    /// From the end of the prefill to the last token, text and stop strings included; without the
    /// caller's time.
    pub total_time: Duration,
}

impl Statistics {
    /// Tokens per target pass: block efficiency in the papers' sense; 0 before the first.
    pub fn block_efficiency(&self) -> f64 {
        ratio(self.tokens as f64, self.target_calls as f64)
    }

    /// For each position on the drafted path, the part of the tokens drafted there that was
    /// accepted. Acceptance of a position needs that of all before it, so the numbers fall.
    pub fn accepted_by_position(&self) -> Vec<f64> {
        self.accepted.iter().zip(&self.drafted).map(|(&a, &d)| ratio(a as f64, d as f64)).collect()
    }

    /// Distinct tokens drafted per target pass; 0 before the first.
    pub fn nodes_per_call(&self) -> f64 {
        ratio(self.nodes as f64, self.target_calls as f64)
    }

    /// Of the positions that were verified, the part at which the first, the second, .. distinct
    /// token drafted was accepted.
    pub fn accepted_by_draft(&self) -> Vec<f64> {
        // Every pass verifies the positions it accepts and one more, unless all of the longest path
        // is accepted.
        let accepted: usize = self.accepted_by_rank.iter().sum();
        let complete = self.complete_paths;
        let verified = (accepted + self.target_calls - complete) as f64;
        self.accepted_by_rank.iter().map(|&count| ratio(count as f64, verified)).collect()
    }

    /// Tokens emitted per second after the prefill; 0 before the first.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(self.tokens as f64, self.total_time.as_secs_f64())
    }
}

impl StepObserver for Statistics {
    fn committed(&mut self, step: &CommittedStep) {
        let (tree, path) = (step.draft.tree(), &step.outcome.accepted);
        let end = path.last().copied().unwrap_or(DraftTree::ROOT);
        let depth = (1..tree.len()).map(|node| tree.depth(node)).max().unwrap_or(0);
        self.target_calls += 1;
        self.tokens += step.emitted.len();
        self.fallbacks += step.fallbacks;
        for (counts, reached) in [(&mut self.drafted, depth), (&mut self.accepted, path.len())] {
            counts.resize(counts.len().max(depth), 0);
            counts[..reached].iter_mut().for_each(|count| *count += 1);
        }
        self.nodes += tree.len() - 1;
        self.complete_paths += usize::from(tree.children(end).next().is_none());
        for rank in path.iter().map(|&node| rank(tree, node)) {
            self.accepted_by_rank.resize(self.accepted_by_rank.len().max(rank + 1), 0);
            self.accepted_by_rank[rank] += 1;
        }
        self.draft_time += step.time.draft;
        self.target_time += step.time.target;
        self.verify_time += step.time.verify;
    }

    fn forced(&mut self, tokens: &[Emitted]) {
        self.tokens += tokens.len();
        self.forced += tokens.len();
    }
}

/// How many distinct tokens were drafted before this one at its node.
fn rank(tree: &DraftTree, node: NodeId) -> usize {
    tree.children(tree.parent(node)).take_while(|sibling| *sibling != node).count()
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
