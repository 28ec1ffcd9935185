//! polydraft's laboratory, as commands of the program: token-level rules on given laws, exact
//! efficiencies of verifiers, measurements that check their answers first, and records of laws to
//! measure on again.
//!
//! The program carries it by default (feature `lab`) and works without it.

mod bench;
mod couple;
mod efficiency;
mod observe;
mod plot;
mod provenance;
mod reckoned;
mod replay;
mod report;
mod rules;
mod trace;

use anyhow::Result;
use clap::Subcommand;
// So that modules name what commands share alike here and in the program.
use polydraft_options::{
    conversation, costs, interrupts, models, output, places, prompts, sampling, save, speculation,
    texts, threads,
};

/// The laws of the contents of a pair file, the target's and the drafts', as `couple` reads a file
/// with this extension.
///
/// # Errors
/// Contents that are no laws.
pub fn laws_of(
    extension: &str,
    contents: &[u8],
) -> Result<(polydraft::Distribution, Vec<polydraft::Distribution>)> {
    let couple::Laws { target, drafts } = couple::from_bytes(Some(extension), contents, false)?;
    Ok((target, drafts))
}

/// The laboratory's commands.
#[derive(Subcommand)]
#[expect(missing_docs, reason = "a variant's help is that of its arguments")]
pub enum Lab {
    Couple(couple::Args),
    Efficiency(efficiency::Args),
    #[command(subcommand)]
    Bench(Box<bench::Bench>),
    Trace(Box<trace::Args>),
    Replay(replay::Args),
    Report(report::Args),
}

/// Runs one of them.
///
/// # Errors
/// [`output::Usage`] for a mistake in the command line; else what went wrong, in words.
pub fn run(command: Lab) -> Result<()> {
    match command {
        Lab::Couple(args) => couple::run(args),
        Lab::Efficiency(args) => efficiency::run(args),
        Lab::Bench(bench) => bench::run(*bench),
        Lab::Trace(args) => trace::run(*args),
        Lab::Replay(args) => replay::run(args),
        Lab::Report(args) => report::run(args),
    }
}
