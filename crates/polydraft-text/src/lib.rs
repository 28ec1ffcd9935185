//! Text processing for polydraft's models: tokenizers, incremental detokenization, special tokens,
//! chat templates, and the generation settings that a model's makers publish.
//!
//! [`Language::read`] reads all of it from a directory in Hugging Face layout,
//! [`Language::from_gguf`] from a GGUF file. Parts of other formats can be built with
//! [`Tokenizer::from_parts`], [`SpecialTokens::from_roles`] and [`ChatTemplate::from_source`].
//!
//! Input files are untrusted: an invalid one causes an [`Error`] that names the file, never a
//! panic.
#![forbid(unsafe_code)]

mod chat;
mod contained;
mod error;
mod fields;
mod files;
mod generation;
mod gguf;
mod language;
mod output;
mod special;
mod stream;
mod tokenizer;

pub use chat::{ChatTemplate, Ending, Message, Rendering};
pub use error::{Error, Result};
pub use fields::{Fields, check_positive, end_tokens};
pub use generation::{Published, PublishedSampling};
pub use language::{ChatPrompt, Language};
pub use output::{
    ArgumentForm, CallForm, Kind, Kinds, Nested, OutputForm, OutputParser, OutputPart,
    ParameterForm, Piece, PromptEnd, ReasoningForm, Tool, ValueForm, allowed_kinds, read_json,
};
pub use special::SpecialTokens;
pub use stream::Stream;
pub use tokenizer::Tokenizer;
