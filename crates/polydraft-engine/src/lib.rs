//! The decode loop of polydraft: draft, score, verify, commit, emit.
//!
//! - [`Model`] is what a language model has to offer; draft and target are both one.
//! - [`Decoder`] is the loop, one step at a time; [`Generation`] adds stop conditions and text.
//! - [`certify`] tests on real models that the text has the target's law.
//! - [`TableModel`] is a model of explicit probabilities, for exact tests and for teaching.
#![forbid(unsafe_code)]

pub mod certify;
pub mod decode;
mod error;
pub mod generate;
mod laws;
pub mod model;
pub mod sequences;
pub mod statistics;
pub mod stop;
pub mod table;
pub mod vocabulary;

pub use decode::{Decoder, Emitted, Origin, Settings, Speculation};
pub use error::{Error, Result};
pub use generate::{Finish, Generation, Limits, Piece, TextStream};
pub use model::Model;
pub use sequences::{Facts, Sequence, SequenceModel, Single};
pub use statistics::Statistics;
pub use table::TableModel;
pub use vocabulary::Vocabulary;
