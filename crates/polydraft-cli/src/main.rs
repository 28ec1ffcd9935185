//! The `polydraft` program: thin, every command is a file under `commands/`.

mod commands;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
// So that commands name what they share with the laboratory as it does.
use polydraft_options::output::Verbosity;
use polydraft_options::{
    config, conversation, costs, ends, interrupts, models, output, places, prompts, sampling,
    speculation, texts, threads,
};

/// Lossless multi-draft speculative decoding: text with exactly the target model's distribution,
/// faster.
///
/// A small draft model proposes several tokens, the target model scores them all in one pass, and a
/// verifier decides what to emit such that not a bit of quality is lost.
#[derive(Parser)]
#[command(name = "polydraft", version, propagate_version = true, args_override_self = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    color: colorchoice_clap::Color,
    /// Errors only: no summary, no notes.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Say what is done and how.
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Take the options' defaults from this file [default: polydraft/config.toml below
    /// $XDG_CONFIG_HOME, or below ~/.config]. Its keys are long names of options, for all commands
    /// or in a table such as [generate] for one.
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "no_config")]
    config: Option<std::path::PathBuf>,
    /// Take no defaults from a file.
    #[arg(long, global = true)]
    no_config: bool,
}

impl Cli {
    fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

#[derive(Subcommand)]
enum Command {
    Generate(commands::generate::Args),
    Chat(commands::chat::Args),
    Inspect(commands::inspect::Args),
    List(commands::list::Args),
    Score(commands::score::Args),
    #[cfg(feature = "server")]
    Serve(Box<polydraft_server::Args>),
    #[cfg_attr(not(feature = "llama"), command(hide = true))]
    RpcServer(commands::rpc_server::Args),
    Certify(commands::certify::Args),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(polydraft_lab::Lab),
    Completions(commands::completions::Args),
    Man(commands::man::Args),
}

impl Command {
    fn answers_many(&self) -> bool {
        #[cfg(feature = "server")]
        return matches!(self, Self::Serve(_));
        #[cfg(not(feature = "server"))]
        return false;
    }

    fn run(self) -> Result<()> {
        match self {
            Command::Generate(args) => commands::generate::run(args),
            Command::Chat(args) => commands::chat::run(args),
            Command::Inspect(args) => commands::inspect::run(args),
            Command::List(args) => commands::list::run(args),
            Command::Score(args) => commands::score::run(args),
            #[cfg(feature = "server")]
            Command::Serve(args) => polydraft_server::run(*args),
            Command::RpcServer(args) => commands::rpc_server::run(args),
            Command::Certify(args) => commands::certify::run(args),
            #[cfg(feature = "lab")]
            Command::Lab(command) => polydraft_lab::run(command),
            Command::Completions(args) => commands::completions::run(args, Cli::command()),
            Command::Man(args) => commands::man::run(args, Cli::command()),
        }
    }
}

fn main() {
    polydraft_options::keep_memory();
    let done = run();
    interrupts::give_way();
    output::leave(done)
}

fn run() -> Result<()> {
    let line: Vec<_> = std::env::args_os().collect();
    let (mut program, defaults) =
        config::apply(program(), &line).map_err(|problem| helped(&line, problem))?;
    let matches = program.try_get_matches_from_mut(line)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    output::set_verbosity(cli.verbosity());
    // Before anything that may start a thread.
    threads::settle(&program, &matches)?;
    cli.color.write_global();
    let done = match cli.command.answers_many() {
        // Where llama.cpp gives up the others are told.
        true => cli.command.run(),
        false => polydraft_llama::host(|| cli.command.run())?,
    };
    // An option that is at odds with others may be one that nobody typed.
    done.map_err(|error| match defaults {
        Some(file) if error.is::<output::Usage>() => {
            let file = file.display();
            output::note(format_args!(
                "note: some options are from {file}; --no-config leaves it out"
            ));
            error
        }
        _ => error,
    })
}

/// The program, which takes -1 for a number, so that the option says what it expects instead.
fn program() -> clap::Command {
    fn all(command: clap::Command) -> clap::Command {
        let number = |arg: clap::Arg| match arg.get_action().takes_values() && !arg.is_positional()
        {
            true => arg.allow_negative_numbers(true),
            false => arg,
        };
        command.mut_args(number).mut_subcommands(all)
    }
    all(Cli::command())
}

/// Who asks for help gets it, whatever is wrong with the file of defaults.
fn helped(line: &[std::ffi::OsString], problem: anyhow::Error) -> anyhow::Error {
    match Cli::command().try_get_matches_from(line) {
        Err(help) if matches!(help.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            help.into()
        }
        _ => problem,
    }
}
