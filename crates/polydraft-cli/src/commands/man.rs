//! `polydraft man`: manual pages, generated from the commands' help.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Command;
use clap_mangen::Man;

/// Print the manual page, or write one for every command.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Read it now:
  polydraft man > /tmp/polydraft.1 && man /tmp/polydraft.1
Install all pages for 'man polydraft', 'man polydraft-generate' and so on:
  polydraft man --out ~/.local/share/man/man1")]
pub struct Args {
    /// Folder for polydraft.1 and one page per command, such as polydraft-generate.1.
    ///
    /// Created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints or writes the pages.
///
/// # Errors
/// Fails if the folder cannot be written to.
pub fn run(args: Args, program: Command) -> Result<()> {
    // The pages of 'help' would repeat all others.
    let program = program.disable_help_subcommand(true);
    let Some(folder) = args.out else {
        let mut page = Vec::new();
        Man::new(program).render(&mut page)?;
        std::io::stdout().lock().write_all(&page)?;
        return Ok(());
    };
    ensure!(!folder.is_file(), "--out {}: expected a folder, got a file", folder.display());
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    clap_mangen::generate_to(program, &folder)
        .with_context(|| format!("cannot write pages to {}", folder.display()))
}
