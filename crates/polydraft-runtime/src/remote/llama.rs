//! Drafts of llama.cpp's server: the most probable continuation, with the most probable tokens at
//! each of its positions (`n_probs`).
//!
//! The answer is one path, the greedy one, so a draw that leaves it ends the draft. Its model must
//! have the target's tokenizer, which is checked by encoding a sample.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polydraft::Token;
use polydraft_engine::drafter::remote::{DraftQuery, DraftSource, DraftedNode, DraftedTree};
use polydraft_text::Language;
use serde::Deserialize;
use serde_json::{Value, json};

use super::http::{Http, Reply};
use super::native::start;

/// Route of completions.
const PATH: &str = "/completion";
const PREFILL_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum bytes of a reported token, with its text, its bytes and its probability, and of the rest
/// of an answer, which repeats the settings of the request.
const TOKEN_BYTES: usize = 1024;
const REST_BYTES: usize = 256 << 10;
/// Smallest logarithm of a probability that counts: llama.cpp reports impossible tokens too.
const MIN_LOGPROB: f32 = -60.0;
/// Text that different tokenizers encode differently.
pub const SAMPLE: &str = "fn main() {\n    println!(\"{}\", 31415 + 926);\n}\n\nÜber 1000 naïve \
                      Größen; 東京と大阪, Привет мир \u{1f600}\u{1f680}  \tindented\r\n%%%% ====";
/// Context length, if the server does not report it.
const CONTEXT: usize = 4096;

/// A llama.cpp server.
struct Llama {
    http: Http,
    context: usize,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<Token>,
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    completion_probabilities: Vec<Position>,
}

#[derive(Deserialize)]
struct Position {
    id: Token,
    top_logprobs: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    id: Token,
    logprob: f32,
}

/// Checks a server's tokenizer and returns its drafts and a name.
///
/// # Errors
/// A server without these routes; another tokenizer.
pub fn open(http: Http, language: &Language) -> Result<(Box<dyn DraftSource>, String)> {
    let base = http.base().to_owned();
    let body = json!({ "content": SAMPLE, "add_special": false });
    let encoded = http.post_at_start("/tokenize", &body).and_then(|reply| reply.parse::<Tokens>());
    let Tokens { tokens } = encoded.map_err(anyhow::Error::msg).with_context(|| {
        format!("the draft at {base} is neither a polydraft server nor a llama.cpp server")
    })?;
    if tokens != language.tokenizer.encode_plain(SAMPLE)? {
        bail!(
            "the draft at {base} has another tokenizer than the target: it must serve a model with \
             the target's tokenizer"
        );
    }
    let props = http.get("/props").and_then(|reply: Reply| reply.parse::<Value>());
    let context = props.ok().and_then(|props| {
        props.pointer("/default_generation_settings/n_ctx").and_then(Value::as_u64)
    });
    let context = context.map_or(CONTEXT, |context| context as usize);
    Ok((Box::new(Llama { http, context }), "a model of llama.cpp".to_owned()))
}

fn body(query: &DraftQuery) -> Value {
    json!({
        "prompt": query.tokens,
        "n_predict": query.levels.max(1),
        "n_probs": query.top,
        "temperature": 0.0,
        "cache_prompt": true,
        "stream": false,
    })
}

fn draft(http: &Http, query: &DraftQuery, within: Duration) -> Result<DraftedTree, String> {
    let max_bytes = REST_BYTES + query.levels * (query.top + 1) * TOKEN_BYTES;
    let reply = http.post(PATH, &body(query), within, max_bytes)?;
    let positions = reply.parse::<Completion>()?.completion_probabilities;
    let mut nodes: Vec<DraftedNode> = Vec::new();
    let mut from = None;
    for (number, position) in positions.into_iter().take(query.levels).enumerate() {
        let reported = position.top_logprobs.into_iter();
        // NaN stays: it makes the answer invalid.
        let possible =
            reported.filter(|t| t.logprob.is_nan() || t.logprob >= MIN_LOGPROB).take(query.top);
        let (tokens, logprobs) = possible.map(|token| (token.id, token.logprob)).unzip();
        nodes.push(DraftedNode { from, tokens, logprobs });
        from = Some((number, position.id));
    }
    Ok(DraftedTree { nodes })
}

impl DraftSource for Llama {
    fn name(&self) -> &str {
        self.http.base()
    }

    fn context(&self) -> usize {
        // It decodes some tokens itself.
        self.context.saturating_sub(polydraft_engine::drafter::remote::MAX_LEVELS)
    }

    fn draft(
        &mut self,
        queries: &[DraftQuery],
        within: Duration,
    ) -> Result<Vec<DraftedTree>, String> {
        let http = &self.http;
        let [first, others @ ..] = queries else { return Ok(Vec::new()) };
        std::thread::scope(|scope| {
            let others: Vec<_> = others
                .iter()
                .map(|query| scope.spawn(move || draft(http, query, within)))
                .collect();
            let first = draft(http, first, within);
            let panicked = |_| Err("a panic".to_owned());
            let others = others.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
            std::iter::once(first).chain(others).collect()
        })
    }

    fn prefill(&mut self, query: DraftQuery) -> Option<Arc<AtomicBool>> {
        let http = self.http.clone();
        start(move || draft(&http, &query, PREFILL_TIMEOUT).map(drop))
    }
}
