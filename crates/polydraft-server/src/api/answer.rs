//! Answers, whole or chunk by chunk.

use std::time::{SystemTime, UNIX_EPOCH};

use polydraft_engine::{Finish, Scored, Statistics, Trace};
use polydraft_text::Text;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::Problem;
use super::{Reply, Sent, steps, tokens};
use crate::App;
use crate::worker::{Asked, Event, Failure};

/// Which route answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// What an answer took.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the texts.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// What speculation did.
    pub speculation: Speculated,
}

/// What speculation did, over all texts.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Speculated {
    /// Passes of the target, the prompts' not among them.
    target_calls: usize,
    /// Distinct tokens drafted.
    draft_tokens: usize,
    /// For each position on the drafted path, how often a token was drafted there.
    drafted: Vec<usize>,
    /// For each position, how often the token there was accepted.
    accepted: Vec<usize>,
}

impl Usage {
    fn add(&mut self, tokens: usize, statistics: &Statistics) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
        let Speculated { target_calls, draft_tokens, drafted, accepted } = &mut self.speculation;
        *target_calls += statistics.target_calls;
        *draft_tokens += statistics.nodes;
        for (sum, counts) in [(drafted, &statistics.drafted), (accepted, &statistics.accepted)] {
            sum.resize(sum.len().max(counts.len()), 0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
}

/// One text of the answer, as far as it is known.
#[derive(Debug, Default)]
struct Part {
    text: String,
    scores: Vec<Scored>,
    traces: Vec<Trace>,
    finish: Option<Finish>,
    /// Characters of its tokens told so far.
    offset: usize,
    /// Whether its first chunk was sent.
    begun: bool,
}

impl Answer {
    /// The first text, as far as it is known, and why it ended if it has.
    pub fn first(&self) -> (&str, Option<Finish>) {
        self.parts.first().map_or(("", None), |part| (&part.text, part.finish))
    }

    /// Seconds since 1970 when it was begun.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// What it took so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// The answer to one request, as it grows.
pub struct Answer {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
    text: Text,
    scored: bool,
    include_usage: bool,
    usage: Usage,
    parts: Vec<Part>,
}

impl Answer {
    /// Of nothing yet. Each text begins with its prompt of `echo`, if there are any.
    pub fn new(app: &App, shape: Shape, asked: &[Asked], include_usage: bool, echo: Vec<String>) -> Self {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let prompt_tokens = asked.iter().map(|asked| asked.prompt.len()).sum();
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        let echoed = |number: usize| echo.get(number).cloned().unwrap_or_default();
        let parts =
            asked.iter().enumerate().flat_map(|(number, asked)| (0..asked.count).map(move |_| number));
        let parts = parts.map(|number| {
            let text = echoed(number);
            Part { offset: text.chars().count(), text, ..Part::default() }
        });
        Self {
            shape,
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: app.name.clone(),
            text: app.language.text.clone(),
            scored: asked.iter().any(|asked| asked.scores.is_some()),
            include_usage,
            usage,
            parts: parts.collect(),
        }
    }

    fn frame(&self, chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.shape, chunk) {
            (Shape::Completion, _) => "text_completion",
            (Shape::Chat, false) => "chat.completion",
            (Shape::Chat, true) => "chat.completion.chunk",
        };
        let Self { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }

    fn logprobs(&mut self, number: usize, scores: &[Scored]) -> Value {
        match (self.scored, self.shape) {
            (false, _) => Value::Null,
            (true, Shape::Chat) => json!({ "content": tokens::chat(&self.text, scores), "refusal": null }),
            (true, Shape::Completion) => {
                tokens::completion(&self.text, scores, &mut self.parts[number].offset)
            }
        }
    }

    /// What is new of one text.
    fn chunk(&mut self, index: usize) -> Value {
        let part = &mut self.parts[index];
        let (text, scores) = (std::mem::take(&mut part.text), std::mem::take(&mut part.scores));
        let traces = std::mem::take(&mut part.traces);
        let first = !std::mem::replace(&mut part.begun, true);
        let finish_reason = part.finish.map(reason);
        let logprobs = if scores.is_empty() { Value::Null } else { self.logprobs(index, &scores) };
        let choice = match self.shape {
            Shape::Completion => {
                json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason })
            }
            Shape::Chat => {
                let mut delta = json!({});
                if first {
                    delta["role"] = "assistant".into();
                }
                if first || !text.is_empty() {
                    delta["content"] = text.into();
                }
                json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason })
            }
        };
        let mut chunk = self.frame(true, vec![choice]);
        if !traces.is_empty() {
            chunk["steps"] = traces.iter().map(|trace| steps::step(&self.text, trace)).collect();
        }
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The last chunk, if it was asked for.
    fn usage_chunk(&self) -> Option<Value> {
        let mut chunk = self.include_usage.then(|| self.frame(true, Vec::new()))?;
        chunk["usage"] = json!(self.usage);
        Some(chunk)
    }
}

impl Reply for Answer {
    fn is_complete(&self) -> bool {
        self.parts.iter().all(|part| part.finish.is_some())
    }

    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        match event {
            Event::More { text, piece, scores, traces } => {
                let part = &mut self.parts[text];
                part.text.push_str(&piece);
                part.scores.extend(scores);
                part.traces.extend(traces);
                Ok(text)
            }
            // Somebody ended it who was not the client: there is more that nobody will say.
            Event::End { finish: Finish::Stopped, .. } => Err(Failure::Stopping.into()),
            Event::End { text, finish, tokens, statistics } => {
                self.parts[text].finish = Some(finish);
                self.usage.add(tokens, &statistics);
                Ok(text)
            }
            Event::Failed(failure) => Err(failure.into()),
        }
    }

    fn whole(mut self: Box<Self>) -> Value {
        let choices = (0..self.parts.len()).map(|index| {
            let part = &mut self.parts[index];
            let (text, scores) = (std::mem::take(&mut part.text), std::mem::take(&mut part.scores));
            let finish_reason = part.finish.map(reason);
            let logprobs = self.logprobs(index, &scores);
            match self.shape {
                Shape::Completion => {
                    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason })
                }
                Shape::Chat => {
                    let message = json!({ "role": "assistant", "content": text, "refusal": null });
                    json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason })
                }
            }
        });
        let choices = choices.collect();
        let mut whole = self.frame(false, choices);
        whole["usage"] = json!(self.usage);
        whole
    }

    fn more(&mut self, text: usize) -> Vec<Sent> {
        vec![Sent::data(self.chunk(text))]
    }

    fn end(&mut self) -> Vec<Sent> {
        self.usage_chunk().map(Sent::data).into_iter().chain([Sent::data(DONE)]).collect()
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        vec![Sent::data(json!(problem)), Sent::data(DONE)]
    }
}

/// The last event of a stream.
const DONE: &str = "[DONE]";

/// Why a text ended, in the interface's words.
fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop | Finish::Stopped => "stop",
        Finish::MaxTokens | Finish::Context => "length",
    }
}
