//! Cost of a generation, and the gain by speculation.

use std::time::Duration;

use polydraft::policy::Choices;
use polydraft::{DraftTree, NodeId};

use crate::observer::{CommittedStep, StepObserver};
use crate::{Emitted, Error, Result};

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
    /// Number of emitted tokens.
    pub tokens: usize,
    /// Number of forced tokens, which took no pass.
    pub forced: usize,
    /// Number of target passes, without the prefill.
    pub target_calls: usize,
    /// Number of steps that drafted a token at each position of the longest path.
    pub drafted: Vec<usize>,
    /// Number of steps that accepted a token at each position of the longest path.
    pub accepted: Vec<usize>,
    /// Total number of distinct drafted tokens.
    pub nodes: usize,
    /// Number of accepted tokens by their rank among the distinct tokens drafted at their node.
    pub accepted_by_rank: Vec<usize>,
    /// Number of passes in which nothing was left to verify after the accepted tokens.
    pub complete_paths: usize,
    /// Number of nodes at which the verifier fell back to a weaker algorithm.
    pub fallbacks: u64,
    /// Number of nodes at which the draft's logits defined no distribution; nothing was drawn
    /// there.
    pub invalid_drafts: usize,
    /// Problem with the first of them.
    pub draft_problem: Option<String>,
    /// Choices of an adaptive tree.
    pub choices: Option<Choices>,
    /// Prefill time of both models.
    pub prompt_time: Duration,
    /// Time in the draft model, with its distributions and draws.
    pub draft_time: Duration,
    /// Time in the target model.
    pub target_time: Duration,
    /// Time in the verifier, with the target's distributions.
    pub verify_time: Duration,
    /// Time from the end of the prefill to the last token, with detokenization and stop strings,
    /// without the caller's time.
    pub total_time: Duration,
}

impl Statistics {
    /// Tokens per target pass: block efficiency as in the papers; 0 before the first pass.
    pub fn block_efficiency(&self) -> f64 {
        ratio(self.tokens as f64, self.target_calls as f64)
    }

    /// Acceptance rate at each position of the drafted path. A position is only accepted after all
    /// before it, so the rates decrease.
    pub fn accepted_by_position(&self) -> Vec<f64> {
        self.accepted.iter().zip(&self.drafted).map(|(&a, &d)| ratio(a as f64, d as f64)).collect()
    }

    /// Distinct drafted tokens per target pass; 0 before the first pass.
    pub fn nodes_per_call(&self) -> f64 {
        ratio(self.nodes as f64, self.target_calls as f64)
    }

    /// Rate at which the first, second, .. distinct drafted token was accepted, of the verified
    /// positions.
    pub fn accepted_by_draft(&self) -> Vec<f64> {
        // Every pass verifies the accepted positions and one more, unless the longest path is
        // accepted in full.
        let accepted: usize = self.accepted_by_rank.iter().sum();
        let complete = self.complete_paths;
        let verified = (accepted + self.target_calls - complete) as f64;
        self.accepted_by_rank.iter().map(|&count| ratio(count as f64, verified)).collect()
    }

    /// Counts a node at which the draft's logits define no distribution.
    ///
    /// # Errors
    /// The given one, if it is another.
    pub(crate) fn note_invalid_draft(&mut self, problem: Error) -> Result<()> {
        if !matches!(problem, Error::Logits { .. }) {
            return Err(problem);
        }
        self.invalid_drafts += 1;
        self.draft_problem.get_or_insert_with(|| problem.to_string());
        Ok(())
    }

    /// Emitted tokens per second after the prefill; 0 before the first token.
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

/// Returns the number of distinct tokens drafted before this one at its node.
fn rank(tree: &DraftTree, node: NodeId) -> usize {
    tree.children(tree.parent(node)).take_while(|sibling| *sibling != node).count()
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
