//! The `polydraft` program: thin, every command is a file under `commands/`.

mod commands;
mod conversation;
#[cfg(feature = "hub")]
mod hub;
mod models;
mod output;
#[allow(dead_code)]
mod plot;
mod prompts;
mod rules;
mod sampling;
mod speculation;
mod threads;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Lossless multi-draft speculative decoding: text with exactly the target model's distribution, faster.
///
/// A small draft model proposes several tokens, the target model scores them all in one pass, and a verifier decides
/// what to emit such that not a bit of quality is lost.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    color: colorchoice_clap::Color,
}

#[derive(Subcommand)]
enum Command {
    Generate(commands::generate::Args),
    Chat(commands::chat::Args),
    Inspect(commands::inspect::Args),
    Couple(commands::couple::Args),
    Efficiency(commands::efficiency::Args),
    Certify(commands::certify::Args),
    #[command(subcommand)]
    Bench(commands::bench::Bench),
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    // Before anything that may start a thread.
    if let Err(error) = threads::settle(&matches) {
        return output::exit_code(Err(error));
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut Cli::command()).exit());
    cli.color.write_global();
    let result = match cli.command {
        Command::Generate(args) => commands::generate::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Couple(args) => commands::couple::run(args),
        Command::Efficiency(args) => commands::efficiency::run(args),
        Command::Certify(args) => commands::certify::run(args),
        Command::Bench(bench) => commands::bench::run(bench),
    };
    output::exit_code(result)
}
