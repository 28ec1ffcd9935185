//! Parts used by several protocols. None of them depends on a protocol.

pub mod alternatives;
pub mod answer;
pub mod answering;
mod body;
pub mod conversation;
pub mod defaults;
pub mod error;
pub mod format;
pub mod json;
pub mod messages;
pub mod models;
pub mod omitted;
pub mod params;
pub mod read;
pub mod reader;
pub mod rest;
pub mod sequence;
pub mod speculation;
mod steps;
mod stream;
mod strict;
pub mod thinking;
pub mod timings;
pub mod tokens;
pub mod tools;
pub mod usage;
pub mod values;
