//! From a directory in Hugging Face layout to a model with its tokenizer.

use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_engine::{Model, Single, Vocabulary};

use crate::device::available_memory;
use crate::error::Bytes;
use crate::transformer::Transformer;
use crate::weights::Weights;
use crate::{
    CandleModel, ChatTemplate, Config, DeviceName, Error, Message, Precision, PublishedSampling, Result,
    Text, generation,
};

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
    /// The model, with the one sequence that the decode loop takes.
    pub model: Single<CandleModel>,
    /// Its tokenizer.
    pub text: Text,
    /// Tokens that end a text.
    pub end_tokens: Vec<Token>,
    /// How conversations are put to it, if it was trained for them.
    pub chat: Option<ChatTemplate>,
    /// How its makers would sample.
    pub sampling: PublishedSampling,
}

impl Loaded {
    /// The tokens of a conversation, up to where the model answers.
    ///
    /// # Errors
    /// A model without a chat template; what the template objects to; text that the tokenizer refuses.
    pub fn encode_chat(&self, messages: &[Message]) -> Result<Vec<Token>> {
        let template =
            self.chat.as_ref().ok_or_else(|| Error::NoTemplate { model: self.model.name().to_owned() })?;
        self.text.encode_plain(&template.render(messages)?)
    }

    /// The tokens that end an answer: [`end_tokens`](Self::end_tokens), and the one that the tokenizer's settings name.
    pub fn answer_end_tokens(&self) -> Vec<Token> {
        let named = self.chat.as_ref().and_then(|c| self.text.token(c.end_token()?));
        let missing = named.filter(|token| !self.end_tokens.contains(token));
        self.end_tokens.iter().copied().chain(missing).collect()
    }
}

/// Everything about a model but its weights: what can be said without reading them.
#[derive(Debug)]
pub struct Description {
    /// Where it is.
    pub directory: PathBuf,
    /// Its shape.
    pub config: Config,
    /// Its tokenizer.
    pub text: Text,
    /// The tokens that have a row.
    pub vocabulary: Vocabulary,
    /// Tokens that end a text.
    pub end_tokens: Vec<Token>,
    /// How conversations are put to it, if it was trained for them.
    pub chat: Option<ChatTemplate>,
    /// How its makers would sample.
    pub sampling: PublishedSampling,
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
        let text = Text::of_model(directory)?;
        let vocabulary = text.vocabulary(config.vocabulary)?;
        let (listed, sampling) = generation::read(directory)?;
        let end_tokens = if listed.is_empty() { config.end_tokens.clone() } else { listed };
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
        Ok(Self {
            directory: directory.to_owned(),
            config,
            text,
            vocabulary,
            end_tokens,
            chat: ChatTemplate::read(directory)?,
            sampling,
            parameters,
            stored,
            multiplied,
        })
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
/// # Errors
/// Anything that is missing, cut short, unknown, too large for the memory, or contradicts another part; file and field
/// or tensor are named.
pub fn load(directory: &Path, options: LoadOptions) -> Result<Loaded> {
    let directory = known(directory)?;
    let weights = Weights::open(directory)?;
    let description = Description::with_weights(directory, &weights)?;
    description.check_memory(options)?;
    let device = options.device.open()?;
    let Description { config, text, vocabulary, end_tokens, chat, sampling, .. } = description;
    let transformer = Transformer::load(&config, weights, vocabulary.size(), options.precision, &device)?;
    let name =
        directory.file_name().map_or_else(|| directory.display().to_string(), |n| n.to_string_lossy().into());
    let model = CandleModel::new(name, vocabulary, transformer)?;
    let model = Single::new(model).map_err(candle_core::Error::wrap)?;
    Ok(Loaded { model, text, end_tokens, chat, sampling })
}

/// That this is a model's directory, before its other files are asked for.
fn known(directory: &Path) -> Result<&Path> {
    if !directory.is_dir() {
        let found = if directory.exists() { "a file" } else { "nothing there" };
        return Err(Error::Directory { path: directory.to_owned(), found });
    }
    match directory.join("config.json").exists() {
        true => Ok(directory),
        false => Err(Error::Missing { directory: directory.to_owned(), expected: "config.json" }),
    }
}
