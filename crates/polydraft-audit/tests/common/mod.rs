//! A tiny speculating server with planted faults.
#![allow(dead_code, reason = "each test file uses some of it")]

mod http;
mod model;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use polydraft_audit::{Address, Options};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use model::{END, Sampler, VOCABULARY, distribution, ids_of, text_of};

/// Planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Draws from the target after a rejection, instead of from the residual.
    CorrectionFromTarget,
    /// Accepts as if the draft had been drawn at temperature 1.
    TemperatureForgotten,
    /// Draws the token after an accepted draft from the draft model.
    BonusFromDraft,
    /// Accepts by the full distribution, and truncates only for its own draws.
    TruncatesTooLate,
    /// Replaces one token in a hundred by an improbable one.
    BiasedTail,
    /// Penalties count only tokens before the step.
    PenaltiesIgnoreDrafts,
    /// All requests use the same random numbers.
    SharedStream,
    /// The choices of a request use the same random numbers.
    SharedByChoices,
    /// Ignores an end token inside a draft.
    EndSwallowed,
    /// Log-probabilities are shifted by one token.
    LogprobsShifted,
    /// Applies a grammar only to the first token of a step.
    MaskMissing,
    /// Searches stop strings only at the end of a step.
    StopMissed,
    /// Accepts all drafts at temperature 0.
    GreedyDrafts,
    /// Usage counts drafted tokens.
    CountsDrafts,
    /// Takes this parameter and ignores it.
    Ignores(&'static str),
    /// Draws corrections from the target, and fails for good at a request with top-k.
    DiesOfTopK,
}

/// Details that the server returns.
#[derive(Debug, Clone, Copy)]
pub struct ServerFeatures {
    /// Token ids.
    pub ids: bool,
    /// Number of most probable tokens.
    pub top: usize,
    /// Whether prompts come back with log-probabilities.
    pub echo: bool,
    /// Whether penalties count the prompt's tokens too.
    pub penalises_prompts: bool,
    /// Whether chat completions are the only interface.
    pub chat: bool,
    /// Representation of token texts.
    pub token_text: TokenText,
}

/// Representation of tokens as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenText {
    Plain,
    /// Without leading spaces.
    Stripped,
    /// Some tokens have a duplicate with the same text, returned as a list or as an object.
    Doubled,
    DoubledInObject,
}

impl Default for ServerFeatures {
    fn default() -> Self {
        Self {
            ids: true,
            top: 20,
            echo: true,
            penalises_prompts: false,
            chat: false,
            token_text: TokenText::Plain,
        }
    }
}

struct State {
    fault: Fault,
    features: ServerFeatures,
    seed: u64,
    /// Number of occurrences of every request, so that the answer does not depend on the order of
    /// concurrent requests.
    requests: Mutex<HashMap<String, u64>>,
    dead: AtomicBool,
}

/// A server that runs as long as the process.
pub struct TestServer(SocketAddr);

impl TestServer {
    pub fn start(fault: Fault, features: ServerFeatures, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(State {
            fault,
            features,
            seed,
            requests: Mutex::default(),
            dead: AtomicBool::new(false),
        });
        http::serve(listener, move |path, body| state.answer(path, body));
        Self(address)
    }

    pub fn address(&self) -> Address {
        Address { url: format!("http://{}", self.0), model: None, key: None }
    }

    pub fn options(&self, checks: &[&str], seed: u64) -> Options {
        Options {
            checks: checks.iter().map(|check| (*check).to_owned()).collect(),
            seed,
            ..Options::new(self.address())
        }
    }
}

/// Draft and verification, token by token.
struct Decoder<'s> {
    state: &'s State,
    sampler: Sampler,
    prompt: Vec<u32>,
    rng: ChaCha8Rng,
    /// Number of drafted tokens.
    drafted: usize,
}

const DRAFT: usize = 3;

impl Decoder<'_> {
    /// Returns the target's distribution after an answer; `counted` of its tokens count for
    /// penalties, and `masked` applies the grammar.
    fn target(&self, answer: &[u32], counted: usize, masked: bool) -> Vec<f64> {
        let mut logits = distribution(&self.prompt, answer, 0.0);
        if self.state.features.penalises_prompts {
            self.sampler.penalise(&mut logits, &self.prompt, &answer[..counted]);
        }
        self.sampler.apply(&logits, answer, counted, masked)
    }

    fn step(&mut self, answer: &mut Vec<u32>) {
        let fault = self.state.fault;
        let before = answer.len();
        let plain = Sampler::plain(self.sampler.temperature);
        let mut drafts: Vec<(u32, Vec<f64>)> = Vec::new();
        for _ in 0..DRAFT {
            let mut path = answer.clone();
            path.extend(drafts.iter().map(|(token, _)| token));
            let q = plain.apply(&distribution(&self.prompt, &path, 1.0), &path, 0, true);
            drafts.push((model::draw(&q, &mut self.rng), q));
        }
        self.drafted += DRAFT;
        for (at, (token, q)) in drafts.into_iter().enumerate() {
            let counted = match fault {
                Fault::PenaltiesIgnoreDrafts => before,
                _ => answer.len(),
            };
            let masked = fault != Fault::MaskMissing || at == 0;
            let p = self.target(answer, counted, masked);
            let judged = match fault {
                Fault::TruncatesTooLate => {
                    let full = Sampler::plain(self.sampler.temperature);
                    full.apply(&distribution(&self.prompt, answer, 0.0), answer, 0, true)
                }
                _ => p.clone(),
            };
            let by = match fault {
                Fault::TemperatureForgotten => {
                    let one = Sampler::plain(1.0);
                    one.apply(&distribution(&self.prompt, answer, 1.0), answer, 0, true)
                }
                _ => q.clone(),
            };
            let id = token as usize;
            let ratio = judged[id] / by[id].max(1e-300);
            let greedy = fault == Fault::GreedyDrafts && self.sampler.temperature == 0.0;
            if greedy || model::uniform(&mut self.rng) < ratio {
                answer.push(token);
                if token == END && fault != Fault::EndSwallowed || self.sampler.ends(token, answer)
                {
                    return;
                }
                if token == END {
                    answer.pop();
                }
                continue;
            }
            let rest: Vec<f64> = p.iter().zip(&q).map(|(p, q)| (p - q).max(0.0)).collect();
            let lossy = [Fault::CorrectionFromTarget, Fault::DiesOfTopK].contains(&fault);
            let full = lossy || rest.iter().sum::<f64>() <= 0.0;
            answer.push(model::draw(if full { &p } else { &rest }, &mut self.rng));
            return;
        }
        let p = match fault {
            Fault::BonusFromDraft => {
                plain.apply(&distribution(&self.prompt, answer, 1.0), answer, 0, true)
            }
            _ => self.target(answer, answer.len(), true),
        };
        answer.push(model::draw(&p, &mut self.rng));
    }

    /// Generates an answer; returns it with its text and whether it ended at an end token or stop
    /// string.
    fn run(&mut self, max_tokens: usize, stop: Option<&str>) -> (Vec<u32>, String, bool) {
        let mut answer = Vec::new();
        // The first token comes from the prompt's pass.
        let p = self.target(&answer, 0, true);
        answer.push(model::draw(&p, &mut self.rng));
        let mut checked = 0;
        loop {
            if self.state.fault == Fault::BiasedTail {
                for at in checked.max(1)..answer.len() {
                    if model::uniform(&mut self.rng) < 0.01 {
                        let p = self.target(&answer[..at], 0, true);
                        let tail: Vec<f64> =
                            p.iter().map(|p| f64::from(u8::from(*p < 0.02))).collect();
                        answer[at] = model::draw(&tail, &mut self.rng);
                        answer.truncate(at + 1);
                        break;
                    }
                }
            }
            let from =
                if self.state.fault == Fault::StopMissed { answer.len() - 1 } else { checked };
            for length in from.max(checked)..answer.len().min(max_tokens) {
                let token = answer[length];
                if token == END || self.sampler.ends(token, &answer[..=length]) {
                    let retained = if token == END { length } else { length + 1 };
                    let text = text_of(&answer[..length]);
                    answer.truncate(retained);
                    return (answer, text, true);
                }
                let text = text_of(&answer[..=length]);
                // A search in the last token alone misses strings that began before.
                let from = match self.state.fault {
                    Fault::StopMissed => text_of(&answer[..length]).len(),
                    _ => 0,
                };
                let at = stop.and_then(|stop| Some(from + text[from..].find(stop)?));
                if let Some(at) = at {
                    answer.truncate(length + 1);
                    return (answer, text[..at].to_owned(), true);
                }
            }
            checked = answer.len();
            if answer.len() >= max_tokens {
                answer.truncate(max_tokens);
                let text = text_of(&answer);
                return (answer, text, false);
            }
            self.step(&mut answer);
        }
    }
}

impl State {
    fn answer(&self, path: &str, body: &Value) -> (u16, Value) {
        if self.fault == Fault::DiesOfTopK && body["top_k"].as_u64().is_some_and(|k| k > 0) {
            self.dead.store(true, Ordering::Relaxed);
        }
        if self.dead.load(Ordering::Relaxed) {
            return (500, json!({ "error": { "message": "the engine is dead" } }));
        }
        match path {
            "/v1/models" => (200, json!({ "data": [{ "id": "tiny" }] })),
            "/v1/completions" if !self.features.chat => (200, self.complete(body)),
            "/v1/chat/completions" if self.features.chat => (200, self.converse(body)),
            "/detokenize" => {
                let ids: Vec<u32> = serde_json::from_value(body["tokens"].clone()).expect("ids");
                // The end token has no text, as in most servers.
                (200, json!({ "prompt": text_of(&ids) }))
            }
            _ => (404, json!({ "error": { "message": "there is no such route" } })),
        }
    }

    /// Answers a chat request like a completion of its first message.
    fn converse(&self, body: &Value) -> Value {
        let mut request = body.clone();
        request["prompt"] = body["messages"][0]["content"].clone();
        let mut answer = self.complete(&request);
        for choice in answer["choices"].as_array_mut().into_iter().flatten() {
            choice["message"] = json!({ "role": "assistant", "content": choice["text"] });
            choice["text"] = Value::Null;
        }
        answer
    }

    fn complete(&self, body: &Value) -> Value {
        let mut body = body.clone();
        if let (Fault::Ignores(param), Some(body)) = (self.fault, body.as_object_mut()) {
            body.retain(|name, _| !name.contains(param));
        }
        let body = &body;
        let prompt = match &body["prompt"] {
            Value::String(text) => ids_of(text),
            ids => serde_json::from_value(ids.clone()).expect("ids"),
        };
        let number = {
            let mut requests = self.requests.lock().expect("nothing panics with it");
            let come = requests.entry(body.to_string()).or_default();
            *come += 1;
            model::hash(&(body.to_string(), *come))
        };
        let max_tokens = body["max_tokens"].as_u64().unwrap_or(16) as usize;
        let seeded = body["seed"].as_u64();
        let choices = body["n"].as_u64().unwrap_or(1);
        let mut parts = Vec::new();
        let mut counted = 0;
        for choice in 0..choices {
            let logprobs = if self.fault == Fault::SharedByChoices { 0 } else { choice };
            let stream = match (seeded, self.fault) {
                (Some(seed), _) => seed,
                (None, Fault::SharedStream) => 0,
                (None, _) => self.seed ^ number,
            };
            let rng = ChaCha8Rng::seed_from_u64(stream.wrapping_add(logprobs << 50));
            let sampler = Sampler::read(body);
            let mut decoder =
                Decoder { state: self, sampler, prompt: prompt.clone(), rng, drafted: 0 };
            let stop = body["stop"][0].as_str();
            let (answer, text, stopped) = decoder.run(max_tokens, stop);
            counted += match self.fault {
                Fault::CountsDrafts => decoder.drafted + 1,
                _ => answer.len(),
            };
            let mut part = json!({ "index": choice, "text": text,
                "finish_reason": if stopped { "stop" } else { "length" } });
            let ids = self.features.ids && body["return_token_ids"] == true;
            if ids {
                part["token_ids"] = json!(answer);
                part["prompt_token_ids"] = json!(prompt);
            }
            if let Some(top) = body["logprobs"].as_u64() {
                part["logprobs"] = match self.features.echo && body["echo"] == true {
                    true => {
                        let all: Vec<u32> = prompt.iter().chain(&answer).copied().collect();
                        self.logprobs(&[], &all, top as usize, ids)
                    }
                    false => self.logprobs(&prompt, &answer, top as usize, ids),
                };
            }
            parts.push(part);
        }
        if body["stream"] == true {
            let text = parts[0]["text"].as_str().unwrap_or_default().to_owned();
            let (left, right) = text.split_at(text.len() / 2);
            let event = |text: &str| json!({ "choices": [{ "index": 0, "text": text }] });
            return json!({ "events": [event(left), event(right)] });
        }
        json!({ "choices": parts, "usage": { "prompt_tokens": prompt.len(),
            "completion_tokens": counted } })
    }

    fn logprobs(&self, prompt: &[u32], answer: &[u32], top: usize, ids: bool) -> Value {
        let name = |id: u32| match ids {
            true => format!("token_id:{id}"),
            false if id == END => "</s>".to_owned(),
            false if self.features.token_text == TokenText::Stripped => {
                text_of(&[id]).trim().to_owned()
            }
            false => text_of(&[id]),
        };
        let shift = usize::from(self.fault == Fault::LogprobsShifted);
        let (mut tokens, mut logprobs, mut tops) = (Vec::new(), Vec::new(), Vec::new());
        for (at, token) in answer.iter().enumerate() {
            let position = at.saturating_sub(shift);
            let logits = distribution(prompt, &answer[..position], 0.0);
            let p = Sampler::plain(1.0).apply(&logits, &[], 0, true);
            let mut ranked: Vec<u32> = (0..VOCABULARY as u32).collect();
            ranked.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
            let event = |id: &u32| (name(*id), p[*id as usize].ln());
            let mut likely: Vec<(String, f64)> =
                ranked.iter().take(top.min(self.features.top)).map(event).collect();
            let doubled =
                matches!(self.features.token_text, TokenText::Doubled | TokenText::DoubledInObject);
            if doubled
                && !ids
                && ranked[0] != END
                && ranked[0].is_multiple_of(2)
                && likely.len() > 1
            {
                let (name, logprob) = likely[0].clone();
                likely[0].1 = logprob + 0.4f64.ln();
                likely.pop();
                likely.push((name, logprob + 0.6f64.ln()));
            }
            tokens.push(name(*token));
            logprobs.push(p[answer[position] as usize].ln());
            tops.push(likely);
        }
        if self.features.token_text == TokenText::Doubled {
            let listed =
                |(token, logprob): &(String, f64)| json!({ "token": token, "logprob": logprob });
            let all = tokens.iter().zip(&logprobs).zip(&tops).map(|((token, logprob), tops)| {
                let tops: Vec<Value> = tops.iter().map(listed).collect();
                json!({ "token": token, "logprob": logprob, "top_logprobs": tops })
            });
            return json!({ "content": all.collect::<Vec<Value>>() });
        }
        let object = |tops: Vec<(String, f64)>| -> Map<String, Value> {
            tops.into_iter().map(|(name, logprob)| (name, logprob.into())).collect()
        };
        let tops: Vec<Map<String, Value>> = tops.into_iter().map(object).collect();
        match self.features.top {
            0 => Value::Null,
            _ => json!({ "tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops }),
        }
    }
}

/// Formats the outcomes by name of the check.
pub fn verdicts(report: &polydraft_audit::Report) -> HashMap<&'static str, String> {
    let event = |finding: &polydraft_audit::Finding| {
        let outcome = &finding.outcome;
        let summary = format!(
            "{:?} p {:?} finds {:?} {} seen in {} requests: {}",
            outcome.verdict,
            outcome.p_value,
            outcome.would_find,
            outcome.seen,
            finding.requests,
            outcome.summary
        );
        (finding.check, summary)
    };
    report.findings.iter().map(event).collect()
}
