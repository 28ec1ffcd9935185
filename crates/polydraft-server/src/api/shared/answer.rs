//! Answers, whole or chunk by chunk.

mod frame;
mod view;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use polydraft::Token;
use polydraft_engine::{Finish, Scored};
use polydraft_text::Tokenizer;
use serde_json::{Map, Value, json};

use super::error::Problem;
use super::json::Json;
use super::part::{Call, Part};
use super::timings::{Clock, Progress, Tells};
use super::tokens::{ById, Naming, PromptScores};
use super::usage::Usage;
use super::{steps, tokens};
use crate::App;
use crate::api::{Reply, Sent};
use crate::worker::{Event, Failure, RequestParams};
use frame::{Choice, Frame, Logprobs, members};

/// The route of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// Where a stream tells the usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageTold {
    /// Nowhere.
    #[default]
    Never,
    /// In a last chunk of its own.
    AtTheEnd,
    /// There, and in every chunk so far.
    Always,
}

/// The answer to one request, as it grows.
pub struct Answer {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    text: Tokenizer,
    scored: bool,
    /// Whether the prompt's scores are a field of their own, besides those of an echo.
    prompt_scored: bool,
    /// The prompts' tokens, where ids are listed.
    prompts: Option<Vec<Vec<Token>>>,
    /// Whether prompts that are echoed came as tokens.
    echoes_tokens: bool,
    /// The prompts as strings, where they are told.
    read: Option<Vec<String>>,
    naming: Naming,
    usage_told: UsageTold,
    usage: Usage,
    /// By prompt, its first token, and how many it has.
    firsts: Vec<(Token, usize)>,
    clock: Clock,
    tells: Tells,
    /// What is not sent yet of how far it is, and the last of it.
    progress: Vec<Progress>,
    last: Option<Progress>,
    parts: Vec<Part>,
}

impl Answer {
    /// Of nothing yet, by the model of this name. Each sequence begins with its prompt of `echo`,
    /// if there are any.
    pub fn new(
        app: &App,
        model: Option<String>,
        shape: Shape,
        requests: &[RequestParams],
        usage_told: UsageTold,
        echo: Vec<String>,
    ) -> Self {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let prompt_tokens = requests.iter().map(|params| params.prompt.len()).sum();
        let usage = Usage::of_prompts(prompt_tokens);
        let echoed = |number: usize| echo.get(number).cloned().unwrap_or_default();
        let parts = requests
            .iter()
            .enumerate()
            .flat_map(|(number, params)| (0..params.count).map(move |_| number));
        let parts = parts.map(|number| {
            let text = echoed(number);
            // With its scores the prompt's tokens are listed too.
            let listed = requests[number].prompt_scores.is_some();
            let offset = if listed { 0 } else { text.chars().count() };
            Part { prompt: number, echoes: !text.is_empty(), offset, text, ..Part::default() }
        });
        Self {
            shape,
            id: format!("{prefix}-{:032x}", polydraft_runtime::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: model.unwrap_or_else(|| app.name().to_owned()),
            fingerprint: app.fingerprint.clone(),
            text: app.language.tokenizer.clone(),
            scored: requests.iter().any(|params| params.scores.is_some()),
            prompt_scored: false,
            prompts: None,
            echoes_tokens: false,
            read: None,
            naming: Naming::String,
            usage_told,
            usage,
            firsts: requests
                .iter()
                .map(|params| (params.prompt.first().copied().unwrap_or(0), params.prompt.len()))
                .collect(),
            clock: Clock::new(),
            tells: Tells::default(),
            progress: Vec::new(),
            last: None,
            parts: parts.collect(),
        }
    }

    fn frame(&self, chunk: bool, choices: Vec<Choice>) -> Frame {
        let object = match (self.shape, chunk) {
            (Shape::Completion, _) => "text_completion",
            (Shape::Chat, false) => "chat.completion",
            (Shape::Chat, true) => "chat.completion.chunk",
        };
        let Self { id, created, model, fingerprint, .. } = self;
        let head = json!({ "id": id, "object": object, "created": created, "model": model,
            "system_fingerprint": fingerprint });
        Frame { head: members(head), choices, prompt_logprobs: None, tail: Map::new() }
    }

    fn logprobs(
        &mut self,
        number: usize,
        prompt: Option<&Arc<PromptScores>>,
        scores: Vec<Scored>,
    ) -> Option<Logprobs> {
        if !self.scored {
            return None;
        }
        let Self { text, naming, .. } = self;
        Some(match self.shape {
            Shape::Chat => {
                Logprobs::Chat { content: tokens::chat(text, *naming, scores), refusal: () }
            }
            Shape::Completion => {
                let part = &mut self.parts[number];
                let echoed = prompt.filter(|_| part.echoes).cloned();
                let offset = &mut part.offset;
                Logprobs::Completion(tokens::completion(text, *naming, echoed, scores, offset))
            }
        })
    }

    /// The prompt's scores, where they are a field of their own.
    fn listed(&self, prompt: Option<Arc<PromptScores>>) -> Option<ById> {
        let scores = prompt.filter(|_| self.prompt_scored)?;
        Some(ById { text: self.text.clone(), scores })
    }

    /// Adds the ids of tokens, if they are asked for. In a whole answer these fields are there
    /// anyway, as null: vLLM's clients expect them.
    fn list_ids(&self, choice: &mut Map<String, Value>, prompt: Option<usize>, ids: &[Token]) {
        if let Some(prompts) = &self.prompts {
            choice.insert("token_ids".to_owned(), json!(ids));
            if let Some(prompt) = prompt {
                choice.insert("prompt_token_ids".to_owned(), json!(prompts[prompt]));
            }
        }
    }

    /// In conversations the prompt's ids stand beside the choices: there is one prompt.
    fn list_prompt_ids(&self, frame: &mut Frame) {
        if let (Shape::Chat, Some(prompts)) = (self.shape, &self.prompts) {
            frame.add("prompt_token_ids", json!(prompts[0]));
        }
    }

    /// What is new of one sequence.
    fn chunk(&mut self, index: usize) -> Frame {
        let part = &mut self.parts[index];
        let (text, scores) = (std::mem::take(&mut part.text), std::mem::take(&mut part.scores));
        let (reasoning, traces) =
            (std::mem::take(&mut part.reasoning), std::mem::take(&mut part.traces));
        let first = !std::mem::replace(&mut part.begun, true);
        let number = part.prompt;
        let finish_reason = part.reason();
        let calls = part.calls.iter_mut().enumerate().filter_map(|(index, call)| call.delta(index));
        let calls: Vec<Value> = calls.collect();
        let prompt = part.prompt_scores.take();
        let ids: Vec<Token> = scores.iter().map(|scored| scored.token).collect();
        // In completions a chunk without tokens has empty lists, as OpenAI's has.
        let none = scores.is_empty() && prompt.is_none() && self.shape == Shape::Chat;
        let logprobs = match none {
            true => None,
            false => self.logprobs(index, prompt.as_ref(), scores),
        };
        let mut of_prompt = self.listed(prompt).map(Some);
        let choice = match self.shape {
            Shape::Completion => {
                let said = json!({ "index": index, "text": text, "finish_reason": finish_reason });
                let mut said = members(said);
                self.list_ids(&mut said, first.then_some(number), &ids);
                Choice { said, logprobs, prompt_logprobs: of_prompt.take() }
            }
            Shape::Chat => {
                let mut delta = json!({});
                if !calls.is_empty() {
                    delta["tool_calls"] = calls.into();
                }
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = reasoning.into();
                }
                if !text.is_empty() {
                    delta["content"] = text.into();
                }
                let said = json!({ "index": index, "delta": delta,
                    "finish_reason": finish_reason });
                let mut said = members(said);
                self.list_ids(&mut said, None, &ids);
                Choice { said, logprobs, prompt_logprobs: None }
            }
        };
        let mut chunk = self.frame(true, vec![choice]);
        chunk.prompt_logprobs = of_prompt;
        if !traces.is_empty() {
            let steps: Value = traces.iter().map(|trace| steps::step(&self.text, trace)).collect();
            chunk.add("steps", steps);
        }
        if self.tells.timings {
            chunk.add("timings", self.timings(index));
        }
        if first && index == 0 {
            self.tell_prompts(&mut chunk);
        }
        self.with_usage(chunk)
    }

    /// A chunk that tells how much of the prompt is prefilled.
    fn progress_chunk(&self, index: usize, progress: Progress, timings: Value) -> Frame {
        let said = match self.shape {
            Shape::Completion => ("text", json!("")),
            Shape::Chat => ("delta", json!({})),
        };
        let mut choice = json!({ "index": index, "finish_reason": null });
        choice[said.0] = said.1;
        let mut chunk = self.saying(choice);
        chunk.add("prompt_progress", progress.told());
        if self.tells.timings {
            chunk.add("timings", timings);
        }
        self.with_usage(chunk)
    }

    /// A chunk of one choice without log-probabilities.
    fn saying(&self, choice: Value) -> Frame {
        let said = members(choice);
        self.frame(true, vec![Choice { said, logprobs: None, prompt_logprobs: None }])
    }

    fn with_usage(&self, mut chunk: Frame) -> Frame {
        match self.usage_told {
            UsageTold::Never => {}
            UsageTold::AtTheEnd => chunk.add("usage", Value::Null),
            UsageTold::Always => chunk.add("usage", self.usage.so_far()),
        }
        chunk
    }

    /// Who speaks, which is said before what is said.
    fn role_chunk(&self, index: usize) -> Frame {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "finish_reason": null });
        let mut chunk = self.saying(choice);
        self.list_prompt_ids(&mut chunk);
        let mut chunk = self.with_usage(chunk);
        if self.usage_told == UsageTold::Always {
            // What is already known of it is said with the next one.
            let before = self.usage.without(self.parts[index].tokens);
            chunk.add("usage", before.so_far());
        }
        chunk
    }

    /// llama.cpp's `__verbose`: what the model reads.
    fn tell_prompts(&self, frame: &mut Frame) {
        match self.read.as_deref() {
            None => {}
            Some([only]) => frame.add("__verbose", json!({ "prompt": only })),
            Some(several) => frame.add("__verbose", json!({ "prompt": several })),
        }
    }

    /// The last chunk, if it was asked for.
    fn usage_chunk(&self) -> Option<Frame> {
        let told = self.usage_told != UsageTold::Never;
        let mut chunk = told.then(|| self.frame(true, Vec::new()))?;
        chunk.add("usage", json!(self.usage));
        if self.tells.timings {
            chunk.add("timings", self.timings(0));
        }
        Some(chunk)
    }
}

impl Reply for Answer {
    fn is_complete(&self) -> bool {
        self.parts.iter().all(|part| part.finish.is_some())
    }

    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        match event {
            Event::Prompt { text, scores } => {
                let number = self.parts[text].prompt;
                let (first, special) = (self.firsts[number].0, self.echoes_tokens);
                let scores = Arc::new(PromptScores { first, others: scores, special });
                let of_prompt = self.parts.iter_mut().filter(|part| part.prompt == number);
                of_prompt.for_each(|part| part.prompt_scores = Some(scores.clone()));
                Ok(text)
            }
            Event::Progress { text, processed, cached, total } => {
                let at = self.clock.now();
                if self.last.is_none() {
                    self.clock.starts(at);
                }
                let since = self.last.map_or(at, |last| last.since);
                let progress = Progress { total, cached, processed, at, since };
                self.last = Some(progress);
                self.progress.push(progress);
                Ok(text)
            }
            Event::More { text, tokens, piece, scores, traces } => {
                self.clock.reads();
                let part = &mut self.parts[text];
                self.usage.count(part.tokens + tokens, part.tokens);
                part.tokens += tokens;
                part.push(piece);
                part.scores.extend(scores);
                part.traces.extend(traces);
                Ok(text)
            }
            // It was ended, and not by the client: the answer is not complete.
            Event::End { finish: Finish::Stopped, .. } => Err(Failure::Stopping.into()),
            Event::End { text, finish, tokens, cached, statistics } => {
                self.parts[text].finish(finish);
                let before = std::mem::replace(&mut self.parts[text].tokens, tokens);
                self.usage.count(tokens, before);
                self.usage.add(&statistics);
                self.usage.prompt_tokens_details.cached_tokens += cached;
                Ok(text)
            }
            Event::Failed(failure) => Err(failure.into()),
        }
    }

    fn whole(mut self: Box<Self>) -> Response {
        let mut of_chat = None;
        let choices = (0..self.parts.len()).map(|index| {
            let part = &mut self.parts[index];
            let (text, scores) = (std::mem::take(&mut part.text), std::mem::take(&mut part.scores));
            let (finish_reason, calls) = (part.reason(), std::mem::take(&mut part.calls));
            let reasoning = std::mem::take(&mut part.reasoning);
            let (number, prompt) = (part.prompt, part.prompt_scores.take());
            let ids: Vec<Token> = scores.iter().map(|scored| scored.token).collect();
            let logprobs = self.logprobs(index, prompt.as_ref(), scores);
            let prompt = self.listed(prompt);
            match self.shape {
                Shape::Completion => {
                    let said = json!({ "index": index, "text": text,
                        "finish_reason": finish_reason, "prompt_token_ids": null,
                        "token_ids": null });
                    let mut said = members(said);
                    self.list_ids(&mut said, Some(number), &ids);
                    Choice { said, logprobs, prompt_logprobs: Some(prompt) }
                }
                Shape::Chat => {
                    of_chat = prompt;
                    let mut message = json!({ "role": "assistant", "content": text,
                        "refusal": null });
                    if !calls.is_empty() {
                        message["tool_calls"] = calls.iter().map(Call::whole).collect();
                        if message["content"] == "" {
                            message["content"] = Value::Null;
                        }
                    }
                    if !reasoning.is_empty() {
                        message["reasoning_content"] = reasoning.into();
                    }
                    let said = json!({ "index": index, "message": message,
                        "finish_reason": finish_reason, "token_ids": null });
                    let mut said = members(said);
                    self.list_ids(&mut said, None, &ids);
                    Choice { said, logprobs, prompt_logprobs: None }
                }
            }
        });
        let choices = choices.collect();
        let mut whole = self.frame(false, choices);
        if self.shape == Shape::Chat {
            whole.prompt_logprobs = Some(of_chat);
            whole.add("prompt_token_ids", Value::Null);
        }
        self.list_prompt_ids(&mut whole);
        self.tell_prompts(&mut whole);
        whole.add("usage", json!(self.usage));
        if self.tells.timings {
            whole.add("timings", self.timings(0));
        }
        Json(whole).into_response()
    }

    fn more(&mut self, text: usize) -> Vec<Sent> {
        let progress = self.take_progress();
        // What may yet become a call is not sent.
        if !self.parts[text].is_news() {
            let progress = progress.into_iter().filter(|_| self.tells.progress);
            let chunk =
                |(progress, times)| Sent::data(self.progress_chunk(text, progress, times).text());
            return progress.map(chunk).collect();
        }
        let role = (self.shape == Shape::Chat && !self.parts[text].begun)
            .then(|| Sent::data(self.role_chunk(text).text()));
        role.into_iter().chain([Sent::data(self.chunk(text).text())]).collect()
    }

    fn end(&mut self) -> Vec<Sent> {
        self.usage_chunk()
            .map(|chunk| Sent::data(chunk.text()))
            .into_iter()
            .chain([Sent::data(DONE)])
            .collect()
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        vec![Sent::data(json!(problem)), Sent::data(DONE)]
    }
}

/// The last event of a stream.
const DONE: &str = "[DONE]";
