//! Fuzzing with structured mutations of config, tokenizer, template, weights, GGUF, tables, pairs,
//! traces and arguments, passed to the code that reads them.
//!
//! `mutate` starts workers, which are processes of this program, and watches them. A panic, an
//! abort, more than ten CPU seconds or more than a gigabyte of memory is a finding. An input is
//! determined by the seed and its number. `one` runs one input again, and `corpus` runs all inputs
//! that have ever failed.

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
    /// Run inputs until the time limit or the number of inputs is reached. Fails if there is a
    /// finding.
    Mutate(watch::Args),
    /// Run inputs of a seed in this process. Used by `mutate` to start a worker.
    Worker(worker::Args),
    /// Run one input in this process, and print its outcome.
    One {
        /// The seed.
        seed: u64,
        /// Number of the input.
        number: u64,
        /// Kind that the run was restricted to with --only.
        #[arg(long)]
        only: Option<Kind>,
    },
    /// Run all inputs that have ever failed.
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
