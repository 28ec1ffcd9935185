//! Commands of the `polydraft` program; each has a file under `commands/`.

use std::ffi::OsString;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands;
use crate::program::{self, GlobalArgs};

/// Lossless multi-draft speculative decoding: exactly the target model's distribution, faster.
///
/// A small draft model proposes several tokens, the target model scores all of them in one pass,
/// and a verifier decides which ones to emit, so that the output has exactly the target's
/// distribution.
#[derive(Parser)]
#[command(name = "polydraft", version, propagate_version = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    _global: GlobalArgs,
}

#[derive(Subcommand)]
enum Command {
    Generate(commands::generate::Args),
    Chat(commands::chat::Args),
    #[cfg(feature = "server")]
    Serve(Box<commands::serve::Args>),
    Inspect(commands::inspect::Args),
    Learn(commands::learn::Args),
    List(commands::list::Args),
    Score(commands::score::Args),
    Certify(commands::certify::Args),
    #[cfg(feature = "audit")]
    Audit(commands::audit::Args),
    #[command(subcommand)]
    Bench(commands::bench::Bench),
    #[cfg_attr(not(feature = "llama"), command(hide = true))]
    RpcServer(commands::rpc_server::Args),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

impl Command {
    fn serves_requests(&self) -> bool {
        #[cfg(feature = "server")]
        return matches!(self, Self::Serve(_));
        #[cfg(not(feature = "server"))]
        return false;
    }

    fn run(self) -> Result<()> {
        match self {
            Self::Generate(args) => commands::generate::run(args),
            Self::Chat(args) => commands::chat::run(args),
            #[cfg(feature = "server")]
            Self::Serve(args) => commands::serve::run(*args),
            Self::Inspect(args) => commands::inspect::run(args),
            Self::Learn(args) => commands::learn::run(args),
            Self::List(args) => commands::list::run(args),
            Self::Score(args) => commands::score::run(args),
            Self::Certify(args) => commands::certify::run(args),
            #[cfg(feature = "audit")]
            Self::Audit(args) => commands::audit::run(args),
            Self::Bench(bench) => commands::bench::run(bench),
            Self::RpcServer(args) => commands::rpc_server::run(args),
            Self::Completions(args) => commands::completions::run(args, Cli::command()),
            Self::Man(args) => commands::man::run(args, Cli::command()),
        }
    }
}

/// Runs the program and exits; `line` is its command line, including the program's name.
pub fn main(line: Vec<OsString>) -> ! {
    program::main(line, Cli::command(), |matches| {
        let cli = Cli::from_arg_matches(matches).map_err(|e| e.format(&mut Cli::command()))?;
        match cli.command.serves_requests() {
            // The server runs without a host process: if llama.cpp aborts, only the affected
            // requests fail.
            true => cli.command.run(),
            false => polydraft_runtime::host(|| cli.command.run())?,
        }
    })
}
