//! Answers, whole or chunk by chunk.

use std::time::{SystemTime, UNIX_EPOCH};

use polydraft_engine::{Finish, Scored, Statistics, Trace};
use polydraft_text::Tokenizer;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::calls::{Calls, Said};
use super::error::Problem;
use super::{Reply, Sent, steps, tokens};
use crate::App;
use crate::worker::{Event, Failure, RequestParams};

/// The route of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// The usage of an answer.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the sequences.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// Counts of speculation.
    pub speculation: Speculated,
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

impl Usage {
    fn add(&mut self, tokens: usize, statistics: &Statistics) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
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

/// A call of a tool.
#[derive(Debug)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// JSON, as far as it is known.
    pub arguments: String,
    /// Bytes of it sent so far; none before its first delta.
    told: Option<usize>,
}

impl Call {
    fn new(name: String) -> Self {
        let id = format!("call_{:032x}", rand::random::<u128>());
        Self { id, name, arguments: String::new(), told: None }
    }

    /// What is new of it; none if nothing is. The id and the name stand in the first one.
    fn delta(&mut self, index: usize) -> Option<Value> {
        let new = &self.arguments[self.told.unwrap_or(0)..];
        if self.told.is_some() && new.is_empty() {
            return None;
        }
        let mut delta = json!({ "index": index, "function": { "arguments": new } });
        if self.told.replace(self.arguments.len()).is_none() {
            delta["id"] = self.id.as_str().into();
            delta["type"] = "function".into();
            delta["function"]["name"] = self.name.as_str().into();
        }
        Some(delta)
    }
}

/// One sequence of the answer, as far as it is known.
#[derive(Debug, Default)]
struct Part {
    text: String,
    /// Parses calls in the output, where there may be some.
    reader: Option<Calls>,
    calls: Vec<Call>,
    scores: Vec<Scored>,
    traces: Vec<Trace>,
    finish: Option<Finish>,
    /// Characters of its tokens sent so far.
    offset: usize,
    /// Whether its first chunk was sent.
    begun: bool,
}

impl Part {
    fn said(&mut self, said: Vec<Said>) {
        for said in said {
            match (said, self.calls.last_mut()) {
                (Said::Text(text), _) => self.text.push_str(&text),
                (Said::Call(name), _) => self.calls.push(Call::new(name)),
                (Said::Arguments(more), Some(call)) => call.arguments.push_str(&more),
                // There are no arguments without a call.
                (Said::Arguments(_), None) => {}
            }
        }
    }

    /// Why it ended, in the interface's words.
    fn reason(&self) -> Option<&'static str> {
        Some(match self.finish? {
            Finish::MaxTokens | Finish::Context => "length",
            Finish::End | Finish::Stop | Finish::Stopped if self.calls.is_empty() => "stop",
            Finish::End | Finish::Stop | Finish::Stopped => "tool_calls",
        })
    }

    /// Whether anything of it is not sent yet.
    fn is_news(&self) -> bool {
        let called = self.calls.iter().any(|call| call.told != Some(call.arguments.len()));
        let said = !self.text.is_empty() || !self.scores.is_empty() || !self.traces.is_empty();
        said || called || self.finish.is_some()
    }
}

impl Answer {
    /// The first sequence, as far as it is known, and its finish reason if it has ended.
    pub fn first(&self) -> (&str, Option<Finish>) {
        self.parts.first().map_or(("", None), |part| (&part.text, part.finish))
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

    /// From now on calls of tools are parsed in each sequence.
    pub fn reads_calls(&mut self, reader: impl Fn() -> Calls) {
        self.parts.iter_mut().for_each(|part| part.reader = Some(reader()));
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

/// The answer to one request, as it grows.
pub struct Answer {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
    text: Tokenizer,
    scored: bool,
    include_usage: bool,
    usage: Usage,
    parts: Vec<Part>,
}

impl Answer {
    /// Of nothing yet. Each sequence begins with its prompt of `echo`, if there are any.
    pub fn new(
        app: &App,
        shape: Shape,
        asked: &[RequestParams],
        include_usage: bool,
        echo: Vec<String>,
    ) -> Self {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let prompt_tokens = asked.iter().map(|asked| asked.prompt.len()).sum();
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        let echoed = |number: usize| echo.get(number).cloned().unwrap_or_default();
        let parts = asked
            .iter()
            .enumerate()
            .flat_map(|(number, asked)| (0..asked.count).map(move |_| number));
        let parts = parts.map(|number| {
            let text = echoed(number);
            Part { offset: text.chars().count(), text, ..Part::default() }
        });
        Self {
            shape,
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: app.name.clone(),
            text: app.language.tokenizer.clone(),
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
        json!({ "id": id, "object": object, "created": created, "model": model,
            "choices": choices })
    }

    fn logprobs(&mut self, number: usize, scores: &[Scored]) -> Value {
        match (self.scored, self.shape) {
            (false, _) => Value::Null,
            (true, Shape::Chat) => {
                json!({ "content": tokens::chat(&self.text, scores), "refusal": null })
            }
            (true, Shape::Completion) => {
                tokens::completion(&self.text, scores, &mut self.parts[number].offset)
            }
        }
    }

    /// What is new of one sequence.
    fn chunk(&mut self, index: usize) -> Value {
        let part = &mut self.parts[index];
        let (text, scores) = (std::mem::take(&mut part.text), std::mem::take(&mut part.scores));
        let traces = std::mem::take(&mut part.traces);
        let first = !std::mem::replace(&mut part.begun, true);
        let finish_reason = part.reason();
        let calls = part.calls.iter_mut().enumerate().filter_map(|(index, call)| call.delta(index));
        let calls: Vec<Value> = calls.collect();
        let logprobs = if scores.is_empty() { Value::Null } else { self.logprobs(index, &scores) };
        let choice = match self.shape {
            Shape::Completion => {
                json!({ "index": index, "text": text, "logprobs": logprobs,
                    "finish_reason": finish_reason })
            }
            Shape::Chat => {
                let mut delta = json!({});
                if first {
                    delta["role"] = "assistant".into();
                }
                if !calls.is_empty() {
                    delta["tool_calls"] = calls.into();
                } else if first {
                    delta["content"] = "".into();
                }
                if !text.is_empty() {
                    delta["content"] = text.into();
                }
                json!({ "index": index, "delta": delta, "logprobs": logprobs,
                    "finish_reason": finish_reason })
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
                let said = match &mut part.reader {
                    Some(reader) => reader.push(&piece),
                    None => vec![Said::Text(piece)],
                };
                part.said(said);
                part.scores.extend(scores);
                part.traces.extend(traces);
                Ok(text)
            }
            // It was ended, and not by the client: the answer is not complete.
            Event::End { finish: Finish::Stopped, .. } => Err(Failure::Stopping.into()),
            Event::End { text, finish, tokens, statistics } => {
                let part = &mut self.parts[text];
                part.finish = Some(finish);
                let rest = part.reader.as_mut().map(Calls::finish);
                part.said(rest.unwrap_or_default());
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
            let (finish_reason, calls) = (part.reason(), std::mem::take(&mut part.calls));
            let logprobs = self.logprobs(index, &scores);
            match self.shape {
                Shape::Completion => {
                    json!({ "index": index, "text": text, "logprobs": logprobs,
                        "finish_reason": finish_reason })
                }
                Shape::Chat => {
                    let mut message = json!({ "role": "assistant", "content": text,
                        "refusal": null });
                    if !calls.is_empty() {
                        message["tool_calls"] = calls.iter().map(whole_call).collect();
                        if message["content"] == "" {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({ "index": index, "message": message, "logprobs": logprobs,
                        "finish_reason": finish_reason })
                }
            }
        });
        let choices = choices.collect();
        let mut whole = self.frame(false, choices);
        whole["usage"] = json!(self.usage);
        whole
    }

    fn more(&mut self, text: usize) -> Vec<Sent> {
        // What may yet become a call is not sent.
        match self.parts[text].is_news() {
            true => vec![Sent::data(self.chunk(text))],
            false => Vec::new(),
        }
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

fn whole_call(call: &Call) -> Value {
    let Call { id, name, arguments, .. } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}
