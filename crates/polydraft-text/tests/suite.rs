//! All integration tests as one program, to link once instead of six times.

mod chat;
mod expressions;
mod extras;
mod generation;
mod gguf;
mod output;
mod tekken;
mod tokenizer;
