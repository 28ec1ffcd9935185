//! Text for polydraft's models, apart from tensors: tokenizers, streams of text, special tokens,
//! chat templates, and the generation settings that a model's makers publish.
//!
//! [`Language::read`] takes all of it from a directory in Hugging Face layout,
//! [`Language::from_gguf`] from a GGUF file. Every part can also be made from what another format
//! holds: [`Tokenizer::from_parts`], [`SpecialTokens::from_roles`], [`ChatTemplate::from_source`].
//!
//! Files are as published, and may be anything: what is wrong with them is an [`Error`] that names
//! the file, never a panic.
#![forbid(unsafe_code)]

mod chat;
mod contained;
mod error;
mod fields;
mod files;
mod generation;
mod gguf;
mod language;
mod special;
mod stream;
mod text;

pub use chat::{CallForm, ChatTemplate, Ending, Message, ReasoningForm, Rendering};
pub use error::{Error, Result};
pub use fields::{Fields, end_tokens, positive};
pub use generation::{Published, PublishedSampling};
pub use language::{ChatPrompt, Language};
pub use special::SpecialTokens;
pub use stream::Stream;
pub use text::Tokenizer;
