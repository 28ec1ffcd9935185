//! Hostile inputs: config, tokenizer, template, weights, GGUF, tables, pairs, traces and arguments,
//! mutated and fed to what reads them.
//!
//! `mutate` runs workers, processes of this same program, and watches them: a panic, an abort, an
//! input that takes more than ten CPU seconds or more than a gigabyte of memory is a
//! finding. Inputs depend on the seed and their number alone, so a finding is two numbers; `one`
//! runs it again, and the corpus lists all that ever failed.

mod clock;
mod folder;
mod kinds;
mod limits;
mod mutation;
mod watch;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use kinds::Kind;

#[global_allocator]
static ALLOCATOR: limits::Counting = limits::Counting;

#[derive(Parser)]
#[command(about = "Hostile inputs for polydraft, in processes with limits")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make and run inputs, until the time or the number is reached. Fails if there is a finding.
    Mutate(watch::Args),
    /// Run inputs of a seed in this process: what a worker does.
    Worker(worker::Args),
    /// Run one input in this process, and say what it was.
    One {
        /// The seed.
        seed: u64,
        /// The input's number.
        number: u64,
        /// The kind that the run was confined to, if it was.
        #[arg(long)]
        only: Option<Kind>,
    },
    /// Run again what ever failed.
    Corpus,
}

fn main() -> ExitCode {
    let run = || -> Result<bool> {
        match Cli::parse().command {
            Command::Mutate(args) => watch::run(&args),
            Command::Worker(args) => worker::run(&args).map(|()| true),
            Command::One { seed, number, only } => worker::one(seed, number, only),
            Command::Corpus => worker::corpus(),
        }
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
