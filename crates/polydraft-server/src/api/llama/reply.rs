//! Answers of llama.cpp's own route, full or streamed.

use axum::response::{IntoResponse, Response};
use polydraft_engine::{Finish, Scored};
use serde_json::{Map, Value, json};

use crate::api::shared::answer::Answer;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::timings::Progress;
use crate::api::shared::tokens::{sampled_tokens_with_ids, tokens_with_ids};
use crate::api::{Reply, StreamEvent};
use crate::worker::{Event, RequestParams};

/// Contents of an answer.
pub struct ReplyOptions {
    /// Whether to include token ids.
    pub tokens: bool,
    /// Whether to include probabilities of tokens, and which.
    pub probabilities: Option<Probabilities>,
    /// Whether the answer is a list.
    pub several: bool,
    /// Fields to include; empty for all.
    pub fields: Vec<String>,
}

/// Kind of token probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probabilities {
    /// Log-probabilities at temperature 1.
    Logprobs,
    /// Probabilities in the sampled distribution: after temperature, filters, biases, penalties and
    /// grammar.
    Sampled,
}

/// Answer to one request.
pub struct NativeReply {
    inner: Answer,
    model: String,
    options: ReplyOptions,
    /// Text and settings of each prompt.
    prompts: Vec<(String, Value)>,
    /// Bytes and tokens sent of each sequence.
    sent: Vec<(usize, usize)>,
    /// Stop strings.
    stops: Vec<String>,
}

impl NativeReply {
    /// Creates an empty answer.
    pub fn new(
        inner: Answer,
        model: String,
        context: usize,
        requests: &[RequestParams],
        options: ReplyOptions,
    ) -> Self {
        let settings = |params: &RequestParams| {
            let text = inner.tokenizer().decode_with_special(&params.prompt).unwrap_or_default();
            let (sampling, limits) = (&params.sampling, &params.limits);
            let penalties = &params.penalties;
            let repetition = penalties.repetition.as_ref();
            let settings = json!({ "n_ctx": context,
                "n_predict": limits.max_tokens.map_or(-1, |most| most as i64),
                "seed": params.seed, "temperature": sampling.temperature,
                "top_k": sampling.top_k.unwrap_or(0), "top_p": sampling.top_p,
                "min_p": sampling.min_p, "presence_penalty": penalties.presence,
                "frequency_penalty": penalties.frequency,
                "repeat_penalty": repetition.map_or(1.0, |repetition| repetition.penalty),
                "stop": limits.stop, "min_tokens": params.min_tokens,
                // JSON has no number for −∞.
                "logit_bias": penalties.bias.iter().map(|(token, bias)| {
                    let bias = bias.is_finite().then_some(bias);
                    json!({ "token": token, "bias": bias })
                }).collect::<Vec<_>>(),
                "post_sampling_probs": options.probabilities == Some(Probabilities::Sampled),
                // Samplers of llama.cpp that are not supported here: off.
                "dynatemp_range": 0.0, "top_n_sigma": -1.0, "xtc_probability": 0.0,
                "typical_p": 1.0, "dry_multiplier": 0.0, "mirostat": 0, "adaptive_target": -1.0,
                "adaptive_decay": 0.0 });
            (text, settings)
        };
        let sequences = requests.iter().map(|params| params.count).sum();
        Self {
            prompts: requests.iter().map(settings).collect(),
            sent: vec![(0, 0); sequences],
            stops: requests.first().map(|params| params.limits.stop.clone()).unwrap_or_default(),
            inner,
            model,
            options,
        }
    }

    fn probabilities(&self, scores: &[Scored]) -> Option<Value> {
        let text = self.inner.tokenizer();
        Some(match self.options.probabilities? {
            Probabilities::Logprobs => json!(tokens_with_ids(text, scores)),
            Probabilities::Sampled => json!(sampled_tokens_with_ids(text, scores)),
        })
    }

    fn token_ids(&self, scores: &[Scored]) -> Vec<u32> {
        scores.iter().filter(|_| self.options.tokens).map(|scored| scored.token).collect()
    }

    /// Progress of the prefill.
    fn progress_object(&self, index: usize, progress: Progress, timings: &Value) -> Value {
        json!({ "index": index, "content": "", "tokens": [], "stop": false, "id_slot": 0,
            "tokens_predicted": 0, "tokens_evaluated": self.prompt_length(index),
            "prompt_progress": progress.to_json(), "timings": timings })
    }

    /// Number of tokens of a sequence's prompt.
    fn prompt_length(&self, index: usize) -> usize {
        self.inner.prompt_length(self.inner.sequences()[index].prompt)
    }

    /// Kind of end of a sequence, and the stop string, known if there is only one.
    fn stop_fields(&self, index: usize) -> (&'static str, &str) {
        match self.inner.sequences()[index].finish {
            None | Some(Finish::Stopped) => ("none", ""),
            Some(Finish::End) => ("eos", ""),
            Some(Finish::MaxTokens | Finish::Context) => ("limit", ""),
            Some(Finish::Stop) => match &self.stops[..] {
                [only] => ("word", only),
                _ => ("word", ""),
            },
        }
    }

    /// Final object of a sequence, with the `content` and `scores` that are not sent yet.
    fn final_object(&self, index: usize, content: &str, scores: &[Scored]) -> Value {
        let generated = &self.inner.sequences()[index];
        let (stop_type, stopping_word) = self.stop_fields(index);
        let (prompt, settings) = &self.prompts[generated.prompt];
        let cached = self.inner.usage().prompt_tokens_details.cached_tokens;
        let mut final_object = json!({ "index": index, "content": content,
            "tokens": self.token_ids(scores), "id_slot": 0, "stop": true, "model": self.model,
            "tokens_predicted": generated.tokens,
            "tokens_evaluated": self.prompt_length(index), "generation_settings": settings,
            "prompt": prompt, "has_new_line": generated.text.contains('\n'), "truncated": false,
            "stop_type": stop_type, "stopping_word": stopping_word, "tokens_cached": cached,
            "timings": self.inner.timings(index) });
        if let Some(probabilities) = self.probabilities(scores) {
            final_object["completion_probabilities"] = probabilities;
        }
        match self.options.fields.is_empty() {
            true => final_object,
            false => select_fields(&final_object, &self.options.fields),
        }
    }
}

/// Selects fields by name; `a/b` is member b of member a.
fn select_fields(full: &Value, fields: &[String]) -> Value {
    let found = |field: &String| {
        let value = full.pointer(&format!("/{field}"))?;
        Some((field.clone(), value.clone()))
    };
    Value::Object(fields.iter().filter_map(found).collect::<Map<_, _>>())
}

impl Reply for NativeReply {
    fn apply(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.apply(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn full_response(self: Box<Self>) -> Response {
        let sequence_object = |index: usize| {
            let generated = &self.inner.sequences()[index];
            self.final_object(index, &generated.text, &generated.scores)
        };
        let mut all: Vec<Value> = (0..self.sent.len()).map(sequence_object).collect();
        let all = match self.options.several {
            true => all.into(),
            false => all.pop().unwrap_or_default(),
        };
        Json(all).into_response()
    }

    fn stream_events(&mut self, index: usize) -> Vec<StreamEvent> {
        let progress = self.inner.take_progress().into_iter();
        let timing_options = self.inner.timing_options();
        let progress = progress.filter(|_| timing_options.progress);
        let mut sent: Vec<StreamEvent> = progress
            .map(|(progress, timings)| {
                StreamEvent::unnamed(self.progress_object(index, progress, &timings))
            })
            .collect();
        let generated = &self.inner.sequences()[index];
        let (bytes, tokens) = self.sent[index];
        let (text, scores) = (&generated.text[bytes..], &generated.scores[tokens..]);
        if !text.is_empty() || !scores.is_empty() {
            let mut more = json!({ "index": index, "content": text,
                "tokens": self.token_ids(scores), "stop": false, "id_slot": 0,
                "tokens_predicted": generated.tokens,
                "tokens_evaluated": self.prompt_length(index) });
            if let Some(probabilities) = self.probabilities(scores) {
                more["completion_probabilities"] = probabilities;
            }
            if timing_options.timings {
                more["timings"] = self.inner.timings(index);
            }
            sent.push(StreamEvent::unnamed(more));
        }
        if generated.finish.is_some() {
            // The final object follows the content.
            sent.push(StreamEvent::unnamed(self.final_object(index, "", &[])));
        }
        self.sent[index] = (generated.text.len(), generated.scores.len());
        sent
    }

    fn stream_end(&mut self) -> Vec<StreamEvent> {
        Vec::new()
    }

    fn stream_error(&mut self, problem: &Problem) -> Vec<StreamEvent> {
        vec![StreamEvent::unnamed(json!(problem))]
    }
}
