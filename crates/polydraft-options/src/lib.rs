//! What the commands of polydraft share: options that become descriptions once, in one place, and
//! what reaches the user.
//!
//! The program and the laboratory both build on this, so that a model, a verifier or a tree is
//! named the same way everywhere.

pub mod backend;
pub mod config;
pub mod conversation;
mod copies;
pub mod costs;
pub mod ends;
#[cfg(feature = "hub")]
mod hub;
pub mod interrupts;
pub mod models;
pub mod output;
pub mod own_copy;
pub mod places;
pub mod prompts;
pub mod sampling;
pub mod save;
pub mod speculation;
pub mod texts;
pub mod threads;

pub use polydraft_models::{give_back_memory, keep_memory};
