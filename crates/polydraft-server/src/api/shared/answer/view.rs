//! Accessors for other forms of an answer, and its settings.

use polydraft::Token;
use polydraft_engine::{Finish, Scored};
use polydraft_text::Tokenizer;
use serde_json::Value;

use super::super::reader::OutputReader;
use super::super::sequence::{Call, Run, SequenceOutput};
use super::super::timings::{Counts, Progress, TimingOptions};
use super::super::tokens::Naming;
use super::super::usage::Usage;
use super::Answer;

impl Answer {
    /// Text of the first sequence so far, and its finish reason once it has ended.
    pub fn first(&self) -> (&str, Option<Finish>) {
        self.sequences.first().map_or(("", None), |generated| (&generated.text, generated.finish))
    }

    /// All sequences so far.
    pub fn sequences(&self) -> &[SequenceOutput] {
        &self.sequences
    }

    /// Reasoning of the first sequence so far.
    pub fn reasoning(&self) -> &str {
        self.sequences.first().map_or("", |generated| &generated.reasoning)
    }

    /// Scores of the first sequence's tokens so far.
    pub fn scores(&self) -> &[Scored] {
        self.sequences.first().map_or(&[], |generated| &generated.scores)
    }

    /// Tokenizer of the answer's tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Calls of the first sequence so far.
    pub fn calls(&self) -> &[Call] {
        self.sequences.first().map_or(&[], |generated| &generated.calls)
    }

    /// Includes the scores of the prompt's tokens as a separate field.
    pub fn include_prompt_scores(&mut self) {
        self.lists_prompt_scores = true;
    }

    /// Includes token ids, also those of the prompts. `has_scores` sets whether to keep
    /// log-probabilities.
    pub fn include_token_ids(&mut self, prompts: Vec<Vec<Token>>, has_scores: bool) {
        self.prompt_ids = Some(prompts);
        self.has_scores = has_scores;
    }

    /// Includes special tokens in echoes, because the prompts were sent as tokens.
    pub fn echo_special_tokens(&mut self) {
        self.echoes_special = true;
    }

    /// Includes the prompts as the model reads them.
    pub fn include_prompts(&mut self, prompts: &[Vec<Token>]) {
        let text =
            |prompt: &Vec<Token>| self.tokenizer.decode_with_special(prompt).unwrap_or_default();
        self.prompt_strings = Some(prompts.iter().map(text).collect());
    }

    /// Names tokens by id in log-probabilities.
    pub fn name_tokens_by_id(&mut self) {
        self.naming = Naming::Id;
    }

    /// Parses reasoning and tool calls in each sequence from now on.
    pub fn parse_output(&mut self, reader: &OutputReader) {
        for generated in &mut self.sequences {
            generated.parser = Some(reader.parser());
            generated.omits_reasoning = reader.omits_reasoning;
        }
    }

    /// Kinds of output of the first sequence, in order.
    pub fn runs(&self) -> &[Run] {
        self.sequences.first().map_or(&[], |generated| &generated.runs)
    }

    /// Number of tokens at the end of each run of the first sequence.
    pub fn run_ends(&self) -> &[usize] {
        self.sequences.first().map_or(&[], |generated| &generated.run_ends)
    }

    /// Sets whether to report progress and timings.
    pub fn set_timing_options(&mut self, options: TimingOptions) {
        self.timing_options = options;
    }

    /// Whether to report progress and timings.
    pub fn timing_options(&self) -> TimingOptions {
        self.timing_options
    }

    /// Number of tokens of a prompt.
    pub fn prompt_length(&self, prompt: usize) -> usize {
        self.prompt_starts[prompt].1
    }

    /// Takes the unsent reports of progress, each with its timings.
    pub fn take_progress(&mut self) -> Vec<(Progress, Value)> {
        let new = std::mem::take(&mut self.progress);
        let with_times = |progress: Progress| {
            let Progress { cached, processed, at, .. } = progress;
            (
                progress,
                self.clock
                    .timings_at(at, Counts { cached, processed, generated: 0, drafts: (0, 0) }),
            )
        };
        new.into_iter().map(with_times).collect()
    }

    /// Timings of a sequence so far.
    pub fn timings(&self, index: usize) -> Value {
        let generated = &self.sequences[index];
        let cached = self.last_progress.map_or(0, |last_progress| last_progress.cached);
        let counts = Counts {
            cached: self.usage.prompt_tokens_details.cached_tokens.max(cached),
            processed: self.prompt_length(generated.prompt),
            generated: generated.tokens,
            drafts: self.usage.speculation.drafts(),
        };
        self.clock.timings_at(self.clock.elapsed(), counts)
    }

    /// Creation time in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// Usage so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}
