//! The commands, one a file.

pub mod certify;
pub mod chat;
pub mod completions;
pub mod generate;
pub mod inspect;
pub mod list;
pub mod man;
pub mod rpc_server;
pub mod score;
