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
pub fn run(args: Args, mut program: Command) -> Result<()> {
    // Written to memory first: the generator panics if it cannot write, and a reader may stop
    // early.
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}
