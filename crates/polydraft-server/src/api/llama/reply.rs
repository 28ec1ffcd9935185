//! Answers of llama.cpp's own route, whole or piece by piece.

use axum::response::{IntoResponse, Response};
use polydraft_engine::{Finish, Scored};
use serde_json::{Map, Value, json};

use crate::api::shared::answer::Answer;
use crate::api::shared::error::Problem;
use crate::api::shared::json::Json;
use crate::api::shared::timings::Progress;
use crate::api::shared::tokens::{sampled_with_ids, with_ids};
use crate::api::{Reply, Sent};
use crate::worker::{Event, RequestParams};

/// What an answer tells.
pub struct Told {
    /// The ids of its tokens.
    pub tokens: bool,
    /// The log-probabilities of its tokens, or their probabilities in the sampled distribution.
    pub probabilities: Option<Probabilities>,
    /// Whether it is a list.
    pub several: bool,
    /// Its members, if not all.
    pub fields: Vec<String>,
}

/// Which probabilities of tokens an answer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probabilities {
    /// Their logarithms at temperature 1.
    Logarithms,
    /// As they were sampled: after temperature, filters, biases, penalties and the grammar.
    Sampled,
}

/// The answer to one request.
pub struct Native {
    inner: Answer,
    model: String,
    told: Told,
    /// By prompt: its text, and the settings.
    prompts: Vec<(String, Value)>,
    /// By sequence: bytes and tokens sent.
    sent: Vec<(usize, usize)>,
    /// The stop strings.
    stops: Vec<String>,
}

impl Native {
    /// Of nothing yet.
    pub fn new(
        inner: Answer,
        model: String,
        context: usize,
        requests: &[RequestParams],
        told: Told,
    ) -> Self {
        let settings = |params: &RequestParams| {
            let text = inner.tokenizer().decode_all(&params.prompt).unwrap_or_default();
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
                "stop": limits.stop, "min_tokens": params.least_tokens,
                // What is −∞ has no other number in JSON.
                "logit_bias": penalties.bias.iter().map(|(token, bias)| {
                    let bias = bias.is_finite().then_some(bias);
                    json!({ "token": token, "bias": bias })
                }).collect::<Vec<_>>(),
                "post_sampling_probs": told.probabilities == Some(Probabilities::Sampled),
                // Samplers of llama.cpp that there are not here: each is off.
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
            told,
        }
    }

    fn probabilities(&self, scores: &[Scored]) -> Option<Value> {
        let text = self.inner.tokenizer();
        Some(match self.told.probabilities? {
            Probabilities::Logarithms => json!(with_ids(text, scores)),
            Probabilities::Sampled => json!(sampled_with_ids(text, scores)),
        })
    }

    fn ids(&self, scores: &[Scored]) -> Vec<u32> {
        scores.iter().filter(|_| self.told.tokens).map(|scored| scored.token).collect()
    }

    /// How much of the prompt is prefilled.
    fn progress(&self, index: usize, progress: Progress, timings: &Value) -> Value {
        json!({ "index": index, "content": "", "tokens": [], "stop": false, "id_slot": 0,
            "tokens_predicted": 0, "tokens_evaluated": self.length(index),
            "prompt_progress": progress.told(), "timings": timings })
    }

    /// How many tokens a sequence's prompt has.
    fn length(&self, index: usize) -> usize {
        self.inner.prompt_length(self.inner.parts()[index].prompt)
    }

    /// How a sequence ended, and by which of its stop strings: known if there is one.
    fn end_of(&self, index: usize) -> (&'static str, &str) {
        match self.inner.parts()[index].finish {
            None | Some(Finish::Stopped) => ("none", ""),
            Some(Finish::End) => ("eos", ""),
            Some(Finish::MaxTokens | Finish::Context) => ("limit", ""),
            Some(Finish::Stop) => match &self.stops[..] {
                [only] => ("word", only),
                _ => ("word", ""),
            },
        }
    }

    /// All of a sequence; `content` is what was not sent yet.
    fn last(&self, index: usize, content: &str, scores: &[Scored]) -> Value {
        let part = &self.inner.parts()[index];
        let (stop_type, stopping_word) = self.end_of(index);
        let (prompt, settings) = &self.prompts[part.prompt];
        let cached = self.inner.usage().prompt_tokens_details.cached_tokens;
        let mut last = json!({ "index": index, "content": content, "tokens": self.ids(scores),
            "id_slot": 0, "stop": true, "model": self.model, "tokens_predicted": part.tokens,
            "tokens_evaluated": self.length(index), "generation_settings": settings,
            "prompt": prompt, "has_new_line": part.text.contains('\n'), "truncated": false,
            "stop_type": stop_type, "stopping_word": stopping_word, "tokens_cached": cached,
            "timings": self.inner.timings(index) });
        if let Some(probabilities) = self.probabilities(scores) {
            last["completion_probabilities"] = probabilities;
        }
        match self.told.fields.is_empty() {
            true => last,
            false => chosen(&last, &self.told.fields),
        }
    }
}

/// The members of these names; `a/b` is member b of member a.
fn chosen(whole: &Value, fields: &[String]) -> Value {
    let found = |field: &String| {
        let value = whole.pointer(&format!("/{field}"))?;
        Some((field.clone(), value.clone()))
    };
    Value::Object(fields.iter().filter_map(found).collect::<Map<_, _>>())
}

impl Reply for Native {
    fn take(&mut self, event: Event) -> Result<usize, Problem> {
        self.inner.take(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn whole(self: Box<Self>) -> Response {
        let of = |index: usize| {
            let part = &self.inner.parts()[index];
            self.last(index, &part.text, &part.scores)
        };
        let mut all: Vec<Value> = (0..self.sent.len()).map(of).collect();
        let all = match self.told.several {
            true => all.into(),
            false => all.pop().unwrap_or_default(),
        };
        Json(all).into_response()
    }

    fn more(&mut self, index: usize) -> Vec<Sent> {
        let progress = self.inner.take_progress().into_iter();
        let tells = self.inner.told();
        let progress = progress.filter(|_| tells.progress);
        let mut sent: Vec<Sent> = progress
            .map(|(progress, timings)| Sent::data(self.progress(index, progress, &timings)))
            .collect();
        let part = &self.inner.parts()[index];
        let (bytes, tokens) = self.sent[index];
        let (text, scores) = (&part.text[bytes..], &part.scores[tokens..]);
        if !text.is_empty() || !scores.is_empty() {
            let mut more = json!({ "index": index, "content": text, "tokens": self.ids(scores),
                "stop": false, "id_slot": 0, "tokens_predicted": part.tokens,
                "tokens_evaluated": self.length(index) });
            if let Some(probabilities) = self.probabilities(scores) {
                more["completion_probabilities"] = probabilities;
            }
            if tells.timings {
                more["timings"] = self.inner.timings(index);
            }
            sent.push(Sent::data(more));
        }
        if part.finish.is_some() {
            // What it tells as a whole was sent.
            sent.push(Sent::data(self.last(index, "", &[])));
        }
        self.sent[index] = (part.text.len(), part.scores.len());
        sent
    }

    fn end(&mut self) -> Vec<Sent> {
        Vec::new()
    }

    fn broken(&mut self, problem: &Problem) -> Vec<Sent> {
        vec![Sent::data(json!(problem))]
    }
}
