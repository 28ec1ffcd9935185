//! The program `polydraft-lab`.

use clap::{CommandFactory, FromArgMatches, Parser};
use polydraft_cli::args::with_rules;
use polydraft_cli::program::{self, GlobalArgs};
use polydraft_lab::Lab;

/// polydraft's laboratory: compare verifiers and rules, reproduce the papers' tables, record and
/// replay traces.
#[derive(Parser)]
#[command(name = "polydraft-lab", version, propagate_version = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Lab,
    #[command(flatten)]
    _global: GlobalArgs,
}

fn main() {
    let command = with_rules(Cli::command(), &polydraft_reference::rules());
    program::main(std::env::args_os().collect(), command, |matches| {
        let cli = Cli::from_arg_matches(matches).map_err(|e| e.format(&mut Cli::command()))?;
        polydraft_runtime::host(|| polydraft_lab::run(cli.command))?
    })
}
