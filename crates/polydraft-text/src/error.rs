//! Error type of the crate.

use std::path::PathBuf;

/// Error of a tokenizer, chat template or their files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A required file of a model directory is missing.
    #[error("{directory}: expected {expected} in this directory, got neither it nor a substitute")]
    Missing {
        /// Model directory.
        directory: PathBuf,
        /// Expected file, or alternatives.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The contents of a file are invalid.
    #[error("{path}: {problem}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Expected and actual contents.
        problem: String,
    },
    /// A GGUF file is invalid.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// Tokenizer and model do not match.
    #[error("{path}: {problem}")]
    Vocabulary {
        /// Path of the tokenizer.
        path: PathBuf,
        /// The sizes, and the first token that does not match.
        problem: String,
    },
    /// The tokenizer rejected text or tokens.
    #[error("{operation} with the tokenizer {path}: {problem}")]
    Tokenizing {
        /// Path of the tokenizer.
        path: PathBuf,
        /// Encoding or decoding.
        operation: &'static str,
        /// Cause.
        problem: String,
    },
    /// The text has more tokens than the context; found without encoding all of it.
    #[error("the prompt has at least {least} tokens, but the model's context holds {most}")]
    TooLong {
        /// Minimum number of tokens of the text.
        least: usize,
        /// Number of tokens of the context.
        most: usize,
    },
    /// The text has too many bytes for the number of tokens of the context.
    #[error(
        "the prompt has {bytes} bytes: expected at most {allowed}, because the model's context \
         holds {most} tokens"
    )]
    TooManyBytes {
        /// Size of the text in bytes.
        bytes: usize,
        /// Maximum size in bytes.
        allowed: usize,
        /// Number of tokens of the context.
        most: usize,
    },
    /// The model has no chat template.
    #[error(
        "{model}: expected a chat template (chat_template.jinja, chat_template in \
         tokenizer_config.json, or \
         tokenizer.chat_template in a GGUF file), got none: this model was not trained for \
         conversations"
    )]
    NoTemplate {
        /// Name of the model.
        model: String,
    },
    /// A chat template could not be parsed or rendered.
    #[error("chat template in {path}: {problem}")]
    Template {
        /// Path of its file.
        path: PathBuf,
        /// Cause.
        problem: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
