//! The models that are served, and the settings: fixed at the start.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use polydraft::Token;
use polydraft_engine::{Engine, Error};
use polydraft_runtime::{SamplingOptions, Speculation, TableKeeper};
use polydraft_text::Language;
use tokio::sync::Semaphore;

use crate::api::openai::responses::store::Store;
use crate::api::shared::error::Problem;
use crate::grammar::Grammars;
use crate::options::ServerOptions;
use crate::telemetry::Telemetry;
use crate::worker::{self, Capacity, CostsToUse, EngineHandle, Failure, RequestParams};

/// The models, and the default settings of requests.
pub struct ServedModel {
    /// Target and drafter.
    pub engine: Engine,
    /// The target's tokenizer and chat template.
    pub language: Language,
    /// The draft, as it was named.
    pub draft: Option<String>,
    /// What stores the n-grams that are learned, if some are.
    pub learned: Option<TableKeeper>,
    /// How drafts are made and verified; none where nothing drafts.
    pub speculation: Option<Speculation>,
    /// The acceptances that sequoia trees are made from, if they were measured.
    pub acceptance: Option<Vec<f64>>,
    /// Costs of passes, for requests with an adaptive tree.
    pub costs: CostsToUse,
    /// For completions.
    pub completions: Defaults,
    /// For conversations.
    pub chat: Defaults,
    /// Tokens that all sequences together may have in the KV cache.
    pub tokens: usize,
}

/// Defaults of requests.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// How the logits become the sampled distribution.
    pub sampling: SamplingOptions,
    /// Tokens of a sequence at most; none is up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// End tokens.
    pub end_tokens: Vec<Token>,
}

/// One loaded model, as all handlers share it.
pub(crate) struct App {
    /// Its names, the first one being its own.
    names: Vec<String>,
    /// Of program, models and their speculation: what a seed's output depends on.
    pub fingerprint: String,
    pub language: Language,
    pub draft: Option<String>,
    /// How many drafters there are.
    pub drafters: usize,
    pub speculation: Option<Speculation>,
    /// The acceptances that sequoia trees are made from.
    pub acceptance: Option<Vec<f64>>,
    pub completions: Defaults,
    pub chat: Defaults,
    /// The context length, of the target or as the settings have it, and the vocabulary size.
    pub context: usize,
    pub vocabulary: usize,
    /// Whether the target can decode from an empty prompt.
    pub begins: bool,
    /// Whether what the target computed of a prompt is kept for later ones that begin alike.
    pub keeps_prompts: bool,
    pub limits: Capacity,
    pub options: Arc<ServerOptions>,
    /// By end tokens; each is made with the first grammar that needs it.
    pub grammars: Mutex<HashMap<Vec<Token>, Arc<Grammars>>>,
    /// The lock of building grammars.
    pub forming: Arc<Semaphore>,
    /// Answers that later requests may refer to.
    pub stored: Arc<Store>,
    pub desk: EngineHandle,
    /// Seconds since 1970.
    pub started: u64,
}

impl App {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// The system has no thread left.
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
            learned,
            speculation,
            acceptance,
            costs,
            completions,
            chat,
            tokens,
        } = served;
        let context = options.context.unwrap_or(usize::MAX).min(engine.info().context);
        let vocabulary = engine.info().vocabulary.size();
        let (begins, drafters) = (engine.info().begins, engine.drafters());
        let keeps_prompts = engine.keeps_closed();
        let mut limits = options.capacity;
        limits.texts = limits.texts.min(engine.sequences()).max(1);
        limits.tokens = limits.tokens.min(tokens);
        let (desk, thread) =
            worker::start(engine, language.clone(), learned, limits, costs, telemetry)?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let mut hasher = DefaultHasher::new();
        let speculates = speculation.as_ref().map(|s| format!("{} {}", s.verifier, s.tree));
        (env!("CARGO_PKG_VERSION"), &names, vocabulary, &draft, speculates).hash(&mut hasher);
        let app = Self {
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
            begins,
            keeps_prompts,
            limits,
            options,
            grammars: Mutex::default(),
            forming: Arc::new(Semaphore::new(1)),
            stored: Arc::default(),
            desk,
            started,
        };
        Ok((Arc::new(app), thread))
    }

    /// Its own name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", |name| if name == "*" { &self.language.name } else { name })
    }

    /// Ends outputs where the context of the settings ends.
    pub fn limit(&self, params: &mut RequestParams) {
        let room = self.context.saturating_sub(params.prompt.len());
        params.limits.max_tokens = Some(params.limits.max_tokens.unwrap_or(room).min(room));
    }

    /// A prompt that can never fit, or that no model could continue, is refused before it waits,
    /// and before a stream has a status.
    ///
    /// # Errors
    /// A prompt that leaves no room in the context, is empty where the model needs a token, or has
    /// tokens that there are not; more tokens than the server has memory for.
    pub fn check(&self, params: &RequestParams) -> Result<(), Problem> {
        let (prompt, context) = (params.prompt.len(), self.context);
        if prompt >= context {
            return Err(Failure::Engine(Error::PromptTooLong { prompt, context }).into());
        }
        if prompt == 0 && !self.begins {
            return Err(Failure::Engine(Error::EmptyPrompt).into());
        }
        let vocabulary = self.vocabulary;
        if let Some(&got) = params.prompt.iter().find(|token| **token as usize >= vocabulary) {
            return Err(Problem::invalid(format_args!(
                "prompt: expected token ids below {vocabulary}, got {got}, which is out of \
                 vocabulary"
            ))
            .of("prompt"));
        }
        let (tokens, most) = (params.tokens(context), self.limits.tokens);
        if tokens > most {
            return Err(Problem::invalid(format_args!(
                "the request may need {tokens} tokens, with {} sequences; this server has memory \
                 for {most}: ask for fewer",
                params.count
            ))
            .of("max_tokens"));
        }
        Ok(())
    }
}
