//! What other forms of an answer read of it, and what it is told to tell.

use polydraft::Token;
use polydraft_engine::{Finish, Scored};
use polydraft_text::Tokenizer;
use serde_json::Value;

use super::super::calls::Calls;
use super::super::part::{Call, Part};
use super::super::reasoning::Reasoning;
use super::super::timings::{Counts, Progress, Tells};
use super::super::tokens::Naming;
use super::super::usage::Usage;
use super::Answer;

impl Answer {
    /// The first sequence, as far as it is known, and its finish reason if it has ended.
    pub fn first(&self) -> (&str, Option<Finish>) {
        self.parts.first().map_or(("", None), |part| (&part.text, part.finish))
    }

    /// All sequences, as far as they are known.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What the model thought in the first sequence, as far as it is known.
    pub fn reasoning(&self) -> &str {
        self.parts.first().map_or("", |part| &part.reasoning)
    }

    /// The known scores of the first sequence's tokens.
    pub fn scores(&self) -> &[Scored] {
        self.parts.first().map_or(&[], |part| &part.scores)
    }

    /// The tokenizer of its tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.text
    }

    /// The calls in the first sequence, as far as they are known.
    pub fn calls(&self) -> &[Call] {
        self.parts.first().map_or(&[], |part| &part.calls)
    }

    /// The scores of the prompt's tokens are sent as a field of their own.
    pub fn lists_prompt_scores(&mut self) {
        self.prompt_scored = true;
    }

    /// The ids of tokens are fields of their own, those of the prompts too; whether there are
    /// log-probabilities besides.
    pub fn lists_token_ids(&mut self, prompts: Vec<Vec<Token>>, scored: bool) {
        self.prompts = Some(prompts);
        self.scored = scored;
    }

    /// Its prompts came as tokens: their echo has the special ones.
    pub fn echoes_tokens(&mut self) {
        self.echoes_tokens = true;
    }

    /// It tells the prompts as the model reads them.
    pub fn tells_prompts(&mut self, prompts: &[Vec<Token>]) {
        let text = |prompt: &Vec<Token>| self.text.decode_all(prompt).unwrap_or_default();
        self.read = Some(prompts.iter().map(text).collect());
    }

    /// Log-probabilities name tokens by their ids.
    pub fn names_tokens_by_id(&mut self) {
        self.naming = Naming::Id;
    }

    /// From now on calls of tools are parsed in each sequence.
    pub fn reads_calls(&mut self, reader: impl Fn() -> Calls) {
        self.parts.iter_mut().for_each(|part| part.reader = Some(reader()));
    }

    /// From now on reasoning is told apart in each sequence.
    pub fn reads_reasoning(&mut self, reasoner: impl Fn() -> Reasoning) {
        self.parts.iter_mut().for_each(|part| part.reasoner = Some(reasoner()));
    }

    /// It tells its progress or its times.
    pub fn tells(&mut self, tells: Tells) {
        self.tells = tells;
    }

    /// What it tells of them.
    pub fn told(&self) -> Tells {
        self.tells
    }

    /// How many tokens the prompt of this number has.
    pub fn prompt_length(&self, prompt: usize) -> usize {
        self.firsts[prompt].1
    }

    /// What is new of its progress, with the times of each.
    pub fn take_progress(&mut self) -> Vec<(Progress, Value)> {
        let new = std::mem::take(&mut self.progress);
        let with_times = |progress: Progress| {
            let Progress { cached, processed, at, .. } = progress;
            (progress, self.clock.at(at, Counts { cached, processed, written: 0, drafts: (0, 0) }))
        };
        new.into_iter().map(with_times).collect()
    }

    /// How long a sequence took so far.
    pub fn timings(&self, index: usize) -> Value {
        let part = &self.parts[index];
        let told = self.last.map_or(0, |last| last.cached);
        let counts = Counts {
            cached: self.usage.prompt_tokens_details.cached_tokens.max(told),
            processed: self.prompt_length(part.prompt),
            written: part.tokens,
            drafts: self.usage.speculation.drafts(),
        };
        self.clock.at(self.clock.now(), counts)
    }

    /// Seconds since 1970 when it was begun.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The usage so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}
