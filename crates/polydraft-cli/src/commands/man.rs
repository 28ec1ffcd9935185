//! `polydraft man`: manual pages, generated from the commands' help.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let Some(folder) = args.out else {
        std::io::stdout().lock().write_all(page(&program)?.as_bytes())?;
        return Ok(());
    };
    ensure!(!folder.is_file(), "--out {}: expected a folder, got a file", folder.display());
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    write(&program, &folder).with_context(|| format!("cannot write pages to {}", folder.display()))
}

/// Writes the pages of a command and of those below it.
fn write(command: &Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(folder.join(format!("{name}.1")), page(command)?)?;
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    inner.into_iter().try_for_each(|inner| write(inner, folder))
}

/// A page, with its examples as they are typed.
fn page(command: &Command) -> Result<String> {
    let version = concat!("polydraft ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(version).manual("Manual of polydraft").section("1");
    let mut bytes = Vec::new();
    man.render(&mut bytes)?;
    let page = String::from_utf8(bytes)?;
    let Some((before, extra)) = page.split_once(".SH EXTRA\n") else { return Ok(page) };
    let (examples, after) = extra.split_once(".SH ").unwrap_or((extra, ""));
    let (title, examples) = match examples.strip_prefix("Examples:\n") {
        Some(examples) => ("EXAMPLES", examples),
        None => ("NOTES", examples),
    };
    let after = if after.is_empty() { String::new() } else { format!(".SH {after}") };
    Ok(format!("{before}.SH {title}\n.nf\n{examples}.fi\n{after}"))
}
