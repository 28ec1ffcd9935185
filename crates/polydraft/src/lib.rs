//! Lossless multi-draft speculative decoding: the mathematics.
//!
//! A cheap *draft* model proposes tokens, an expensive *target* model scores them, and a rule decides what to
//! emit **so that the text has exactly the target's distribution**. This crate holds everything that needs only
//! probabilities and random numbers: no tensors, no files, no threads.
//!
//! Letters in derivations follow `docs/notation.md`; which paper is in which file, `docs/algorithms.md`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acceptance;
pub mod chance;
pub mod conformance;
pub mod coupling;
pub mod distribution;
pub mod drafting;
pub mod error;
pub mod priorities;
pub mod tree;
pub mod verify;

pub use chance::{Chance, enumerate};
pub use coupling::{Rule, couple};
pub use distribution::{Distribution, Sampling};
pub use drafting::{Drafting, Proposal};
pub use error::{Error, Result};
pub use tree::{DraftTree, NodeId};
pub use verify::{Laws, Outcome, Verifier, VerifierKind};

/// Index of a token in the vocabulary, `0..V`.
pub type Token = u32;
