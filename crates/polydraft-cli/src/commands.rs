//! The commands, one a file.

pub mod bench;
pub mod chat;
pub mod couple;
pub mod generate;
pub mod inspect;
