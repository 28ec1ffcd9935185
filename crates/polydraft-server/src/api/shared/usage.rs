//! What an answer took.

use polydraft_engine::Statistics;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The usage of an answer.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the sequences.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// Details of the prompts' tokens.
    pub prompt_tokens_details: PromptDetails,
    /// Counts of speculation.
    pub speculation: Speculated,
}

/// Details of the prompts' tokens.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Tokens of the prompts that were in the prefix cache.
    pub cached_tokens: usize,
}

/// Counts of speculation, over all sequences.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Speculated {
    /// Passes of the target, without the prefill.
    target_calls: usize,
    /// Tokens that a grammar forced, which took no pass.
    forced_tokens: usize,
    /// Distinct tokens drafted.
    draft_tokens: usize,
    /// For each position on the drafted path, how often a token was drafted there.
    drafted: Vec<usize>,
    /// For each position, how often the token there was accepted.
    accepted: Vec<usize>,
}

impl Speculated {
    /// Tokens drafted, and how many of them were accepted.
    pub fn drafts(&self) -> (usize, usize) {
        (self.draft_tokens, self.accepted.iter().sum())
    }
}

impl Usage {
    /// Of prompts with so many tokens, before anything was generated.
    pub fn of_prompts(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens, ..Self::default() }
    }

    /// Counts so many tokens of a sequence, of which some were counted before.
    pub fn count(&mut self, tokens: usize, before: usize) {
        self.completion_tokens = self.completion_tokens + tokens - before;
        self.total_tokens = self.total_tokens + tokens - before;
    }

    /// The same before so many tokens.
    pub fn without(&self, tokens: usize) -> Self {
        let completion_tokens = self.completion_tokens.saturating_sub(tokens);
        let total_tokens = self.total_tokens.saturating_sub(tokens);
        Self { completion_tokens, total_tokens, ..self.clone() }
    }

    /// The usage so far, as part of a stream: its speculation is known at the end.
    pub fn so_far(&self) -> Value {
        let Self { prompt_tokens, completion_tokens, total_tokens, .. } = self;
        json!({ "prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
            "total_tokens": total_tokens })
    }

    /// Adds the speculation of a sequence.
    pub fn add(&mut self, statistics: &Statistics) {
        let Speculated { target_calls, forced_tokens, draft_tokens, drafted, accepted } =
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
