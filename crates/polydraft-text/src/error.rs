//! The one error type of the crate.

use std::path::PathBuf;

/// What can go wrong with the text side of a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that a model directory needs.
    #[error("{directory}: expected {expected} in this directory, got neither it nor a substitute")]
    Missing {
        /// The directory.
        directory: PathBuf,
        /// The file, or the files of which one would do.
        expected: &'static str,
    },
    /// A file that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file whose contents make no sense.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and what was got.
        problem: String,
    },
    /// A GGUF file that contradicts the format or itself.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// A tokenizer and a model that do not belong together.
    #[error("{path}: {problem}")]
    Vocabulary {
        /// The tokenizer's file.
        path: PathBuf,
        /// The sizes and the first token that does not fit.
        problem: String,
    },
    /// Text or tokens that the tokenizer refused.
    #[error("{operation} with the tokenizer {path}: {problem}")]
    Tokenizing {
        /// The tokenizer's file.
        path: PathBuf,
        /// Encoding or decoding.
        operation: &'static str,
        /// What it objects to.
        problem: String,
    },
    /// A text that is too long to be worth encoding.
    #[error("the prompt has at least {least} tokens, but the model's context holds {most}")]
    TooLong {
        /// Tokens that it has at least.
        least: usize,
        /// Tokens that the context holds.
        most: usize,
    },
    /// A text that is too long to be a text of so few tokens.
    #[error(
        "the prompt has {bytes} bytes: expected at most {allowed}, for the model's context holds \
         {most} tokens"
    )]
    TooManyBytes {
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that are encoded at most.
        allowed: usize,
        /// Tokens that the context holds.
        most: usize,
    },
    /// A conversation with a model that was not made for one.
    #[error(
        "{model}: expected a chat template (chat_template.jinja, chat_template in \
         tokenizer_config.json, or \
         tokenizer.chat_template in a GGUF file), got none: this model was not trained for \
         conversations"
    )]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// A chat template that could not be read or applied.
    #[error("chat template in {path}: {problem}")]
    Template {
        /// The file that it is in.
        path: PathBuf,
        /// What it objects to, or what is wrong with it.
        problem: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
