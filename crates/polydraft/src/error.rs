//! The one error type of the crate.

use crate::Token;

/// What can go wrong. Every variant says which operation refused, what it expected and what it got.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array or list had the wrong number of entries.
    #[error("{operation}: expected {expected} entries, got {got}")]
    Length {
        /// The operation that refused.
        operation: &'static str,
        /// What it needs.
        expected: String,
        /// The length that was given.
        got: usize,
    },
    /// One entry of an array is not allowed there.
    #[error("{operation}: entry {index} should be {expected}, got {got}")]
    Entry {
        /// The operation that refused.
        operation: &'static str,
        /// Position of the entry, from 0.
        index: usize,
        /// What it needs.
        expected: &'static str,
        /// The value that was given.
        got: f64,
    },
    /// Probabilities that do not sum to 1.
    #[error("{operation}: the entries should sum to 1 within {tolerance:.0e}, got {got}")]
    Sum {
        /// The operation that refused.
        operation: &'static str,
        /// The largest deviation allowed.
        tolerance: f64,
        /// The sum that was given.
        got: f64,
    },
    /// A token outside the vocabulary.
    #[error("{operation}: expected a token below {vocabulary}, got {got}")]
    Token {
        /// The operation that refused.
        operation: &'static str,
        /// Number of tokens.
        vocabulary: usize,
        /// The token that was given.
        got: Token,
    },
    /// A setting outside its range.
    #[error("setting {setting}: expected {expected}, got {got}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// Its range.
        expected: &'static str,
        /// The value that was given.
        got: String,
    },
    /// A name that stands for nothing.
    #[error("{kind}: expected one of {expected}, got {got:?}")]
    Name {
        /// What was to be named: a rule, a scheme.
        kind: &'static str,
        /// The names there are.
        expected: String,
        /// The name that was given.
        got: String,
    },
    /// A numerical solver gave up.
    #[error("{operation}: expected a solution, got {got}")]
    Solver {
        /// What was to be solved.
        operation: &'static str,
        /// What the solver said.
        got: String,
    },
    /// A problem beyond what an algorithm is set to do: it would take too long, or too much memory.
    #[error("{operation}: expected {expected}, got {got}")]
    TooLarge {
        /// The operation that refused.
        operation: &'static str,
        /// Its limit, and what would be within it.
        expected: String,
        /// What there is.
        got: String,
    },
    /// Target and draft have vocabularies of different sizes.
    #[error(
        "target and draft must share a vocabulary: the target has {target} tokens, the draft \
         {draft}; {first}"
    )]
    VocabularySize {
        /// Tokens of the target.
        target: usize,
        /// Tokens of the draft.
        draft: usize,
        /// The first token in which they differ.
        first: String,
    },
    /// Target and draft have different vocabularies of the same size.
    #[error("target and draft must share a vocabulary: both have {size} tokens, but {first}")]
    VocabularyToken {
        /// Tokens of both.
        size: usize,
        /// The first token in which they differ.
        first: String,
    },
    /// Token ids that could not be turned into text.
    #[error("decoding text: {0}")]
    Text(String),
    /// A combination that an algorithm does not support.
    #[error("{operation}: expected {expected}, got {got}")]
    Unsupported {
        /// The operation that refused.
        operation: &'static str,
        /// What it can do.
        expected: String,
        /// What was asked.
        got: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
