//! A server with its interface and capabilities: building requests and parsing answers.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::{Map, Value, json};

use crate::Listener;
use crate::answer::{Answer, Key};
use crate::client::{Call, Client};
use crate::error::{Error, Result};
use crate::journal::Reply;
use crate::setting::Setting;

/// Interface of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/completions`.
    Completions,
    /// llama.cpp's `/completion`, which returns tokens as ids.
    Llama,
    /// `/v1/chat/completions` alone: answers that cannot be continued.
    Chat,
}

/// Form in which a grammar is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grammar {
    /// `structured_outputs` with a `regex`: vLLM, polydraft.
    Structured,
    /// `guided_regex`: vLLM until 0.11.
    Guided,
    /// `regex`: SGLang.
    Regex,
    /// `grammar` in GBNF: llama.cpp.
    Gbnf,
}

/// Prompt of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// Token details requested with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Tokens alone.
    Tokens,
    /// Log-probabilities of the tokens and of the most probable alternatives.
    Logprobs,
}

/// Completion request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub prompt: Prompt,
    pub max_tokens: usize,
    pub setting: Setting,
    pub detail: Detail,
    pub seed: Option<u64>,
    pub stop: Option<String>,
    pub choices: usize,
    pub stream: bool,
    /// Whether the answer includes the prompt.
    pub echo: bool,
}

impl Request {
    /// Creates a continuation request that returns tokens without log-probabilities.
    pub fn new(prompt: Prompt, max_tokens: usize, setting: Setting) -> Self {
        Self {
            prompt,
            max_tokens,
            setting,
            detail: Detail::Tokens,
            seed: None,
            stop: None,
            choices: 1,
            stream: false,
            echo: false,
        }
    }
}

/// Capabilities of a server, detected by probing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    pub dialect: Dialect,
    /// Value of `top_k` that turns it off; `None` if `top_k` and `min_p` are not accepted.
    pub top_k_off: Option<i64>,
    /// Number of most probable tokens returned; 0 without log-probabilities.
    pub top: usize,
    /// Whether tokens are returned as ids.
    pub ids: bool,
    /// Whether tokens are returned without log-probabilities.
    pub ids_alone: bool,
    /// Whether a prompt's tokens are returned with their log-probabilities.
    pub echo: bool,
    /// Whether log-probabilities are those after temperature and truncation.
    pub processed: bool,
}

impl Capabilities {
    /// Returns whether answers come with their tokens.
    pub fn returns_tokens(&self) -> bool {
        self.dialect != Dialect::Chat && (self.ids_alone || self.top > 0)
    }
}

/// Client of a server's completion interface.
#[derive(Debug)]
pub struct Server {
    pub client: Client,
    pub model: String,
    pub capabilities: Capabilities,
    /// Whether tokens are identified by their strings though the server may return ids.
    pub use_token_text: bool,
    /// Texts of tokens.
    lexicon: Mutex<HashMap<u32, String>>,
}

impl Server {
    /// Creates a server from a client, a model's name and its capabilities.
    pub fn new(client: Client, model: String, capabilities: Capabilities) -> Self {
        Self { client, model, capabilities, use_token_text: false, lexicon: Mutex::default() }
    }

    /// Builds the HTTP request in the server's interface.
    pub fn call(&self, request: &Request) -> Call {
        let body = match self.capabilities.dialect {
            Dialect::Completions => self.completion(request),
            Dialect::Llama => self.llama(request),
            Dialect::Chat => self.chat(request),
        };
        let path = match self.capabilities.dialect {
            Dialect::Completions => "/v1/completions",
            Dialect::Llama => "/completion",
            Dialect::Chat => "/v1/chat/completions",
        };
        Call { path, body: Value::Object(body) }
    }

    fn sampling(&self, request: &Request) -> Map<String, Value> {
        let setting = &request.setting;
        let mut body = Map::new();
        body.insert("temperature".into(), setting.temperature.into());
        body.insert("top_p".into(), setting.top_p.unwrap_or(1.0).into());
        if let Some(off) = self.capabilities.top_k_off {
            let top_k = setting.top_k.map_or(off, |k| k as i64);
            body.insert("top_k".into(), top_k.into());
            body.insert("min_p".into(), setting.min_p.unwrap_or(0.0).into());
        }
        for (name, value) in [
            ("presence_penalty", setting.presence_penalty),
            ("frequency_penalty", setting.frequency_penalty),
        ] {
            if value != 0.0 {
                body.insert(name.into(), value.into());
            }
        }
        if let Some(seed) = request.seed {
            body.insert("seed".into(), seed.into());
        }
        if let Some(stop) = &request.stop {
            body.insert("stop".into(), json!([stop]));
        }
        if request.stream {
            body.insert("stream".into(), true.into());
        }
        body
    }

    fn completion(&self, request: &Request) -> Map<String, Value> {
        let setting = &request.setting;
        let mut body = self.sampling(request);
        body.insert("model".into(), self.model.as_str().into());
        let prompt = match &request.prompt {
            Prompt::Text(text) => json!(text),
            Prompt::Ids(ids) => json!(ids),
        };
        body.insert("prompt".into(), prompt);
        body.insert("max_tokens".into(), request.max_tokens.into());
        if self.capabilities.ids {
            body.insert("return_token_ids".into(), true.into());
            body.insert("return_tokens_as_token_ids".into(), true.into());
        }
        let top = self.capabilities.top;
        match request.detail {
            Detail::Logprobs => {
                body.insert("logprobs".into(), top.into());
            }
            // Where tokens come only with their log-probabilities.
            Detail::Tokens if !self.capabilities.ids_alone && top > 0 => {
                body.insert("logprobs".into(), 1.into());
            }
            Detail::Tokens => {}
        }
        if request.choices > 1 {
            body.insert("n".into(), request.choices.into());
        }
        if request.echo {
            body.insert("echo".into(), true.into());
        }
        if request.stream {
            body.insert("stream_options".into(), json!({ "include_usage": true }));
        }
        if !setting.bias.is_empty() {
            let entry = |(id, bias): &(u32, f64)| (id.to_string(), Value::from(*bias));
            body.insert("logit_bias".into(), setting.bias.iter().map(entry).collect());
        }
        if !setting.ends.is_empty() {
            body.insert("stop_token_ids".into(), json!(setting.ends));
        }
        if setting.min_tokens > 0 {
            body.insert("min_tokens".into(), setting.min_tokens.into());
        }
        body
    }

    fn llama(&self, request: &Request) -> Map<String, Value> {
        let setting = &request.setting;
        let mut body = self.sampling(request);
        let prompt = match &request.prompt {
            Prompt::Text(text) => json!(text),
            Prompt::Ids(ids) => json!(ids),
        };
        body.insert("prompt".into(), prompt);
        body.insert("n_predict".into(), request.max_tokens.into());
        body.insert("repeat_penalty".into(), 1.0.into());
        body.insert("typical_p".into(), 1.0.into());
        body.insert("return_tokens".into(), true.into());
        if request.detail == Detail::Logprobs {
            body.insert("n_probs".into(), self.capabilities.top.into());
        }
        if !setting.bias.is_empty() {
            body.insert("logit_bias".into(), json!(setting.bias));
        }
        body
    }

    fn chat(&self, request: &Request) -> Map<String, Value> {
        let mut body = self.sampling(request);
        body.insert("model".into(), self.model.as_str().into());
        let text = match &request.prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Ids(_) => String::new(),
        };
        body.insert("messages".into(), json!([{ "role": "user", "content": text }]));
        body.insert("max_tokens".into(), request.max_tokens.into());
        if request.choices > 1 {
            body.insert("n".into(), request.choices.into());
        }
        body
    }

    /// Builds the same request constrained to sequences of words.
    pub fn grammar_call(&self, request: &Request, grammar: Grammar) -> Call {
        let mut call = self.call(request);
        let words = &request.setting.words;
        let escaped = |word: &String| {
            let escape =
                |c: char| if c.is_alphanumeric() { c.to_string() } else { format!("[{c}]") };
            word.chars().map(escape).collect::<String>()
        };
        let regex = format!("({})+", words.iter().map(escaped).collect::<Vec<_>>().join("|"));
        let quoted = |word: &String| json!(word).to_string();
        let gbnf =
            format!("root ::= ({})+", words.iter().map(quoted).collect::<Vec<_>>().join(" | "));
        let (name, value) = match grammar {
            Grammar::Structured => ("structured_outputs", json!({ "regex": regex })),
            Grammar::Guided => ("guided_regex", regex.into()),
            Grammar::Regex => ("regex", regex.into()),
            Grammar::Gbnf => ("grammar", gbnf.into()),
        };
        if let Value::Object(body) = &mut call.body {
            body.insert(name.into(), value);
        }
        call
    }

    /// Parses a reply.
    pub fn read(&self, call: &Call, reply: &Reply) -> Result<Answer> {
        let url = self.client.url(call.path);
        match reply {
            Reply::Body(body) => {
                let mut answer =
                    Answer::read(body).map_err(|reason| Error::Unreadable { url, reason })?;
                let mut lexicon = self.lexicon.lock().expect("nothing panics with it");
                for choice in &mut answer.choices {
                    if self.use_token_text {
                        choice.drop_ids();
                    }
                    for token in &mut choice.tokens {
                        for scored in &token.top {
                            learn(&mut lexicon, &scored.key, &scored.text);
                        }
                        learn(&mut lexicon, &token.key, &token.text);
                    }
                }
                Ok(answer)
            }
            Reply::Status(status, reason) => {
                let reason = error_message(reason);
                Err(Error::Refused { url, status: *status, reason })
            }
        }
    }

    /// Sends requests, at most `at_most` at a time.
    pub fn send_all(
        &self,
        requests: &[Request],
        at_most: usize,
        listener: &dyn Listener,
    ) -> Result<Vec<Answer>> {
        let calls: Vec<Call> = requests.iter().map(|request| self.call(request)).collect();
        let replies = self.client.send_all(&calls, at_most, listener)?;
        calls.iter().zip(&replies).map(|(call, reply)| self.read(call, reply)).collect()
    }

    /// Sends one request.
    pub fn request(&self, request: &Request, listener: &dyn Listener) -> Result<Answer> {
        let mut answers = self.send_all(std::slice::from_ref(request), 1, listener)?;
        Ok(answers.remove(0))
    }

    /// Returns the text of a token if it is known, else an empty string.
    pub fn known_text(&self, key: &Key) -> String {
        match key {
            Key::Text(text) => text.clone(),
            Key::Id(id) => {
                let lexicon = self.lexicon.lock().expect("nothing panics with it");
                lexicon.get(id).cloned().unwrap_or_default()
            }
        }
    }

    /// Fetches the texts of tokens that are not known.
    pub fn fetch_texts(&self, keys: &[Key], listener: &dyn Listener) -> Result<()> {
        let mut unknown: Vec<u32> = {
            let lexicon = self.lexicon.lock().expect("nothing panics with it");
            let ids = keys.iter().filter_map(|key| match key {
                Key::Id(id) => Some(*id),
                Key::Text(_) => None,
            });
            ids.filter(|id| !lexicon.contains_key(id)).collect()
        };
        unknown.sort_unstable();
        unknown.dedup();
        let once: Vec<Vec<u32>> = unknown.iter().map(|id| vec![*id]).collect();
        let mut named = self.detokenized(&once, listener)?;
        // A token whose text is empty is either a space, which is dropped at the start of a text,
        // or a control token, which may end answers. Decoding the token twice in a row
        // distinguishes them: only the former gives a space.
        let empty: Vec<usize> = (0..unknown.len()).filter(|at| named[*at].is_empty()).collect();
        let twice: Vec<Vec<u32>> = empty.iter().map(|at| vec![unknown[*at]; 2]).collect();
        for (at, text) in empty.iter().zip(self.detokenized(&twice, listener)?) {
            named[*at] = if text.is_empty() { NO_TEXT.to_owned() } else { text };
        }
        let mut lexicon = self.lexicon.lock().expect("nothing panics with it");
        lexicon.extend(unknown.into_iter().zip(named));
        Ok(())
    }

    /// Detokenizes sequences; "?" where the server fails.
    fn detokenized(&self, rows: &[Vec<u32>], listener: &dyn Listener) -> Result<Vec<String>> {
        let call = |row: &Vec<u32>| {
            let body = json!({ "model": self.model, "tokens": row });
            Call { path: "/detokenize", body }
        };
        let calls: Vec<Call> = rows.iter().map(call).collect();
        let replies = self.client.send_all(&calls, usize::MAX, listener)?;
        let text = |reply: &Reply| match reply {
            Reply::Body(body) => {
                let text = body["prompt"].as_str().or(body["content"].as_str());
                text.unwrap_or_default().to_owned()
            }
            // Indistinguishable from other text, and no end token.
            Reply::Status(..) => "?".to_owned(),
        };
        Ok(replies.iter().map(text).collect())
    }

    /// Returns the text of a token; fetches it if it is not known.
    pub fn text(&self, key: &Key, listener: &dyn Listener) -> Result<String> {
        self.fetch_texts(std::slice::from_ref(key), listener)?;
        Ok(self.known_text(key))
    }

    /// Formats a request as a command line.
    pub fn curl(&self, call: &Call) -> String {
        let body = call.body.to_string().replace('\'', r"'\''");
        let url = self.client.url(call.path);
        format!("curl -s {url} -H 'Content-Type: application/json' -d '{body}'")
    }
}

fn learn(lexicon: &mut HashMap<u32, String>, key: &Key, text: &str) {
    if let Key::Id(id) = key
        && !text.is_empty()
        && !text.starts_with("token_id:")
    {
        lexicon.entry(*id).or_insert_with(|| text.to_owned());
    }
}

/// Extracts the message of an error response.
pub fn error_message(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let error = &value["error"];
        error["message"].as_str().or(error.as_str()).or(value["message"].as_str())
    });
    message.unwrap_or(body).chars().take(300).collect()
}

/// Placeholder for the text of control tokens.
const NO_TEXT: &str = "<|no text|>";

/// Returns whether a text looks like an end token.
pub fn is_end(text: &str) -> bool {
    let bracketed = |left, right| text.starts_with(left) && text.ends_with(right);
    text.len() > 2 && (bracketed("<|", "|>") || bracketed("</", ">") || text.starts_with("<end"))
        || ["<eos>", "<EOS>", "[EOS]", "<eot>", "<EOT>"].contains(&text)
}
