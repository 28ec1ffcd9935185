//! From a directory in Hugging Face layout to a model with its tokenizer.

use std::path::Path;

use polydraft::Token;
use serde::Deserialize;

use crate::config::EndTokens;
use crate::decoder::Decoder;
use crate::weights::Weights;
use crate::{CandleModel, Config, Error, Precision, Result, Text};

/// How to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// How weight matrices are held.
    pub precision: Precision,
}

/// A model, ready to use.
#[derive(Debug)]
pub struct Loaded {
    /// The model.
    pub model: CandleModel,
    /// Its tokenizer.
    pub text: Text,
    /// Tokens that end a text.
    pub end_tokens: Vec<Token>,
}

#[derive(Deserialize)]
struct GenerationConfig {
    #[serde(default)]
    eos_token_id: EndTokens,
}

/// Loads `config.json`, `tokenizer.json`, `generation_config.json` (where there is one) and the weights.
///
/// # Errors
/// Anything that is missing, cut short, unknown, or contradicts another part; file and field or tensor are named.
pub fn load(directory: &Path, options: LoadOptions) -> Result<Loaded> {
    if !directory.is_dir() {
        let found = if directory.exists() { "a file" } else { "nothing there" };
        return Err(Error::Directory { path: directory.to_owned(), found });
    }
    let file = |name: &'static str| {
        let path = directory.join(name);
        match path.exists() {
            true => Ok(path),
            false => Err(Error::Missing { directory: directory.to_owned(), expected: name }),
        }
    };
    let config = Config::read(&file("config.json")?)?;
    let text = Text::read(&file("tokenizer.json")?)?;
    let vocabulary = text.vocabulary(config.vocabulary)?;
    let mut end_tokens = config.end_tokens.clone();
    if let Ok(path) = file("generation_config.json") {
        let json =
            std::fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let generation: GenerationConfig =
            serde_json::from_str(&json).map_err(|e| Error::File { path, problem: e.to_string() })?;
        let listed = generation.eos_token_id.into_vec();
        if !listed.is_empty() {
            end_tokens = listed;
        }
    }
    let decoder = Decoder::load(&config, Weights::open(directory)?, options.precision)?;
    let name =
        directory.file_name().map_or_else(|| directory.display().to_string(), |n| n.to_string_lossy().into());
    let model = CandleModel::new(name, vocabulary, decoder)?;
    Ok(Loaded { model, text, end_tokens })
}
