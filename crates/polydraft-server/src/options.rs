//! Options of a server: fixed at its start.

use std::net::SocketAddr;
use std::time::Duration;

use log::LevelFilter;
use polydraft_runtime::Description;
use serde_json::{Map, Value};

use crate::worker::{Capacity, MOST_TOP};

/// A model that is offered.
#[derive(Debug, Clone)]
pub struct Offered {
    /// Its names for clients, `*` for any; none are that of its directory or file.
    pub names: Vec<String>,
    /// The model, its draft, and the defaults of its requests.
    pub description: Description,
}

/// Options of a server, with the default limits of requests.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Addresses to listen on; those of port 0 share one that is free.
    pub addresses: Vec<SocketAddr>,
    /// The models. The first one is loaded at the start, others when a request asks for them.
    pub models: Vec<Offered>,
    /// How much may run at once, of each model.
    pub capacity: Capacity,
    /// Bytes for the KV cache of all sequences of a model; none is half of what is free.
    pub cache_memory: Option<u64>,
    /// The API key, if there is one.
    pub key: Option<String>,
    /// Origins of pages that may send requests: none, or these, or `*` for all, or `localhost` for
    /// those of the browser's own machine.
    pub origins: Vec<String>,
    /// Tokens of a prompt and its output together at most; none is what the model's context holds.
    pub context: Option<usize>,
    /// Bytes of a request's body at most.
    pub body: usize,
    /// How long a stop waits for running requests.
    pub grace: Duration,
    /// Refuses parameters that there are none of, and those that would be ignored.
    pub strict: bool,
    /// Parameters of requests that do not say them, as if their clients had.
    pub defaults: Map<String, Value>,
    /// A prefix that paths may have besides, such as `/llm`; empty is none.
    pub root: String,
    /// Continues a conversation's last message where that is an answer and its request does not
    /// say otherwise.
    pub prefill: bool,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// The most alternatives' log-probabilities that a request may ask for with each token; more
    /// than the vocabulary has is all of it.
    pub max_logprobs: usize,
    /// How long a model stays loaded that nobody uses; none is for ever.
    pub unload_after: Option<Duration>,
    /// Tokens of a completion or an answer at most, where the request does not say; 0 is up to the
    /// end of the context, and none is 128 for completions and 0 for conversations.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Ignores end tokens.
    pub ignore_end: bool,
    /// Ignores the published sampling settings, which are otherwise the defaults of conversations.
    pub ignore_published: bool,
    /// The level of log messages.
    pub log: LevelFilter,
    /// The exit code after a second signal to stop.
    pub interrupted: u8,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            models: Vec::new(),
            capacity: Capacity { texts: 32, tokens: usize::MAX, queue: 1024 },
            cache_memory: None,
            key: None,
            origins: Vec::new(),
            context: None,
            body: 2 << 20,
            grace: Duration::from_secs(30),
            strict: false,
            defaults: Map::new(),
            root: String::new(),
            prefill: false,
            metrics: true,
            max_logprobs: MOST_TOP,
            unload_after: None,
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            ignore_published: false,
            log: LevelFilter::Info,
            interrupted: 130,
        }
    }
}
