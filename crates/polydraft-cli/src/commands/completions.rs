//! `polydraft completions`: shell scripts that complete commands and options.

use std::io::Write;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

/// Print a completion script for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Install it and start a new shell:
  bash        polydraft completions bash > ~/.local/share/bash-completion/completions/polydraft
  zsh         polydraft completions zsh > ~/.zfunc/_polydraft
              with this in ~/.zshrc, before compinit: fpath+=~/.zfunc
  fish        polydraft completions fish > ~/.config/fish/completions/polydraft.fish
  powershell  polydraft completions powershell >> $PROFILE
  elvish      polydraft completions elvish > ~/.config/elvish/lib/polydraft.elv
              with this in ~/.config/elvish/rc.elv: use polydraft
Create the folders first if they are missing (mkdir -p).")]
pub struct Args {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// Fails if the output is closed.
pub fn run(args: Args, program: Command) -> Result<()> {
    // Written to memory first: the generator panics if it cannot write, and a reader may stop
    // early.
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(args.shell, &mut visible(&program), name, &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// The command without the hidden ones below it, which the generators would offer.
fn visible(command: &Command) -> Command {
    let mut shown = Command::new(command.get_name().to_owned());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(visible);
    shown
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(below)
}
