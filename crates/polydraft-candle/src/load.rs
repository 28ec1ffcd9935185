//! From a directory in Hugging Face layout to a model with its tokenizer.

use std::path::{Path, PathBuf};

use polydraft_text::{Language, LanguageModel};

use crate::device::available_memory;
use crate::error::Bytes;
use crate::transformer::Transformer;
use crate::weights::Weights;
use crate::{CandleModel, Config, DeviceName, Error, Precision, Result};

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// How weight matrices are held.
    pub precision: Precision,
    /// Where to compute.
    pub device: DeviceName,
    /// Bytes that the model may take; `None` is what the system says is free, if it says.
    pub memory: Option<u64>,
}

/// A model, ready to use.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: CandleModel,
    /// Its tokenizer, and all else between text and tokens.
    pub language: Language,
}

impl From<Loaded> for LanguageModel {
    fn from(Loaded { model, language }: Loaded) -> Self {
        Self { model: Box::new(model), language }
    }
}

/// Everything about a model but its weights: what can be said without reading them.
#[derive(Debug)]
pub struct Description {
    /// Where it is.
    pub directory: PathBuf,
    /// Its shape.
    pub config: Config,
    /// Its tokenizer, and all else between text and tokens.
    pub language: Language,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// How they are stored, for example `BF16`; the first of several.
    pub stored: String,
    /// Numbers in matrices that are multiplied with, which a [`Precision`] is for.
    multiplied: u64,
}

impl Description {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// As for [`load`], but for what only the weights can show.
    pub fn read(directory: &Path) -> Result<Self> {
        let weights = Weights::open(known(directory)?)?;
        Self::with_weights(directory, &weights)
    }

    fn with_weights(directory: &Path, weights: &Weights) -> Result<Self> {
        let config = Config::read(&directory.join("config.json"))?;
        let language = Language::read(directory, config.vocabulary, &config.end_tokens)?;
        let mut parameters = 0u64;
        let mut multiplied = 0u64;
        let mut stored = String::new();
        for (name, shape, dtype) in weights.tensors() {
            let numbers = shape.iter().fold(1u64, |n, s| n.saturating_mul(*s as u64));
            parameters = parameters.saturating_add(numbers);
            if shape.len() == 2 && !(config.is_looked_up(name)) {
                multiplied = multiplied.saturating_add(numbers);
                if stored.is_empty() {
                    stored = format!("{dtype:?}");
                }
            }
        }
        Ok(Self { directory: directory.to_owned(), config, language, parameters, stored, multiplied })
    }

    /// Bytes that the weights take.
    pub fn weight_bytes(&self, precision: Precision) -> u64 {
        let rest = self.parameters - self.multiplied;
        precision.bytes(self.multiplied).saturating_add(precision.for_lookup().bytes(rest))
    }

    /// Bytes that the keys and values of so many tokens take.
    pub fn cache_bytes(&self, tokens: usize, options: LoadOptions) -> u64 {
        let narrow = options.device != DeviceName::Cpu
            && matches!(options.precision, Precision::F16 | Precision::Bf16);
        self.config.cache_bytes(if narrow { 2 } else { 4 }).saturating_mul(tokens as u64)
    }

    /// Bytes that weights and a context of 1,000 tokens take.
    pub fn needed_bytes(&self, options: LoadOptions) -> u64 {
        let tokens = self.config.context.min(1_000);
        self.weight_bytes(options.precision).saturating_add(self.cache_bytes(tokens, options))
    }

    /// That there is memory enough.
    fn check_memory(&self, options: LoadOptions) -> Result<()> {
        let Some(available) = options.memory.or_else(|| available_memory(options.device)) else {
            return Ok(());
        };
        let needed = |precision| self.needed_bytes(LoadOptions { precision, ..options });
        if needed(options.precision) <= available {
            return Ok(());
        }
        let fits =
            Precision::ALL.into_iter().map(|p| (p, Bytes(needed(p)))).filter(|(_, n)| n.0 <= available);
        Err(Error::Memory {
            directory: self.directory.clone(),
            precision: options.precision,
            needed: Bytes(needed(options.precision)),
            available: Bytes(available),
            fits: fits.collect(),
        })
    }
}

/// Loads `config.json`, the tokenizer, `generation_config.json`, the chat template (where there are such) and the
/// weights.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use polydraft::{PolicyKind, Sampling, VerifierKind};
/// use polydraft_candle::{LoadOptions, load};
/// use polydraft_engine::{Engine, Limits, Model, ModelDrafter, Request, Speculation};
/// use rand::SeedableRng;
///
/// let target = load("models/big".as_ref(), LoadOptions::default())?;
/// let draft = load("models/small".as_ref(), LoadOptions::default())?;
/// let drafter = ModelDrafter::new(Box::new(draft.model), &target.model.facts().vocabulary)?;
/// let mut engine = Engine::new(Box::new(target.model), Some(Box::new(drafter)));
///
/// let (text, verifier) = (&target.language.text, "nested-priority".parse::<VerifierKind>()?);
/// let prompt = text.encode("Once upon a time")?;
/// let request = Request {
///     text: Box::new(text.stream(&prompt)),
///     prompt,
///     sampling: Sampling { temperature: 0.8, ..Sampling::default() },
///     speculation: Some(Speculation {
///         verifier: verifier.build()?,
///         policy: PolicyKind::paths(2, 3).build()?,
///         sampling: Sampling { temperature: 0.8, ..Sampling::default() },
///     }),
///     limits: Limits { max_tokens: Some(100), end_tokens: target.language.end_tokens.clone(), stop: vec![] },
///     chance: Box::new(rand_chacha::ChaCha8Rng::seed_from_u64(1)),
/// };
/// let generation = engine.generate(request, &mut |piece| {
///     print!("{}", piece.text);
///     true
/// })?;
/// println!("\n{:.2} tokens per call of the target", generation.statistics.block_efficiency());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Anything that is missing, cut short, unknown, too large for the memory, or contradicts another part; file and field
/// or tensor are named.
pub fn load(directory: &Path, options: LoadOptions) -> Result<Loaded> {
    let directory = known(directory)?;
    let weights = Weights::open(directory)?;
    let description = Description::with_weights(directory, &weights)?;
    description.check_memory(options)?;
    let device = options.device.open()?;
    let Description { config, language, .. } = description;
    let vocabulary = language.vocabulary.clone();
    let transformer = Transformer::load(&config, weights, vocabulary.size(), options.precision, &device)?;
    let model = CandleModel::new(language.name.clone(), vocabulary, transformer)?;
    Ok(Loaded { model, language })
}

/// That this is a model's directory, before its other files are asked for.
fn known(directory: &Path) -> Result<&Path> {
    if !directory.is_dir() {
        let got = if directory.exists() { "a file" } else { "nothing there" };
        return Err(Error::Directory { path: directory.to_owned(), got });
    }
    match directory.join("config.json").exists() {
        true => Ok(directory),
        false => Err(Error::Missing { directory: directory.to_owned(), expected: "config.json" }),
    }
}
