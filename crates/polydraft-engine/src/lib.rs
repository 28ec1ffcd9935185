//! The decode loop of polydraft: propose, score, verify, commit.
//!
//! - [`Model`] is what a language model has to offer: many texts, and a tree behind each.
//! - [`Drafter`] proposes: a model, or counts of what was written before.
//! - [`Engine`] is the loop over any number of [`Session`]s.
//! - [`certify`] tests on real models that the text has the target's law.
//! - [`TableModel`] is a model of explicit probabilities, for exact tests and for teaching.
#![forbid(unsafe_code)]

#[cfg(feature = "certify")]
pub mod certify;
mod costs;
pub mod drafter;
pub mod engine;
mod error;
mod laws;
pub mod model;
mod processor;
mod score;
pub mod session;
pub mod statistics;
pub mod stop;
pub mod table;
mod trace;
pub mod vocabulary;

pub use drafter::{Drafter, DrafterKind, ModelDrafter, Reads};
pub use engine::Engine;
pub use error::{Error, Result};
pub use model::{Facts, Feature, Model, Sequence};
pub use processor::{Penalties, Processor};
pub use score::{Scored, score};
pub use session::{
    Emitted, Finish, Generation, Limits, NoText, Origin, Piece, Request, Session, Speculation,
    TextStream,
};
pub use statistics::Statistics;
pub use table::TableModel;
pub use trace::{Drawn, Trace, TracedNode};
pub use vocabulary::Vocabulary;
