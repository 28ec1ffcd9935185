//! The one error type of the crate.

use std::path::PathBuf;

/// What can go wrong with a model on llama.cpp.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A build without llama.cpp.
    #[error(
        "llama.cpp: expected a build with it, got one without: build with --features llama (needs \
         cmake, a C++ compiler and libclang)"
    )]
    NotBuilt,
    /// A GGUF file that contradicts the format or itself.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Text(#[from] polydraft_text::Error),
    /// A file that llama.cpp cannot be given.
    #[error("{path}: expected {expected}, got {got}")]
    File {
        /// The file.
        path: PathBuf,
        /// What would do.
        expected: String,
        /// What is there.
        got: String,
    },
    /// What llama.cpp refused to load or to set up.
    #[error("{path}: llama.cpp: {problem}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What it said.
        problem: String,
    },
    /// A setting outside its range.
    #[error("{setting}: expected {expected}, got {got}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its range.
        expected: String,
        /// The value that was given.
        got: String,
    },
    /// No room for more tokens in the KV cache that all sequences share.
    #[error(
        "the cache of {cells} tokens, which all sequences and their drafts share, has no room \
         for {more} more: expected a larger cache, fewer sequences or shorter ones"
    )]
    Full {
        /// Tokens that it holds.
        cells: usize,
        /// Tokens that were to be computed.
        more: usize,
    },
    /// A pass that failed.
    #[error("llama.cpp could not compute a pass over {rows} tokens: {problem}")]
    Pass {
        /// Tokens of it.
        rows: usize,
        /// What `llama_decode` returned or threw, and what it said.
        problem: String,
    },
    /// llama.cpp found itself wrong, or lost a machine that it computes on: it cannot be called
    /// again in this process.
    #[error("llama.cpp gave up, for all models in this process: {said}")]
    Ended {
        /// Its reason.
        said: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
