//! Lossless multi-draft speculative decoding: couplings, drafts, policies and verifiers.
//!
//! A cheap *draft* model proposes tokens, an expensive *target* model scores them, and a rule
//! decides what to emit **so that the output has exactly the target's distribution**. This crate
//! holds everything that needs only probabilities and random numbers: no tensors, no files, and no
//! threads but those of the caller's rayon pool.
//!
//! ```
//! use polydraft::{Distribution, Problem, Proposal, RuleKind, couple};
//! use rand::SeedableRng;
//!
//! let target = Distribution::new(vec![0.5, 0.3, 0.2])?;
//! let draft = Distribution::new(vec![0.2, 0.3, 0.5])?;
//! let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
//!
//! // Two draws from the draft, and the rule with the highest acceptance possible.
//! let proposal = Proposal::iid(&draft, 2)?;
//! let mut drafts = Vec::new();
//! proposal.draw(&mut rng, &mut drafts);
//!
//! let mut rule = "priority".parse::<RuleKind>()?.build()?;
//! let mut coupling = couple(rule.as_mut(), Problem::new(&target, proposal)?)?;
//! let emission = coupling.emit(&drafts, &mut rng)?;
//! assert!(emission.accepted.is_none_or(|index| drafts[index] == emission.token));
//! assert!((coupling.acceptance(&mut rng).probability - 0.86).abs() < 1e-12);
//! # Ok::<(), polydraft::Error>(())
//! ```
//!
//! Letters in derivations follow `docs/notation.md`; `docs/papers.md` lists which paper is
//! implemented in which file.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod acceptance;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod coupling;
mod detokenizer;
pub mod distribution;
pub mod draft;
pub mod drafting;
pub mod error;
pub mod gumbel;
pub mod policy;
pub mod priorities;
mod race;
pub mod random;
pub mod registry;
mod residual;
pub mod verify;
mod vocabulary;

pub use coupling::{Problem, Rule, RuleKind, couple};
pub use detokenizer::{Detokenizer, NoDetokenizer};
pub use distribution::{Distribution, Sampling};
pub use draft::{Draft, DraftTree, Form, NodeId, Path};
pub use drafting::{Drafting, Draws, Growth, Proposal};
pub use error::{Error, Result};
pub use policy::{Policy, PolicyKind, StepContext, Topology};
pub use random::{RandomSource, enumerate};
pub use verify::{Outcome, TargetDistributions, Verifier, VerifierKind};
pub use vocabulary::Vocabulary;

/// Index of a token in the vocabulary, `0..V`.
pub type Token = u32;
