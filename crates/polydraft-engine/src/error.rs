//! Error type of the crate.

use std::path::PathBuf;

/// A failure of decoding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the core crate, for example logits that are not a valid distribution.
    #[error(transparent)]
    Core(#[from] polydraft::Error),
    /// Logits that are not a valid distribution: a NaN, or only −∞.
    #[error("the logits of the {role} {model}: {source}")]
    Logits {
        /// `target` or `draft`.
        role: &'static str,
        /// Name of the model.
        model: String,
        /// Problem with the logits.
        source: polydraft::Error,
    },
    /// A model failed to compute.
    #[error("the {model} model failed: {source}")]
    Model {
        /// Name of the model.
        model: String,
        /// Error that the model returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A prompt that leaves no space in the context.
    #[error(
        "the prompt has {prompt} tokens, but the target's context holds {context}; it needs at \
         least one free"
    )]
    PromptTooLong {
        /// Number of tokens in the prompt.
        prompt: usize,
        /// Number of tokens that the context holds.
        context: usize,
    },
    /// All sequences that a model supports are open; one must be closed first.
    #[error("model {model}: expected at most {max_sequences} sequences at once, got one more")]
    TooManySequences {
        /// Name of the model.
        model: String,
        /// Maximum number of open sequences.
        max_sequences: usize,
    },
    /// An empty prompt, for a model that needs at least one token.
    #[error("the prompt is empty, and this model needs at least one token to continue from")]
    EmptyPrompt,
    /// A file that is not a table of n-grams, is damaged, or belongs to another model.
    #[error("unusable table of n-grams: {problem} (polydraft learn makes one)")]
    NgramTable {
        /// Problem with the table.
        problem: String,
    },
    /// A setting outside its range.
    #[error("{setting}: expected {expected}, got {got}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Range of the setting.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// A file that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A panic during a commit, which cannot be repeated.
    #[error("a panic interrupted the session while it applied a step")]
    Interrupted,
    /// An invalid table model.
    #[error("table model {name}: {problem}")]
    Table {
        /// Path of the file, or another name.
        name: String,
        /// What was expected and what was found.
        problem: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
