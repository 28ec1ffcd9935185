//! What is served, and how: settled once, at the start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use polydraft::Token;
use polydraft::policy::Costs;
use polydraft_engine::{Engine, Error};
use polydraft_runtime::{SamplingOptions, Speculation};
use polydraft_text::Language;
use tokio::sync::Semaphore;

use crate::api::error::Problem;
use crate::grammar::Grammars;
use crate::telemetry::Telemetry;
use crate::worker::{Capacity, EngineHandle, Failure, RequestParams};

/// The models, and how they are put to work where a request does not say.
pub struct ServedModel {
    /// Target and drafter.
    pub engine: Engine,
    /// The target's text side.
    pub language: Language,
    /// What clients call the model.
    pub name: String,
    /// What drafts, as it was named.
    pub draft: Option<String>,
    /// How drafts are made and verified; none where nothing drafts.
    pub speculation: Option<Speculation>,
    /// What passes cost, for requests that ask for a tree that chooses itself.
    pub costs: Costs,
    /// For completions.
    pub completions: Defaults,
    /// For conversations.
    pub chat: Defaults,
}

/// What holds where a request does not say.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// How the law is made.
    pub sampling: SamplingOptions,
    /// Tokens of a text at most; none is up to the context's end.
    pub max_tokens: Option<usize>,
    /// Strings that end a text.
    pub stop: Vec<String>,
    /// Tokens that end a text.
    pub end_tokens: Vec<Token>,
}

/// How it is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much may be at work at once.
    pub capacity: Capacity,
    /// What clients must show, if anything.
    pub key: Option<String>,
    /// Where pages may be from that ask: none, or these, or `*` for all.
    pub origins: Vec<String>,
    /// Bytes of a request's body at most.
    pub body: usize,
    /// What a stop waits for requests that are at work.
    pub grace: std::time::Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            capacity: Capacity { texts: 32, tokens: usize::MAX, queue: 256 },
            key: None,
            origins: Vec::new(),
            body: 2 << 20,
            grace: std::time::Duration::from_secs(30),
        }
    }
}

/// What all handlers share.
pub(crate) struct App {
    pub name: String,
    pub language: Language,
    pub draft: Option<String>,
    pub speculation: Option<Speculation>,
    pub costs: Costs,
    pub completions: Defaults,
    pub chat: Defaults,
    /// Tokens that the target's context holds, and that there are.
    pub context: usize,
    pub vocabulary: usize,
    /// Whether the target goes on from nothing.
    pub begins: bool,
    pub limits: Capacity,
    pub settings: Settings,
    /// By the tokens that end a text; made when the first one is asked for.
    pub grammars: Mutex<HashMap<Vec<Token>, Arc<Grammars>>>,
    /// The place of whoever makes a grammar.
    pub forming: Arc<Semaphore>,
    pub desk: EngineHandle,
    pub telemetry: Arc<Telemetry>,
    /// Seconds since 1970.
    pub started: u64,
}

impl App {
    /// What would never fit, or what no model could go on from, is refused before it waits, and
    /// before a stream has a status.
    ///
    /// # Errors
    /// A prompt that leaves no room in the context, is empty where the model needs a token, or has
    /// tokens that there are not; more tokens than the server has memory for.
    pub fn check(&self, asked: &RequestParams) -> Result<(), Problem> {
        let (prompt, context) = (asked.prompt.len(), self.context);
        if prompt >= context {
            return Err(Failure::Engine(Error::PromptTooLong { prompt, context }).into());
        }
        if prompt == 0 && !self.begins {
            return Err(Failure::Engine(Error::EmptyPrompt).into());
        }
        let vocabulary = self.vocabulary;
        if let Some(&got) = asked.prompt.iter().find(|token| **token as usize >= vocabulary) {
            let error = polydraft::Error::Token { operation: "prompt", vocabulary, got };
            return Err(Problem::from(error).of("prompt"));
        }
        let (tokens, most) = (asked.tokens(context), self.limits.tokens);
        if tokens > most {
            return Err(Problem::invalid(format_args!(
                "the request may come to hold {tokens} tokens, with {} texts; this server has \
                 memory for {most}: ask for \
                 fewer",
                asked.count
            ))
            .of("max_tokens"));
        }
        Ok(())
    }
}
