//! The program `polydraft` as a library: options and their descriptions, output, configuration, and
//! the commands. The laboratory's program is built on it too.
#![forbid(unsafe_code)]

pub mod args;
pub mod cli;
pub mod commands;
pub mod config;
mod foreign;
pub mod interrupts;
pub mod output;
pub mod program;
pub mod prompts;
pub mod provenance;
pub mod save;
pub mod threads;
pub mod usage;
