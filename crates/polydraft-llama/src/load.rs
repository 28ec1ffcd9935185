//! Loads a model with its tokenizer from a GGUF file.

use std::path::Path;

use polydraft_engine::Model;
use polydraft_gguf::{Gguf, Metadata, TokenizerDescription};
use polydraft_text::Language;

use crate::{Error, LlamaOptions, Result};

/// Description of a file's model, of any architecture, read without llama.cpp.
#[derive(Debug)]
pub struct Description {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of all tensors in bytes.
    pub bytes: u64,
    /// Number of decoder blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Context length that the model was trained for.
    pub context: u64,
    /// Tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Maximum number of decoder blocks; llama.cpp aborts with more.
const MAX_LAYERS: u64 = 512;
/// Maximum of sizes that are multiplied with each other: far above any model, far below overflow of
/// a product.
const MAX_SIZE: u64 = 1 << 24;
/// Maximum context length.
const MAX_CONTEXT: u64 = 1 << 30;

impl Description {
    /// Reads a file's header, and checks values that llama.cpp uses unchecked.
    ///
    /// # Errors
    /// A file that violates the format or contradicts itself, an unknown tokenizer, sizes out of
    /// range. The error names the key or the tensor.
    pub fn read(path: &Path) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?.to_owned();
        let size = |name: &str, max: u64| -> Result<u64> {
            let key = format!("{architecture}.{name}");
            let value = metadata.u64(&key)?;
            match (1..=max).contains(&value) {
                true => Ok(value),
                false => Err(invalid_key(path, &key, format!("1 to {max}"), value)),
            }
        };
        let layers = size("block_count", MAX_LAYERS)?;
        let hidden = size("embedding_length", MAX_SIZE)?;
        let context = size("context_length", MAX_CONTEXT)?;
        check_sizes(path, metadata, &architecture)?;
        let rows = TokenizerDescription::read(metadata)?.tokens.len();
        let language = Language::from_gguf(&gguf, rows)?;
        let numbers = |shape: Vec<usize>| {
            shape.into_iter().fold(1_u64, |all, size| all.saturating_mul(size as u64))
        };
        Ok(Self {
            name: metadata.optional("general.name", |m, key| m.str(key).map(str::to_owned))?,
            parameters: gguf
                .tensors()
                .map(|tensor| numbers(tensor.shape()))
                .fold(0, u64::saturating_add),
            bytes: gguf.tensors().map(|tensor| tensor.bytes() as u64).fold(0, u64::saturating_add),
            architecture,
            layers,
            hidden,
            context,
            language,
        })
    }
}

fn invalid_key(path: &Path, key: &str, expected: String, got: impl ToString) -> Error {
    Error::File {
        path: path.to_owned(),
        expected: format!("key {key}: {expected}"),
        got: got.to_string(),
    }
}

/// Checks sizes that llama.cpp divides by, multiplies or allocates by without checking: one
/// integer, or one per layer.
fn check_sizes(path: &Path, metadata: &Metadata, architecture: &str) -> Result<()> {
    /// Suffix of a key, and the minimum value.
    const SIZES: [(&str, u64); 8] = [
        // A layer without attention has no heads.
        ("attention.head_count", 0),
        ("attention.head_count_kv", 0),
        ("attention.key_length", 1),
        ("attention.value_length", 1),
        ("feed_forward_length", 0),
        ("rope.dimension_count", 0),
        ("expert_count", 0),
        ("expert_used_count", 0),
    ];
    for (name, min) in SIZES {
        let key = format!("{architecture}.{name}");
        if !metadata.has(&key) {
            continue;
        }
        let values = match metadata.u64(&key) {
            Ok(value) => vec![value as i64],
            Err(_) => metadata.i32s(&key)?.into_iter().map(i64::from).collect(),
        };
        let fits = |value: &i64| (min as i64..=MAX_SIZE as i64).contains(value);
        if let Some(value) = values.iter().find(|value| !fits(value)) {
            return Err(invalid_key(path, &key, format!("{min} to {MAX_SIZE}"), value));
        }
    }
    Ok(())
}

/// Loads the model of a GGUF file.
///
/// # Errors
/// The errors of [`Description::read`]; failures of llama.cpp, with its messages; settings out of
/// range; a build without llama.cpp.
#[cfg_attr(not(feature = "native"), expect(unused_variables))]
pub fn load(path: &Path, options: &LlamaOptions) -> Result<(Box<dyn Model>, Language)> {
    #[cfg(feature = "native")]
    return load_model(path, options)
        .map(|(model, language)| (Box::new(model) as Box<dyn Model>, language));
    #[cfg(not(feature = "native"))]
    return Err(Error::NotBuilt);
}

/// Like [`load`], with the model's concrete type.
///
/// # Errors
/// The errors of [`load`].
#[cfg(feature = "native")]
pub fn load_model(path: &Path, options: &LlamaOptions) -> Result<(crate::LlamaModel, Language)> {
    use crate::native::Weights;

    let Description { language, architecture, .. } = Description::read(path)?;
    let weights = Weights::load(path, options)?;
    let refused = |problem: String| Error::Refused { path: path.to_owned(), problem };
    if let Some(unsupported_kind) = weights.unsupported_kind() {
        return Err(refused(format!(
            "expected a model that continues sequences, got {unsupported_kind}"
        )));
    }
    let (expected, got) = (language.vocabulary.size(), weights.vocabulary());
    if got < expected {
        return Err(refused(format!("expected logits of at least {expected} tokens, got {got}")));
    }
    let vocabulary = language.vocabulary.clone();
    let model = crate::LlamaModel::new(
        path,
        language.name.clone(),
        vocabulary,
        &architecture,
        weights,
        options,
    )?;
    Ok((model, language))
}
