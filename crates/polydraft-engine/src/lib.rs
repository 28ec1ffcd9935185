//! The decode loop of polydraft: propose, score, verify, commit.
//!
//! - [`Sequences`] is the common part of models and drafters: decided tokens with a tree after
//!   them.
//! - [`Model`] returns logits after the nodes of such a tree.
//! - [`Drafter`] proposes tokens, from a model or from counts of n-grams.
//! - [`Engine`] runs the loop for any number of [`Session`]s, each opened with a [`Request`].
//! - [`StepObserver`] is called at every step.
//! - [`Slots`] and [`PrefixCache`] help to implement models.
//! - [`certify`] tests on real models that the output has the target's distribution.
//! - [`TableModel`] is a model of explicit probabilities, for exact tests and for teaching.
#![forbid(unsafe_code)]

#[cfg(feature = "certify")]
pub mod certify;
mod costs;
mod distributions;
pub mod drafter;
mod emitted;
pub mod engine;
mod error;
mod generation;
pub mod model;
pub mod observer;
pub mod prefix;
mod processor;
mod request;
mod score;
mod sequences;
pub mod session;
pub mod slots;
pub mod statistics;
pub mod stop;
pub mod table;
mod trace;
pub use costs::{CostMeasurement, RequestFactory};
pub use drafter::{
    CombinedDrafter, Drafter, DrafterInput, DrafterKind, ModelDrafter, Pieces, TranslatedDrafter,
    TranslatedVocabulary, Translation,
};
pub use emitted::{Emitted, Origin, OutputChunk};
pub use engine::Engine;
pub use error::{Error, Result};
pub use generation::{Finish, Generation};
pub use model::{
    HiddenState, HiddenStates, KvCacheFollower, Model, ModelInfo, ThreadPool,
    capture_hidden_states, hidden_states,
};
pub use observer::StepObserver;
pub use polydraft::{Detokenizer, NoDetokenizer, Vocabulary};
pub use prefix::PrefixCache;
pub use processor::{AllowedTokens, LogitsProcessor, MinTokens, Penalties, RepetitionPenalty};
pub use request::{Limits, Request, Span, Speculation};
pub use score::{Alternatives, Scored, Scorer, score};
pub use sequences::{Sequence, Sequences};
pub use session::Session;
pub use slots::Slots;
pub use statistics::Statistics;
pub use table::TableModel;
pub use trace::{DraftedToken, Trace, TracedNode};
