//! From a GGUF file to a model with its tokenizer.

use std::path::Path;

use polydraft_engine::Model;
use polydraft_gguf::{Gguf, Metadata, TokenizerDescription};
use polydraft_text::Language;

use crate::{Error, LlamaOptions, Result};

/// What a file says of its model, without llama.cpp: of any architecture.
#[derive(Debug)]
pub struct Description {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Decoder blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Tokens that it was trained for.
    pub context: u64,
    /// Its tokenizer, chat template and end tokens.
    pub language: Language,
}

/// Decoder blocks at most; llama.cpp ends the process where there are more.
const MOST_LAYERS: u64 = 512;
/// For what is multiplied with others of its kind: far above any model, far below where a product
/// overflows.
const WIDEST: u64 = 1 << 24;
/// Tokens of a context.
const LONGEST: u64 = 1 << 30;

impl Description {
    /// Reads a file's header, and checks what llama.cpp takes on trust.
    ///
    /// # Errors
    /// A file that contradicts the format or itself, a tokenizer that is not known, sizes out of
    /// all proportion; the key or the tensor is named.
    pub fn read(path: &Path) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?.to_owned();
        let size = |name: &str, most: u64| -> Result<u64> {
            let key = format!("{architecture}.{name}");
            let value = metadata.u64(&key)?;
            match (1..=most).contains(&value) {
                true => Ok(value),
                false => Err(wrong(path, &key, format!("1 to {most}"), value)),
            }
        };
        let layers = size("block_count", MOST_LAYERS)?;
        let hidden = size("embedding_length", WIDEST)?;
        let context = size("context_length", LONGEST)?;
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

fn wrong(path: &Path, key: &str, expected: String, got: impl ToString) -> Error {
    Error::File {
        path: path.to_owned(),
        expected: format!("key {key}: {expected}"),
        got: got.to_string(),
    }
}

/// Sizes that llama.cpp divides by, multiplies or makes lists of without looking. One number, or
/// one for each layer.
fn check_sizes(path: &Path, metadata: &Metadata, architecture: &str) -> Result<()> {
    /// The end of a key, and the least.
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
    for (name, least) in SIZES {
        let key = format!("{architecture}.{name}");
        if !metadata.has(&key) {
            continue;
        }
        let values = match metadata.u64(&key) {
            Ok(value) => vec![value as i64],
            Err(_) => metadata.i32s(&key)?.into_iter().map(i64::from).collect(),
        };
        let fits = |value: &i64| (least as i64..=WIDEST as i64).contains(value);
        if let Some(value) = values.iter().find(|value| !fits(value)) {
            return Err(wrong(path, &key, format!("{least} to {WIDEST}"), value));
        }
    }
    Ok(())
}

/// Loads the model of a GGUF file.
///
/// # Errors
/// As [`Description::read`]; what llama.cpp refuses, in its own words; settings out of their range;
/// a build without it.
#[cfg_attr(not(feature = "native"), expect(unused_variables))]
pub fn load(path: &Path, options: &LlamaOptions) -> Result<(Box<dyn Model>, Language)> {
    #[cfg(feature = "native")]
    return load_model(path, options)
        .map(|(model, language)| (Box::new(model) as Box<dyn Model>, language));
    #[cfg(not(feature = "native"))]
    return Err(Error::NotBuilt);
}

/// As [`load`], with the model's own type.
///
/// # Errors
/// As for [`load`].
#[cfg(feature = "native")]
pub fn load_model(path: &Path, options: &LlamaOptions) -> Result<(crate::LlamaModel, Language)> {
    use crate::native::Weights;

    let Description { language, architecture, .. } = Description::read(path)?;
    let weights = Weights::load(path, options)?;
    let refused = |problem: String| Error::Refused { path: path.to_owned(), problem };
    if let Some(unfit) = weights.unfit() {
        return Err(refused(format!("expected a model that continues sequences, got {unfit}")));
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
