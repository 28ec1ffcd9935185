//! The `polydraft` program: thin, every command is a file under `commands/`.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
// So that commands name what they share with the laboratory as it does.
use polydraft_options::{
    conversation, costs, models, output, prompts, sampling, speculation, texts, threads,
};

/// Lossless multi-draft speculative decoding: text with exactly the target model's distribution, faster.
///
/// A small draft model proposes several tokens, the target model scores them all in one pass, and a verifier decides
/// what to emit such that not a bit of quality is lost.
#[derive(Parser)]
#[command(name = "polydraft", version, propagate_version = true, args_override_self = true)]
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
    List(commands::list::Args),
    Certify(commands::certify::Args),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(polydraft_lab::Lab),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let mut program = Cli::command();
    let matches = program.get_matches_mut();
    // Before anything that may start a thread.
    if let Err(error) = threads::settle(&program, &matches) {
        return output::exit_code(Err(error));
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut Cli::command()).exit());
    cli.color.write_global();
    let result = match cli.command {
        Command::Generate(args) => commands::generate::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::List(args) => commands::list::run(args),
        Command::Certify(args) => commands::certify::run(args),
        #[cfg(feature = "lab")]
        Command::Lab(command) => polydraft_lab::run(command),
        Command::Completions(args) => commands::completions::run(args, Cli::command()),
        Command::Man(args) => commands::man::run(args, Cli::command()),
    };
    output::exit_code(result)
}
