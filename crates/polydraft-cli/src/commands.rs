//! The commands, one a file.

pub mod bench;
pub mod certify;
pub mod chat;
pub mod couple;
pub mod efficiency;
pub mod generate;
pub mod inspect;
