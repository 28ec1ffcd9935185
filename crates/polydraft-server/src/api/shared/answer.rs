//! Answers, full or in chunks.

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
use super::sequence::{Call, SequenceOutput};
use super::timings::{Clock, Progress, TimingOptions};
use super::tokens::{Naming, PromptLogprobs, PromptScores};
use super::usage::Usage;
use super::{steps, tokens};
use crate::LoadedModel;
use crate::api::{Reply, StreamEvent};
use crate::worker::{Event, Failure, RequestParams};
use frame::{Choice, Frame, Logprobs, members};

/// Route of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`
    Completion,
    /// `/v1/chat/completions`
    Chat,
}

/// Chunks of a stream that report the usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamUsage {
    /// None.
    #[default]
    Never,
    /// An additional last chunk.
    LastChunk,
    /// Every chunk, and an additional last one.
    EveryChunk,
}

/// Answer to one request, as it grows.
pub struct Answer {
    shape: Shape,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    tokenizer: Tokenizer,
    has_scores: bool,
    /// Whether the prompt's scores are a separate field, in addition to those of an echo.
    lists_prompt_scores: bool,
    /// Tokens of the prompts, if ids are listed.
    prompt_ids: Option<Vec<Vec<Token>>>,
    /// Whether an echo includes special tokens, because the prompts were sent as tokens.
    echoes_special: bool,
    /// Prompts as strings, if they are included.
    prompt_strings: Option<Vec<String>>,
    naming: Naming,
    stream_usage: StreamUsage,
    usage: Usage,
    /// First token and length of each prompt.
    prompt_starts: Vec<(Token, usize)>,
    clock: Clock,
    timing_options: TimingOptions,
    /// Unsent reports of progress, and the last one.
    progress: Vec<Progress>,
    last_progress: Option<Progress>,
    sequences: Vec<SequenceOutput>,
}

impl Answer {
    /// Creates an empty answer, by the model of this name. Each sequence begins with its prompt of
    /// `echo`, if given.
    pub fn new(
        model: &LoadedModel,
        model_name: Option<String>,
        shape: Shape,
        requests: &[RequestParams],
        stream_usage: StreamUsage,
        echo: Vec<String>,
    ) -> Self {
        let prefix = if shape == Shape::Chat { "chatcmpl" } else { "cmpl" };
        let prompt_tokens = requests.iter().map(|params| params.prompt.len()).sum();
        let usage = Usage::for_prompts(prompt_tokens);
        let echoed = |number: usize| echo.get(number).cloned().unwrap_or_default();
        let sequences = requests
            .iter()
            .enumerate()
            .flat_map(|(number, params)| (0..params.count).map(move |_| number));
        let sequences = sequences.map(|number| {
            let text = echoed(number);
            // With scores, the prompt's tokens are listed too.
            let listed = requests[number].prompt_scores.is_some();
            let offset = if listed { 0 } else { text.chars().count() };
            SequenceOutput {
                prompt: number,
                echoes_prompt: !text.is_empty(),
                offset,
                text,
                ..SequenceOutput::default()
            }
        });
        Self {
            shape,
            id: format!("{prefix}-{:032x}", polydraft_runtime::random::<u128>()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: model_name.unwrap_or_else(|| model.name().to_owned()),
            fingerprint: model.fingerprint.clone(),
            tokenizer: model.language.tokenizer.clone(),
            has_scores: requests.iter().any(|params| params.scores.is_some()),
            lists_prompt_scores: false,
            prompt_ids: None,
            echoes_special: false,
            prompt_strings: None,
            naming: Naming::String,
            stream_usage,
            usage,
            prompt_starts: requests
                .iter()
                .map(|params| (params.prompt.first().copied().unwrap_or(0), params.prompt.len()))
                .collect(),
            clock: Clock::new(),
            timing_options: TimingOptions::default(),
            progress: Vec::new(),
            last_progress: None,
            sequences: sequences.collect(),
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
        if !self.has_scores {
            return None;
        }
        let Self { tokenizer, naming, .. } = self;
        Some(match self.shape {
            Shape::Chat => Logprobs::Chat {
                content: tokens::chat_logprobs(tokenizer, *naming, scores),
                refusal: (),
            },
            Shape::Completion => {
                let generated = &mut self.sequences[number];
                let echoed = prompt.filter(|_| generated.echoes_prompt).cloned();
                let offset = &mut generated.offset;
                Logprobs::Completion(tokens::completion_logprobs(
                    tokenizer, *naming, echoed, scores, offset,
                ))
            }
        })
    }

    /// Scores of the prompt, if they are a separate field.
    fn prompt_logprobs(&self, prompt: Option<Arc<PromptScores>>) -> Option<PromptLogprobs> {
        let scores = prompt.filter(|_| self.lists_prompt_scores)?;
        Some(PromptLogprobs { tokenizer: self.tokenizer.clone(), scores })
    }

    /// Adds token ids, if requested. Full answers have these fields in any case, as null: vLLM's
    /// clients expect them.
    fn add_token_ids(&self, choice: &mut Map<String, Value>, prompt: Option<usize>, ids: &[Token]) {
        if let Some(prompt_ids) = &self.prompt_ids {
            choice.insert("token_ids".to_owned(), json!(ids));
            if let Some(prompt) = prompt {
                choice.insert("prompt_token_ids".to_owned(), json!(prompt_ids[prompt]));
            }
        }
    }

    /// Adds the prompt's ids next to the choices in conversations, which have one prompt.
    fn add_prompt_ids(&self, frame: &mut Frame) {
        if let (Shape::Chat, Some(prompt_ids)) = (self.shape, &self.prompt_ids) {
            frame.add("prompt_token_ids", json!(prompt_ids[0]));
        }
    }

    /// Chunk with the new output of one sequence.
    fn chunk(&mut self, index: usize) -> Frame {
        let generated = &mut self.sequences[index];
        let (text, scores) =
            (std::mem::take(&mut generated.text), std::mem::take(&mut generated.scores));
        let (reasoning, traces) =
            (std::mem::take(&mut generated.reasoning), std::mem::take(&mut generated.traces));
        let first = !std::mem::replace(&mut generated.started, true);
        let number = generated.prompt;
        let finish_reason = generated.finish_reason();
        let calls =
            generated.calls.iter_mut().enumerate().filter_map(|(index, call)| call.delta(index));
        let calls: Vec<Value> = calls.collect();
        let prompt = generated.prompt_scores.take();
        let ids: Vec<Token> = scores.iter().map(|scored| scored.token).collect();
        // In completions a chunk without tokens has empty lists, as in OpenAI's interface.
        let none = scores.is_empty() && prompt.is_none() && self.shape == Shape::Chat;
        let logprobs = match none {
            true => None,
            false => self.logprobs(index, prompt.as_ref(), scores),
        };
        let mut of_prompt = self.prompt_logprobs(prompt).map(Some);
        let choice = match self.shape {
            Shape::Completion => {
                let fields =
                    json!({ "index": index, "text": text, "finish_reason": finish_reason });
                let mut fields = members(fields);
                self.add_token_ids(&mut fields, first.then_some(number), &ids);
                Choice { fields, logprobs, prompt_logprobs: of_prompt.take() }
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
                let fields = json!({ "index": index, "delta": delta,
                    "finish_reason": finish_reason });
                let mut fields = members(fields);
                self.add_token_ids(&mut fields, None, &ids);
                Choice { fields, logprobs, prompt_logprobs: None }
            }
        };
        let mut chunk = self.frame(true, vec![choice]);
        chunk.prompt_logprobs = of_prompt;
        if !traces.is_empty() {
            let steps: Value =
                traces.iter().map(|trace| steps::step_object(&self.tokenizer, trace)).collect();
            chunk.add("steps", steps);
        }
        if self.timing_options.timings {
            chunk.add("timings", self.timings(index));
        }
        if first && index == 0 {
            self.add_prompts(&mut chunk);
        }
        self.add_usage(chunk)
    }

    /// Chunk that reports the progress of the prefill.
    fn progress_chunk(&self, index: usize, progress: Progress, timings: Value) -> Frame {
        let fields = match self.shape {
            Shape::Completion => ("text", json!("")),
            Shape::Chat => ("delta", json!({})),
        };
        let mut choice = json!({ "index": index, "finish_reason": null });
        choice[fields.0] = fields.1;
        let mut chunk = self.choice_chunk(choice);
        chunk.add("prompt_progress", progress.to_json());
        if self.timing_options.timings {
            chunk.add("timings", timings);
        }
        self.add_usage(chunk)
    }

    /// Chunk of one choice without log-probabilities.
    fn choice_chunk(&self, choice: Value) -> Frame {
        let fields = members(choice);
        self.frame(true, vec![Choice { fields, logprobs: None, prompt_logprobs: None }])
    }

    fn add_usage(&self, mut chunk: Frame) -> Frame {
        match self.stream_usage {
            StreamUsage::Never => {}
            StreamUsage::LastChunk => chunk.add("usage", Value::Null),
            StreamUsage::EveryChunk => chunk.add("usage", self.usage.so_far()),
        }
        chunk
    }

    /// Chunk with the role, sent before any content.
    fn role_chunk(&self, index: usize) -> Frame {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "finish_reason": null });
        let mut chunk = self.choice_chunk(choice);
        self.add_prompt_ids(&mut chunk);
        let mut chunk = self.add_usage(chunk);
        if self.stream_usage == StreamUsage::EveryChunk {
            // Tokens that are already known are reported with the next chunk.
            let before = self.usage.without(self.sequences[index].tokens);
            chunk.add("usage", before.so_far());
        }
        chunk
    }

    /// Adds the prompts as the model reads them: llama.cpp's `__verbose`.
    fn add_prompts(&self, frame: &mut Frame) {
        match self.prompt_strings.as_deref() {
            None => {}
            Some([only]) => frame.add("__verbose", json!({ "prompt": only })),
            Some(several) => frame.add("__verbose", json!({ "prompt": several })),
        }
    }

    /// Last chunk with the usage, if requested.
    fn usage_chunk(&self) -> Option<Frame> {
        let wanted = self.stream_usage != StreamUsage::Never;
        let mut chunk = wanted.then(|| self.frame(true, Vec::new()))?;
        chunk.add("usage", json!(self.usage));
        if self.timing_options.timings {
            chunk.add("timings", self.timings(0));
        }
        Some(chunk)
    }
}

impl Reply for Answer {
    fn is_complete(&self) -> bool {
        self.sequences.iter().all(|generated| generated.finish.is_some())
    }

    fn apply(&mut self, event: Event) -> Result<usize, Problem> {
        match event {
            Event::PromptScores { sequence, scores } => {
                let number = self.sequences[sequence].prompt;
                let (first, special) = (self.prompt_starts[number].0, self.echoes_special);
                let scores = Arc::new(PromptScores { first, others: scores, special });
                let of_prompt =
                    self.sequences.iter_mut().filter(|generated| generated.prompt == number);
                of_prompt.for_each(|generated| generated.prompt_scores = Some(scores.clone()));
                Ok(sequence)
            }
            Event::Progress { sequence, processed, cached, total } => {
                let at = self.clock.elapsed();
                if self.last_progress.is_none() {
                    self.clock.start_prefill(at);
                }
                let since = self.last_progress.map_or(at, |last_progress| last_progress.since);
                let progress = Progress { total, cached, processed, at, since };
                self.last_progress = Some(progress);
                self.progress.push(progress);
                Ok(sequence)
            }
            Event::Output { sequence, tokens, output, scores, traces } => {
                self.clock.end_prefill();
                let generated = &mut self.sequences[sequence];
                self.usage.count(generated.tokens + tokens, generated.tokens);
                generated.tokens += tokens;
                let thoughts = generated.push(output, tokens, &self.tokenizer);
                self.usage.completion_tokens_details.reasoning_tokens += thoughts;
                generated.scores.extend(scores);
                generated.traces.extend(traces);
                Ok(sequence)
            }
            // Ended by the server, not by the client: the answer is incomplete.
            Event::End { finish: Finish::Stopped, .. } => Err(Failure::Stopping.into()),
            Event::End { sequence, finish, tokens, cached, statistics } => {
                self.sequences[sequence].finish(finish);
                let before = std::mem::replace(&mut self.sequences[sequence].tokens, tokens);
                self.usage.count(tokens, before);
                self.usage.add_statistics(&statistics);
                self.usage.prompt_tokens_details.cached_tokens += cached;
                Ok(sequence)
            }
            Event::Failed(failure) => Err(failure.into()),
        }
    }

    fn full_response(mut self: Box<Self>) -> Response {
        let mut chat_prompt = None;
        let choices = (0..self.sequences.len()).map(|index| {
            let generated = &mut self.sequences[index];
            let (text, scores) =
                (std::mem::take(&mut generated.text), std::mem::take(&mut generated.scores));
            let (finish_reason, calls) =
                (generated.finish_reason(), std::mem::take(&mut generated.calls));
            let reasoning = std::mem::take(&mut generated.reasoning);
            let (number, prompt) = (generated.prompt, generated.prompt_scores.take());
            let ids: Vec<Token> = scores.iter().map(|scored| scored.token).collect();
            let logprobs = self.logprobs(index, prompt.as_ref(), scores);
            let prompt = self.prompt_logprobs(prompt);
            match self.shape {
                Shape::Completion => {
                    let fields = json!({ "index": index, "text": text,
                        "finish_reason": finish_reason, "prompt_token_ids": null,
                        "token_ids": null });
                    let mut fields = members(fields);
                    self.add_token_ids(&mut fields, Some(number), &ids);
                    Choice { fields, logprobs, prompt_logprobs: Some(prompt) }
                }
                Shape::Chat => {
                    chat_prompt = prompt;
                    let mut message = json!({ "role": "assistant", "content": text,
                        "refusal": null });
                    if !calls.is_empty() {
                        message["tool_calls"] = calls.iter().map(Call::to_json).collect();
                        if message["content"] == "" {
                            message["content"] = Value::Null;
                        }
                    }
                    if !reasoning.is_empty() {
                        message["reasoning_content"] = reasoning.into();
                    }
                    let fields = json!({ "index": index, "message": message,
                        "finish_reason": finish_reason, "token_ids": null });
                    let mut fields = members(fields);
                    self.add_token_ids(&mut fields, None, &ids);
                    Choice { fields, logprobs, prompt_logprobs: None }
                }
            }
        });
        let choices = choices.collect();
        let mut full = self.frame(false, choices);
        if self.shape == Shape::Chat {
            full.prompt_logprobs = Some(chat_prompt);
            full.add("prompt_token_ids", Value::Null);
        }
        self.add_prompt_ids(&mut full);
        self.add_prompts(&mut full);
        full.add("usage", json!(self.usage));
        if self.timing_options.timings {
            full.add("timings", self.timings(0));
        }
        Json(full).into_response()
    }

    fn stream_events(&mut self, sequence: usize) -> Vec<StreamEvent> {
        let progress = self.take_progress();
        // Text that may become a call is withheld.
        if !self.sequences[sequence].has_unsent() {
            let progress = progress.into_iter().filter(|_| self.timing_options.progress);
            let chunk = |(progress, times)| {
                StreamEvent::unnamed(self.progress_chunk(sequence, progress, times).to_json())
            };
            return progress.map(chunk).collect();
        }
        let role = (self.shape == Shape::Chat && !self.sequences[sequence].started)
            .then(|| StreamEvent::unnamed(self.role_chunk(sequence).to_json()));
        role.into_iter().chain([StreamEvent::unnamed(self.chunk(sequence).to_json())]).collect()
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        self.usage_chunk()
            .map(|chunk| StreamEvent::unnamed(chunk.to_json()))
            .into_iter()
            .chain([StreamEvent::unnamed(DONE)])
            .collect()
    }

    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent> {
        vec![StreamEvent::unnamed(json!(problem)), StreamEvent::unnamed(DONE)]
    }
}

/// Last event of a stream.
const DONE: &str = "[DONE]";
