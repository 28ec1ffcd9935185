//! A loaded model with its settings.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use polydraft::Token;
use polydraft_engine::{Engine, Error};
use polydraft_runtime::costs::StepCosts;
use polydraft_runtime::{SamplingOptions, Speculation, TableSaver};
use polydraft_text::{Language, OutputForm};
use tokio::sync::Semaphore;

use crate::api::openai::responses::store::Store;
use crate::api::shared::error::Problem;
use crate::grammar::Grammars;
use crate::options::ServerOptions;
use crate::telemetry::Telemetry;
use crate::worker::{self, Capacity, EngineHandle, Failure, RequestParams};

/// A loaded model, and the default settings of its requests.
pub struct ServedModel {
    /// Target and drafter.
    pub engine: Engine,
    /// Tokenizer and chat template of the target.
    pub language: Language,
    /// Name of the draft, as given.
    pub draft: Option<String>,
    /// Stores the n-grams that are learned, if any.
    pub table_saver: Option<TableSaver>,
    /// Verifier and tree; `None` without a drafter.
    pub speculation: Option<Speculation>,
    /// Measured acceptance rates for sequoia trees, if any.
    pub acceptance: Option<Vec<f64>>,
    /// Costs of steps, for requests with an adaptive tree.
    pub costs: StepCosts,
    /// Defaults of completions.
    pub completions: Defaults,
    /// Defaults of conversations.
    pub chat: Defaults,
    /// Maximum tokens of all sequences in the KV cache.
    pub tokens: usize,
}

/// Default parameters of requests.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// Sampling settings, given or published with the model.
    pub sampling: SamplingOptions,
    /// Whether the settings that are usual for conversations apply where neither the server, nor
    /// the model, nor the request gives any.
    pub usual_sampling: bool,
    /// Maximum tokens of an output; `None` is up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// End tokens.
    pub end_tokens: Vec<Token>,
}

impl Defaults {
    /// Returns the sampling settings of a request that gives some of its own, or none.
    pub fn sampling_for(&self, request_gives_any: bool) -> SamplingOptions {
        match self.usual_sampling && !request_gives_any {
            true => self.sampling.clone().or_chat_defaults(),
            false => self.sampling.clone(),
        }
    }
}

/// A loaded model, shared by all request handlers.
pub(crate) struct LoadedModel {
    /// Names for clients; the first is the model's own.
    names: Vec<String>,
    /// Hash of the program's version, the models and their speculation: all that a seeded output
    /// depends on.
    pub fingerprint: String,
    pub language: Language,
    pub draft: Option<String>,
    /// Number of drafters.
    pub drafters: usize,
    pub speculation: Option<Speculation>,
    /// Acceptance rates for sequoia trees.
    pub acceptance: Option<Vec<f64>>,
    pub completions: Defaults,
    pub chat: Defaults,
    /// Context length (the target's, or less if the options limit it) and vocabulary size.
    pub context: usize,
    pub vocabulary: usize,
    /// Whether the target can decode from an empty prompt.
    pub accepts_empty_prompt: bool,
    /// Whether the target keeps the KV cache of a prompt for later prompts with the same prefix.
    pub caches_prompts: bool,
    pub limits: Capacity,
    pub options: Arc<ServerOptions>,
    /// Grammar builders by end tokens, each created with the first grammar that needs it.
    pub grammars: Mutex<HashMap<Vec<Token>, Arc<Grammars>>>,
    /// Permit to build a grammar: one at a time.
    pub grammar_permit: Arc<Semaphore>,
    /// Responses that later requests may refer to.
    pub stored_responses: Arc<Store>,
    pub engine: EngineHandle,
    /// Start time in seconds since 1970.
    pub started: u64,
}

impl LoadedModel {
    /// Formats of answers to conversations.
    pub fn output_form(&self) -> OutputForm {
        self.language.output_form().unwrap_or_default()
    }

    /// Starts the engine thread.
    ///
    /// # Errors
    /// The engine thread cannot be started.
    pub fn start(
        served: ServedModel,
        names: Vec<String>,
        options: Arc<ServerOptions>,
        telemetry: Arc<Telemetry>,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let ServedModel {
            engine,
            language,
            draft,
            table_saver,
            speculation,
            acceptance,
            costs,
            completions,
            chat,
            tokens,
        } = served;
        let context = options.context.unwrap_or(usize::MAX).min(engine.info().context);
        let vocabulary = engine.info().vocabulary.size();
        let (accepts_empty_prompt, drafters) =
            (engine.info().accepts_empty_context, engine.drafter_count());
        let caches_prompts = engine.caches_closed_sequences();
        let mut limits = options.capacity;
        limits.sequences = limits.sequences.min(engine.max_sequences()).max(1);
        limits.tokens = limits.tokens.min(tokens);
        let (engine, thread) =
            worker::start(engine, language.clone(), table_saver, limits, costs, telemetry)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let mut hasher = DefaultHasher::new();
        let speculation_name = speculation.as_ref().map(|s| format!("{} {}", s.verifier, s.tree));
        (env!("CARGO_PKG_VERSION"), &names, vocabulary, &draft, speculation_name).hash(&mut hasher);
        let model = Self {
            names,
            fingerprint: format!("fp_{:016x}", hasher.finish()),
            language,
            draft,
            drafters,
            speculation,
            acceptance,
            completions,
            chat,
            context,
            vocabulary,
            accepts_empty_prompt,
            caches_prompts,
            limits,
            options,
            grammars: Mutex::default(),
            grammar_permit: Arc::new(Semaphore::new(1)),
            stored_responses: Arc::default(),
            engine,
            started,
        };
        Ok((Arc::new(model), thread))
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Limits the output to the context of the options.
    pub fn limit_to_context(&self, params: &mut RequestParams) {
        let available = self.context.saturating_sub(params.prompt.len());
        params.limits.max_tokens =
            Some(params.limits.max_tokens.unwrap_or(available).min(available));
    }

    /// Rejects a prompt that can never run, before it is queued and before a stream has a status.
    ///
    /// # Errors
    /// A prompt that fills the context, is empty where the model needs a token, or has unknown
    /// tokens; more tokens than the server has memory for.
    pub fn check(&self, params: &RequestParams) -> Result<(), Problem> {
        let (prompt, context) = (params.prompt.len(), self.context);
        if prompt >= context {
            return Err(Failure::Engine(Error::PromptTooLong { prompt, context }).into());
        }
        if prompt == 0 && !self.accepts_empty_prompt {
            return Err(Failure::Engine(Error::EmptyPrompt).into());
        }
        let vocabulary = self.vocabulary;
        if let Some(&got) = params.prompt.iter().find(|token| **token as usize >= vocabulary) {
            return Err(Problem::invalid(format_args!(
                "prompt: token id {got} is out of vocabulary: expected ids below {vocabulary}"
            ))
            .with_param("prompt"));
        }
        let (tokens, max_tokens) = (params.tokens(context), self.limits.tokens);
        if tokens > max_tokens {
            return Err(Problem::invalid(format_args!(
                "expected a request for at most {max_tokens} tokens, the server's memory, got \
                 up to {tokens}, with {} sequences",
                params.count
            ))
            .with_param("max_tokens"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_sampling_applies_only_where_nothing_is_given() {
        let some = SamplingOptions { top_k: Some(20), ..SamplingOptions::default() };
        for (sampling, usual_sampling, request_gives_any, expected) in [
            (SamplingOptions::default(), true, false, (0.7, None, 0.95)),
            (SamplingOptions::default(), true, true, (1.0, None, 1.0)),
            (SamplingOptions::default(), false, false, (1.0, None, 1.0)),
            (some.clone(), true, false, (1.0, Some(20), 1.0)),
            (some, true, true, (1.0, Some(20), 1.0)),
        ] {
            let defaults = Defaults { sampling, usual_sampling, ..Defaults::default() };
            let found = defaults.sampling_for(request_gives_any).target();
            assert_eq!((found.temperature, found.top_k, found.top_p), expected);
        }
    }
}
