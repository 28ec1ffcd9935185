//! polydraft's laboratory, for researchers: token-level rules on given distributions, exact
//! efficiencies of verifiers, the papers' tables, measurements that check their answers first, and
//! recorded traces to measure on again. Its verifiers walk with reference rules too.

mod args;
mod bench;
mod costs;
mod couple;
mod cut;
mod efficiency;
mod list;
mod observe;
mod plot;
mod replay;
mod report;
mod rules;
mod settings;
mod trace;

use anyhow::Result;
use clap::Subcommand;
use polydraft_cli::commands;

/// Reads the target and draft distributions from the contents of a pair file, as `couple` does for
/// a file with this extension.
///
/// # Errors
/// Contents that are not valid distributions.
pub fn distributions_of(
    extension: &str,
    contents: &[u8],
) -> Result<(polydraft::Distribution, Vec<polydraft::Distribution>)> {
    let couple::Distributions { target, drafts } =
        couple::from_bytes(Some(extension), contents, false)?;
    Ok((target, drafts))
}

/// Subcommands of `polydraft-lab`.
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
    Generate(Box<commands::generate::Args>),
    Certify(Box<commands::certify::Args>),
    List(list::Args),
}

/// Runs a command.
///
/// # Errors
/// [`polydraft_runtime::Usage`] for a mistake in the command line; otherwise the command's failure.
pub fn run(command: Lab) -> Result<()> {
    match command {
        Lab::Couple(args) => couple::run(args),
        Lab::Efficiency(args) => efficiency::run(args),
        Lab::Bench(bench) => bench::run(*bench),
        Lab::Trace(args) => trace::run(*args),
        Lab::Replay(args) => replay::run(args),
        Lab::Report(args) => report::run(args),
        Lab::Generate(args) => commands::generate::run(*args),
        Lab::Certify(args) => commands::certify::run(*args),
        Lab::List(args) => list::run(args),
    }
}
