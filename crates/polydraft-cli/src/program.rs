//! Common start of programs with commands: defaults from a file, verbosity, threads, and exit
//! codes.

use std::ffi::OsString;

use crate::usage::is_usage;
use anyhow::Result;
use clap::error::{ContextKind, ErrorKind};
use clap::{ArgMatches, Args, ColorChoice, Command, FromArgMatches};

use crate::output::{self, Verbosity};
use crate::{config, foreign, interrupts, threads};

/// Options of the whole program.
#[derive(Args, Debug)]
pub struct GlobalArgs {
    /// When to use color.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        global = true
    )]
    color: ColorChoice,
    /// Print errors only: no summary, no notes.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Report each step and the chosen settings.
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Read option defaults from this file.
    ///
    /// Keys are long option names: at the top level for all commands, or in a table such as
    /// [generate] for one command [default: polydraft/config.toml in $XDG_CONFIG_HOME, or in
    /// ~/.config].
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FILE",
        global = true,
        conflicts_with = "no_config"
    )]
    config: Option<std::path::PathBuf>,
    /// Ignore the file of option defaults.
    #[arg(hide_short_help = true, long, global = true)]
    no_config: bool,
}

impl GlobalArgs {
    /// Applies the options.
    fn apply(&self) {
        output::set_verbosity(match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        });
        match self.color {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// Parses a command line, which includes the program's name, runs `run` with the options after
/// starting the threads, and exits.
pub fn main(
    line: Vec<OsString>,
    command: Command,
    run: impl FnOnce(&ArgMatches) -> Result<()>,
) -> ! {
    polydraft_runtime::retain_freed_memory();
    let (words, names) = (line.clone(), option_names(&command));
    let mut done = parsed(line, command, run);
    let refused = done.as_mut().err().and_then(|error| error.downcast_mut::<clap::Error>());
    if let Some(refused) = refused
        && let Some(advice) = foreign::advice(words, &names, refused.use_stderr())
    {
        // One advice: that of clap is by likeness of names.
        for context in SUGGESTIONS {
            refused.remove(context);
        }
        output::note(advice);
    }
    interrupts::wait_for_exit();
    output::exit(done)
}

/// Additions of clap's to an error.
const SUGGESTIONS: [ContextKind; 6] = [
    ContextKind::Suggested,
    ContextKind::SuggestedArg,
    ContextKind::SuggestedCommand,
    ContextKind::SuggestedSubcommand,
    ContextKind::SuggestedValue,
    ContextKind::TrailingArg,
];

/// Names of the options of all commands, as they are typed.
fn option_names(command: &Command) -> Vec<String> {
    let long = command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?)));
    let short = command.get_arguments().filter_map(|arg| Some(format!("-{}", arg.get_short()?)));
    let inner = command.get_subcommands().flat_map(option_names);
    long.chain(short).chain(inner).collect()
}

fn parsed(
    line: Vec<OsString>,
    command: Command,
    run: impl FnOnce(&ArgMatches) -> Result<()>,
) -> Result<()> {
    let command = with_negative_numbers(command);
    let (mut program, file) = config::apply(command.clone(), &line)
        .map_err(|problem| prefer_help(command, &line, problem))?;
    let matches = program.try_get_matches_from_mut(line)?;
    if let Some(file) = &file {
        config::check(&program, &matches, file)?;
    }
    GlobalArgs::from_arg_matches(&matches)?.apply();
    // Must precede everything that may start a thread.
    threads::start_threads(&program, &matches)?;
    // The contradicting option may be one of the file.
    run(&matches).inspect_err(|error| {
        if let Some(file) = file.filter(|_| is_usage(error)) {
            let file = file.display();
            output::note(format_args!(
                "note: some options are from {file}; --no-config ignores it"
            ));
        }
    })
}

/// Lets options take negative numbers, so that their own errors are reported.
fn with_negative_numbers(command: Command) -> Command {
    let number = |arg: clap::Arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(number).mut_subcommands(with_negative_numbers)
}

/// Returns the help if requested, even if the configuration file is invalid; else the problem.
fn prefer_help(command: Command, line: &[OsString], problem: anyhow::Error) -> anyhow::Error {
    match command.try_get_matches_from(line) {
        Err(help) if matches!(help.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            help.into()
        }
        _ => problem,
    }
}
