//! `polydraft bench`: measurements that check their answers first.

mod acceptance;
pub mod decode;
mod drafting;
pub mod paper;
pub mod quality;
pub mod solve_time;
pub mod verifiers;

use std::path::Path;

use anyhow::{Context, Result};
use clap::Subcommand;
use polydraft_cli::commands::bench::median;
use serde::de::DeserializeOwned;

/// Measure, after checking the answers.
#[derive(Subcommand)]
pub enum Bench {
    Decode(decode::Args),
    Verifiers(verifiers::Args),
    Acceptance(acceptance::Args),
    Drafting(drafting::Args),
    SolveTime(solve_time::Args),
    Paper(Box<paper::Args>),
    Quality(Box<quality::Args>),
}

/// Runs one of the measurements.
pub fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Verifiers(args) => verifiers::run(args),
        Bench::Acceptance(args) => acceptance::run(args),
        Bench::Drafting(args) => drafting::run(args),
        Bench::SolveTime(args) => solve_time::run(args),
        Bench::Paper(args) => paper::run(*args),
        Bench::Quality(args) => quality::run(*args),
    }
}

/// Reads a record that the command `value_of` has written.
fn read_record<R: DeserializeOwned>(file: &Path, value_of: &str) -> Result<R> {
    let text = polydraft_files::read_text(file, polydraft_files::FileKind::RECORD)
        .with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{}: expected a record of {value_of}", file.display()))
}
