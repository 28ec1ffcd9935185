//! Token counts of an answer.

use polydraft_engine::Statistics;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Usage of an answer.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the sequences.
    pub completion_tokens: usize,
    /// Sum of both.
    pub total_tokens: usize,
    /// Details of the prompts' tokens.
    pub prompt_tokens_details: PromptDetails,
    /// Details of the sequences' tokens.
    pub completion_tokens_details: CompletionDetails,
    /// Counts of speculation.
    pub speculation: SpeculationCounts,
}

/// Details of the prompts' tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Tokens of the prompts that were in the prefix cache.
    pub cached_tokens: usize,
}

/// Details of the sequences' tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionDetails {
    /// Tokens of the reasoning, without its marks.
    pub reasoning_tokens: usize,
}

/// Counts of speculation, over all sequences.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct SpeculationCounts {
    /// Passes of the target, without prefill.
    target_calls: usize,
    /// Tokens forced by a grammar, which took no pass.
    forced_tokens: usize,
    /// Distinct drafted tokens.
    draft_tokens: usize,
    /// Number of drafted tokens at each position of the drafted path.
    drafted: Vec<usize>,
    /// Number of accepted tokens at each position.
    accepted: Vec<usize>,
}

impl SpeculationCounts {
    /// Drafted tokens, and accepted ones among them.
    pub fn drafts(&self) -> (usize, usize) {
        (self.draft_tokens, self.accepted.iter().sum())
    }
}

impl Usage {
    /// Usage of prompts with this many tokens, before any output.
    pub fn for_prompts(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens, ..Self::default() }
    }

    /// Raises the count of a sequence from `before` to `tokens`.
    pub fn count(&mut self, tokens: usize, before: usize) {
        self.completion_tokens = self.completion_tokens + tokens - before;
        self.total_tokens = self.total_tokens + tokens - before;
    }

    /// Usage without this many output tokens.
    pub fn without(&self, tokens: usize) -> Self {
        let completion_tokens = self.completion_tokens.saturating_sub(tokens);
        let total_tokens = self.total_tokens.saturating_sub(tokens);
        Self { completion_tokens, total_tokens, ..self.clone() }
    }

    /// Usage so far, for a stream: counts of speculation are known only at the end.
    pub fn so_far(&self) -> Value {
        let Self { prompt_tokens, completion_tokens, total_tokens, .. } = self;
        json!({ "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
            "total_tokens": total_tokens })
    }

    /// Adds the speculation counts of a sequence.
    pub fn add_statistics(&mut self, statistics: &Statistics) {
        let SpeculationCounts { target_calls, forced_tokens, draft_tokens, drafted, accepted } =
            &mut self.speculation;
        *target_calls += statistics.target_calls;
        *forced_tokens += statistics.forced;
        *draft_tokens += statistics.nodes;
        for (sum, counts) in [(drafted, &statistics.drafted), (accepted, &statistics.accepted)] {
            sum.resize(sum.len().max(counts.len()), 0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
}
