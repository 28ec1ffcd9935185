//! The one error type of the crate.

use std::path::PathBuf;

/// What can go wrong while decoding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mathematics refused, for example logits that make no distribution.
    #[error(transparent)]
    Core(#[from] polydraft::Error),
    /// A model's output that makes no distribution: a NaN, or nothing but −∞.
    #[error("the logits of the {role} {model}: {source}")]
    Logits {
        /// Target or draft.
        role: &'static str,
        /// The model's name.
        model: String,
        /// What is wrong with them.
        source: polydraft::Error,
    },
    /// A model failed to compute.
    #[error("the {model} model failed: {source}")]
    Model {
        /// The model's name.
        model: String,
        /// What it reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A prompt that leaves no room in the context.
    #[error(
        "the prompt has {prompt} tokens, but the target's context holds {context}; it needs at \
         least one free"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// As many sequences are open as a model can hold: another one must end first.
    #[error("model {model}: expected at most {most} sequences at once, got one more")]
    TooManySequences {
        /// The model's name.
        model: String,
        /// How many it can hold.
        most: usize,
    },
    /// Nothing to continue from.
    #[error("the prompt is empty, and this model needs at least one token to continue from")]
    EmptyPrompt,
    /// A table of n-grams that is none, is damaged, or belongs to another model.
    #[error("no table of n-grams that can be used here: {problem} (polydraft learn makes one)")]
    NgramTable {
        /// What is wrong with it.
        problem: String,
    },
    /// A setting outside its range.
    #[error("{setting}: expected {expected}, got {got}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its range.
        expected: &'static str,
        /// The value that was given.
        got: String,
    },
    /// A file that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A panic in the middle of a commit, which cannot be repeated.
    #[error("the session broke off while it took a step's tokens")]
    Interrupted,
    /// An invalid table model.
    #[error("table model {name}: {problem}")]
    Table {
        /// The file, or another name.
        name: String,
        /// What was expected and what was found.
        problem: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
