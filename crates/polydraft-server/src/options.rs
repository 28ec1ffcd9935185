//! Options of a server, fixed when it starts.

use std::net::SocketAddr;
use std::time::Duration;

use log::LevelFilter;
use polydraft_runtime::Description;
use serde_json::{Map, Value};

use crate::request_log::LogFormat;
use crate::worker::{Capacity, MAX_ALTERNATIVES};

/// One model that the server offers.
#[derive(Debug, Clone)]
pub struct OfferedModel {
    /// Names for clients, `*` for any. If empty, the name of the model's directory or file.
    pub names: Vec<String>,
    /// Target, draft, and the default parameters of requests.
    pub description: Description,
}

/// Options of a server, with the default limits of requests.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Addresses to listen on. Those with port 0 share one free port.
    pub addresses: Vec<SocketAddr>,
    /// Models to offer. The first is loaded at the start, the others on first request.
    pub models: Vec<OfferedModel>,
    /// Limits on running sequences and waiting requests, for each model.
    pub capacity: Capacity,
    /// Bytes for the KV cache of all sequences of a model. Default: half of the free memory.
    pub cache_memory: Option<u64>,
    /// API key that requests must present, if any.
    pub api_key: Option<String>,
    /// Origins whose pages may send requests: `*` allows all, `localhost` all of the browser's own
    /// machine; empty allows none.
    pub allowed_origins: Vec<String>,
    /// Maximum tokens of a prompt and its output. Default: the model's context length.
    pub context: Option<usize>,
    /// Maximum bytes of a request's body.
    pub max_body_bytes: usize,
    /// Grace period of running requests when the server stops.
    pub grace_period: Duration,
    /// Rejects unknown parameters and those that would be ignored.
    pub strict: bool,
    /// Takes any model name in requests, if there is one model.
    pub any_model_name: bool,
    /// Default request parameters, used where a request omits them.
    pub defaults: Map<String, Value>,
    /// Additional path prefix, such as `/llm`; empty for none.
    pub path_prefix: String,
    /// Continues the last message of a conversation if it is an answer, unless the request sets
    /// otherwise.
    pub continue_final_answer: bool,
    /// Serves `/metrics`.
    pub serve_metrics: bool,
    /// Maximum number of alternatives with log-probabilities per token. Values above the vocabulary
    /// size allow all tokens.
    pub max_logprobs: usize,
    /// Time after which an idle model is unloaded; `None` keeps it loaded.
    pub unload_after: Option<Duration>,
    /// Default maximum tokens of an output; 0 is up to the end of the context. If unset, 128 for
    /// completions and 0 for conversations.
    pub max_tokens: Option<usize>,
    /// Default stop strings.
    pub stop: Vec<String>,
    /// Ignores end tokens by default.
    pub ignore_end_tokens: bool,
    /// Ignores the published sampling settings, which are otherwise the defaults of conversations.
    pub ignore_published_sampling: bool,
    /// Level of log messages.
    pub log_level: LevelFilter,
    /// Form of log messages.
    pub log_format: LogFormat,
    /// Exit code after a second signal to stop.
    pub interrupted_exit_code: u8,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            models: Vec::new(),
            capacity: Capacity { sequences: 32, tokens: usize::MAX, queue: 1024 },
            cache_memory: None,
            api_key: None,
            allowed_origins: Vec::new(),
            context: None,
            max_body_bytes: 2 << 20,
            grace_period: Duration::from_secs(30),
            strict: false,
            any_model_name: false,
            defaults: Map::new(),
            path_prefix: String::new(),
            continue_final_answer: false,
            serve_metrics: true,
            max_logprobs: MAX_ALTERNATIVES,
            unload_after: None,
            max_tokens: None,
            stop: Vec::new(),
            ignore_end_tokens: false,
            ignore_published_sampling: false,
            log_level: LevelFilter::Info,
            log_format: LogFormat::Text,
            interrupted_exit_code: 130,
        }
    }
}
