//! Answers of llama.cpp's own route, whole or piece by piece.

use std::time::{Duration, Instant};

use polydraft_engine::{Finish, Scored};
use serde_json::{Map, Value, json};

use super::super::answer::Answer;
use super::super::error::Problem;
use super::super::tokens::with_ids;
use super::super::{Reply, Sent};
use crate::worker::{Event, RequestParams};

/// What an answer tells.
pub struct Told {
    /// The ids of its tokens.
    pub tokens: bool,
    /// The log-probabilities of its tokens.
    pub probabilities: bool,
    /// Whether it is a list.
    pub several: bool,
    /// Its members, if not all.
    pub fields: Vec<String>,
}

/// The answer to one request.
pub struct Native {
    inner: Answer,
    model: String,
    told: Told,
    /// By prompt: its text, and the settings.
    prompts: Vec<(String, Value)>,
    /// By prompt, its tokens.
    lengths: Vec<usize>,
    /// By sequence: bytes and tokens sent.
    sent: Vec<(usize, usize)>,
    /// The stop strings.
    stops: Vec<String>,
    begun: Instant,
    /// When the prompt had been read, about: at the first token.
    read: Option<Duration>,
}

impl Native {
    /// Of nothing yet.
    pub fn new(
        inner: Answer,
        model: String,
        context: usize,
        asked: &[RequestParams],
        told: Told,
    ) -> Self {
        let settings = |asked: &RequestParams| {
            let text = inner.tokenizer().decode(&asked.prompt).unwrap_or_default();
            let (sampling, limits) = (&asked.sampling, &asked.limits);
            let penalties = &asked.penalties;
            let repetition = penalties.repetition.as_ref();
            let settings = json!({ "n_ctx": context,
                "n_predict": limits.max_tokens.map_or(-1, |most| most as i64),
                "seed": asked.seed, "temperature": sampling.temperature,
                "top_k": sampling.top_k.unwrap_or(0), "top_p": sampling.top_p,
                "min_p": sampling.min_p, "presence_penalty": penalties.presence,
                "frequency_penalty": penalties.frequency,
                "repeat_penalty": repetition.map_or(1.0, |repetition| repetition.penalty),
                "stop": limits.stop, "min_tokens": asked.least_tokens });
            (text, settings)
        };
        let sequences = asked.iter().map(|asked| asked.count).sum();
        Self {
            prompts: asked.iter().map(settings).collect(),
            lengths: asked.iter().map(|asked| asked.prompt.len()).collect(),
            sent: vec![(0, 0); sequences],
            stops: asked.first().map(|asked| asked.limits.stop.clone()).unwrap_or_default(),
            inner,
            model,
            told,
            begun: Instant::now(),
            read: None,
        }
    }

    fn probabilities(&self, scores: &[Scored]) -> Option<Value> {
        self.told.probabilities.then(|| json!(with_ids(self.inner.tokenizer(), scores)))
    }

    fn ids(&self, scores: &[Scored]) -> Vec<u32> {
        scores.iter().filter(|_| self.told.tokens).map(|scored| scored.token).collect()
    }

    fn timings(&self, index: usize) -> Value {
        let part = &self.inner.parts()[index];
        let (total, read) = (self.begun.elapsed(), self.read.unwrap_or_default());
        let (read, written) = (read.as_secs_f64(), total.saturating_sub(read).as_secs_f64());
        let rate = |count: usize, seconds: f64| {
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let per_token = |count: usize, seconds: f64| {
            if count > 0 { 1e3 * seconds / count as f64 } else { 0.0 }
        };
        let usage = self.inner.usage();
        let (cached, prompt) =
            (usage.prompt_tokens_details.cached_tokens, self.lengths[part.prompt]);
        let computed = prompt.saturating_sub(cached);
        let (drafted, accepted) = usage.speculation.drafts();
        json!({ "cache_n": cached, "prompt_n": computed, "prompt_ms": 1e3 * read,
            "prompt_per_token_ms": per_token(computed, read),
            "prompt_per_second": rate(computed, read),
            "predicted_n": part.tokens, "predicted_ms": 1e3 * written,
            "predicted_per_token_ms": per_token(part.tokens, written),
            "predicted_per_second": rate(part.tokens, written),
            "draft_n": drafted, "draft_n_accepted": accepted })
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
            "tokens_evaluated": self.lengths[part.prompt], "generation_settings": settings,
            "prompt": prompt, "has_new_line": part.text.contains('\n'), "truncated": false,
            "stop_type": stop_type, "stopping_word": stopping_word, "tokens_cached": cached,
            "timings": self.timings(index) });
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
        self.read.get_or_insert_with(|| self.begun.elapsed());
        self.inner.take(event)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn whole(self: Box<Self>) -> Value {
        let of = |index: usize| {
            let part = &self.inner.parts()[index];
            self.last(index, &part.text, &part.scores)
        };
        let mut all: Vec<Value> = (0..self.sent.len()).map(of).collect();
        match self.told.several {
            true => all.into(),
            false => all.pop().unwrap_or_default(),
        }
    }

    fn more(&mut self, index: usize) -> Vec<Sent> {
        let part = &self.inner.parts()[index];
        let (bytes, tokens) = self.sent[index];
        let (text, scores) = (&part.text[bytes..], &part.scores[tokens..]);
        let mut sent = Vec::new();
        if !text.is_empty() || !scores.is_empty() {
            let mut more = json!({ "index": index, "content": text, "tokens": self.ids(scores),
                "stop": false, "id_slot": 0, "tokens_predicted": part.tokens,
                "tokens_evaluated": self.lengths[part.prompt] });
            if let Some(probabilities) = self.probabilities(scores) {
                more["completion_probabilities"] = probabilities;
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
