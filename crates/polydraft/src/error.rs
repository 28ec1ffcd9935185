//! The error type of the crate.

use crate::Token;

/// Errors of the crate. Every variant names the operation that failed, what it expected and what it
/// got.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array or list with the wrong number of entries.
    #[error("{operation}: expected {expected} entries, got {got}")]
    Length {
        /// The operation that failed.
        operation: &'static str,
        /// The requirement of the operation.
        expected: String,
        /// The actual length.
        got: usize,
    },
    /// An array entry with an invalid value.
    #[error("{operation}: entry {index} should be {expected}, got {got}")]
    Entry {
        /// The operation that failed.
        operation: &'static str,
        /// Position of the entry, from 0.
        index: usize,
        /// The requirement of the operation.
        expected: &'static str,
        /// The invalid value.
        got: f64,
    },
    /// Probabilities that do not sum to 1.
    #[error("{operation}: the entries should sum to 1 within {tolerance:.0e}, got {got}")]
    Sum {
        /// The operation that failed.
        operation: &'static str,
        /// The largest allowed deviation.
        tolerance: f64,
        /// The actual sum.
        got: f64,
    },
    /// A token outside the vocabulary.
    #[error("{operation}: expected a token below {vocabulary}, got {got}")]
    Token {
        /// The operation that failed.
        operation: &'static str,
        /// Size of the vocabulary.
        vocabulary: usize,
        /// The invalid token.
        got: Token,
    },
    /// A setting out of range.
    #[error("setting {setting}: expected {expected}, got {got}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The invalid value.
        got: String,
    },
    /// An unknown name.
    #[error("{kind}: expected one of {expected}, got {got:?}")]
    Name {
        /// The kind of thing that the name stands for, such as a rule or a scheme.
        kind: &'static str,
        /// The known names.
        expected: String,
        /// The unknown name.
        got: String,
    },
    /// A numerical solver that failed.
    #[error("{operation}: expected a solution, got {got}")]
    Solver {
        /// The problem to solve.
        operation: &'static str,
        /// The solver's message.
        got: String,
    },
    /// A problem too large for an algorithm's limit on time or memory.
    #[error("{operation}: expected {expected}, got {got}")]
    TooLarge {
        /// The operation that failed.
        operation: &'static str,
        /// The limit, and what would be within it.
        expected: String,
        /// The actual size.
        got: String,
    },
    /// Target and draft with vocabularies of different sizes.
    #[error(
        "target and draft must share a vocabulary: the target has {target} tokens, the draft \
         {draft}; {first}"
    )]
    VocabularySize {
        /// Size of the target's vocabulary.
        target: usize,
        /// Size of the draft's vocabulary.
        draft: usize,
        /// The first token in which they differ.
        first: String,
    },
    /// Target and draft with different vocabularies of the same size.
    #[error("target and draft must share a vocabulary: both have {size} tokens, but {first}")]
    VocabularyToken {
        /// Size of both vocabularies.
        size: usize,
        /// The first token in which they differ.
        first: String,
    },
    /// Token ids that cannot be converted to text.
    #[error("decoding text: {0}")]
    Text(String),
    /// An unsupported combination.
    #[error("{operation}: expected {expected}, got {got}")]
    Unsupported {
        /// The operation that failed.
        operation: &'static str,
        /// The combinations that the operation supports.
        expected: String,
        /// The combination that was requested.
        got: String,
    },
}

/// Result with the crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
