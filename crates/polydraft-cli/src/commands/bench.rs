//! `polydraft bench`: measurements that check their answers first.

pub mod acceptance;
pub mod decode;
pub mod solve_time;

use anyhow::Result;
use clap::Subcommand;

/// Measure, after checking the answers.
#[derive(Subcommand)]
pub enum Bench {
    Decode(decode::Args),
    Acceptance(acceptance::Args),
    SolveTime(solve_time::Args),
}

pub fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Acceptance(args) => acceptance::run(args),
        Bench::SolveTime(args) => solve_time::run(args),
    }
}
