//! The model: a table of logits, computed by hashing.

use std::hash::{DefaultHasher, Hash, Hasher};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

pub const VOCABULARY: usize = 12;
/// End token.
pub const END: u32 = 0;

/// Tokenizes a prompt; unknown words map to any token.
pub fn ids_of(text: &str) -> Vec<u32> {
    let named = |word: &str| (1..VOCABULARY as u32).find(|id| text_of(&[*id]).trim() == word);
    let value =
        |word: &str| named(word).unwrap_or(1 + (noise(&word, 0) * (VOCABULARY - 1) as f64) as u32);
    text.split_whitespace().map(value).collect()
}

pub fn text_of(ids: &[u32]) -> String {
    let name = |id: &u32| match id {
        &END => String::new(),
        id => format!(" w{}", char::from(b'a' + *id as u8)),
    };
    ids.iter().map(name).collect()
}

pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn noise(value: &impl Hash, salt: u64) -> f64 {
    hash(&(value, salt)) as f64 / u64::MAX as f64
}

/// Returns the logits after a prompt and an answer. The draft's have noise of `noise_level` added.
pub fn distribution(prompt: &[u32], answer: &[u32], noise_level: f64) -> Vec<f64> {
    let text: Vec<u32> = prompt.iter().chain(answer).copied().collect();
    let context = &text[text.len().saturating_sub(2)..];
    let value = |id: usize| {
        let logit = 7.0 * noise(&(context, id), 1) + if id == END as usize { -1.0 } else { 0.0 };
        logit + noise_level * 2.5 * (noise(&(context, id), 2) - 0.5)
    };
    (0..VOCABULARY).map(value).collect()
}

pub fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    rng.random()
}

/// Draws from weights.
pub fn draw(weights: &[f64], rng: &mut ChaCha8Rng) -> u32 {
    let mut left = uniform(rng) * weights.iter().sum::<f64>();
    for (id, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0) as u32
}

/// Sampling settings of a request.
#[derive(Debug, Default)]
pub struct Sampler {
    pub temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    presence: f64,
    frequency: f64,
    bias: Vec<(usize, f64)>,
    stops: Vec<u32>,
    min_tokens: usize,
    words: Vec<String>,
}

impl Sampler {
    pub fn plain(temperature: f64) -> Self {
        Self { temperature, top_p: 1.0, ..Self::default() }
    }

    pub fn read(body: &Value) -> Self {
        let number = |name: &str, default: f64| body[name].as_f64().unwrap_or(default);
        let regex = body["structured_outputs"]["regex"].as_str().unwrap_or_default();
        let regex = regex.trim_start_matches('(').trim_end_matches(")+");
        let plain = |word: &str| word.replace("[ ]", " ");
        Self {
            temperature: number("temperature", 1.0),
            top_k: number("top_k", 0.0).max(0.0) as usize,
            top_p: number("top_p", 1.0),
            min_p: number("min_p", 0.0),
            presence: number("presence_penalty", 0.0),
            frequency: number("frequency_penalty", 0.0),
            bias: body["logit_bias"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(id, bias)| (id.parse().expect("an id"), bias.as_f64().expect("a number")))
                .collect(),
            stops: serde_json::from_value(body["stop_token_ids"].clone()).unwrap_or_default(),
            min_tokens: number("min_tokens", 0.0) as usize,
            words: regex.split('|').filter(|w| !w.is_empty()).map(plain).collect(),
        }
    }

    /// Returns whether `token`, the last one of `answer`, ends it.
    pub fn ends(&self, token: u32, answer: &[u32]) -> bool {
        self.stops.contains(&token) && answer.len() > self.min_tokens
    }

    /// Subtracts the penalties of a prompt's tokens beyond those of the answer.
    pub fn penalise(&self, logits: &mut [f64], prompt: &[u32], answer: &[u32]) {
        for token in prompt {
            logits[*token as usize] -= self.frequency;
        }
        for (id, logit) in logits.iter_mut().enumerate() {
            let (in_prompt, in_answer) =
                (prompt.contains(&(id as u32)), answer.contains(&(id as u32)));
            *logit -= if in_prompt && !in_answer { self.presence } else { 0.0 };
        }
    }

    /// Returns the distribution of the next token after an answer.
    pub fn apply(&self, logits: &[f64], answer: &[u32], counted: usize, masked: bool) -> Vec<f64> {
        let mut logits = logits.to_vec();
        for (id, logit) in logits.iter_mut().enumerate() {
            let times = answer[..counted.min(answer.len())].iter();
            let times = times.filter(|token| **token as usize == id).count();
            *logit -= self.frequency * times as f64;
            *logit -= if times > 0 { self.presence } else { 0.0 };
            *logit +=
                self.bias.iter().filter(|(value, _)| *value == id).map(|(_, b)| b).sum::<f64>();
            let early = answer.len() < self.min_tokens;
            let end = id == END as usize || self.stops.contains(&(id as u32));
            let word = text_of(&[id as u32]);
            let foreign = masked && !self.words.is_empty() && !self.words.contains(&word);
            if (early && end) || foreign {
                *logit = f64::NEG_INFINITY;
            }
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut p: Vec<f64> = match self.temperature > 0.0 {
            true => logits.iter().map(|l| ((l - most) / self.temperature).exp()).collect(),
            false => logits.iter().map(|l| f64::from(u8::from(*l == most))).collect(),
        };
        normalise(&mut p);
        let mut ranked: Vec<usize> = (0..p.len()).collect();
        ranked.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let mut retained = p.len();
        if self.top_k > 0 {
            retained = retained.min(self.top_k);
        }
        let mut sum = 0.0;
        for (rank, id) in ranked.iter().enumerate() {
            if sum >= self.top_p || p[*id] < self.min_p * p[ranked[0]] {
                retained = retained.min(rank);
                break;
            }
            sum += p[*id];
        }
        ranked[retained..].iter().for_each(|id| p[*id] = 0.0);
        normalise(&mut p);
        p
    }
}

fn normalise(p: &mut [f64]) {
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}
