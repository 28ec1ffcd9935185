//! All integration tests as one program, to link once instead of nine times.

mod chat;
mod common;
mod generate;
mod heads;
mod help;
mod hostile;
mod hub;
mod learning;
mod messages;
mod program;
mod self_draft;
mod serving;
