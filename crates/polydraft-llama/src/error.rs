//! Error type of the crate.

use std::path::PathBuf;

/// Errors of models on llama.cpp.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The crate was built without llama.cpp.
    #[error(
        "llama.cpp: expected a build with it, got one without: build with --features llama (needs \
         cmake, a C++ compiler and libclang)"
    )]
    NotBuilt,
    /// A GGUF file violates the format or contradicts itself.
    #[error(transparent)]
    Gguf(#[from] polydraft_gguf::Error),
    /// An error of the tokenizer or the chat template.
    #[error(transparent)]
    Text(#[from] polydraft_text::Error),
    /// A file is not suitable for llama.cpp.
    #[error("{path}: expected {expected}, got {got}")]
    File {
        /// The file.
        path: PathBuf,
        /// Expected content.
        expected: String,
        /// Actual content.
        got: String,
    },
    /// llama.cpp failed to load or to set up a model.
    #[error("{path}: llama.cpp: {problem}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Error message of llama.cpp.
        problem: String,
    },
    /// A setting is outside its range.
    #[error("{setting}: expected {expected}, got {got}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Valid range.
        expected: String,
        /// Given value.
        got: String,
    },
    /// The KV cache, which all sequences share, is full.
    #[error(
        "the cache of {cells} tokens, which all sequences and their drafts share, has no room \
         for {more} more: expected a larger cache, fewer sequences or shorter ones"
    )]
    Full {
        /// Capacity in tokens.
        cells: usize,
        /// Tokens that did not fit.
        more: usize,
    },
    /// A forward pass failed.
    #[error("llama.cpp could not compute a pass over {rows} tokens: {problem}")]
    Pass {
        /// Number of tokens in the pass.
        rows: usize,
        /// Return code or exception of `llama_decode`, with llama.cpp's error messages.
        problem: String,
    },
    /// llama.cpp aborted, after a failed assertion or because it lost a remote machine: it cannot
    /// be called again in this process.
    #[error("llama.cpp aborted and cannot be used again in this process: {reason}")]
    Ended {
        /// Reason that llama.cpp gave.
        reason: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
