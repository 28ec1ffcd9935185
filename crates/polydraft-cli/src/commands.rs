//! Commands, one per file.

#[cfg(feature = "audit")]
pub mod audit;
pub mod bench;
pub mod certify;
pub mod chat;
pub mod compare;
pub mod completions;
pub mod generate;
pub mod inspect;
pub mod learn;
pub mod list;
pub mod man;
pub mod rpc_server;
pub mod score;
#[cfg(feature = "server")]
pub mod serve;
