//! Output and exit codes.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use anyhow::Result;
use polydraft_runtime::message::{Message, command_line};
use polydraft_runtime::{Listener, PROGRESS_INTERVAL, explain};
use serde::Serialize;

use crate::usage::is_usage;

/// Exit code of a command that has printed its result; nothing more is printed.
#[derive(Debug)]
pub struct ExitCode(u8);

impl ExitCode {
    /// Creates an error that ends the program with this exit code.
    pub fn error(code: u8) -> anyhow::Error {
        Self(code).into()
    }
}

impl Display for ExitCode {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for ExitCode {}

/// Ends a command that printed its results: success, or the exit code of an interrupted program.
///
/// Fails with that exit code if interrupted.
pub fn finish(interrupted: bool) -> Result<()> {
    match interrupted {
        false => Ok(()),
        true => {
            note("interrupted: these are the results so far");
            Err(ExitCode::error(crate::interrupts::EXIT_CODE))
        }
    }
}

/// Reports an error and exits: with code 2 for usage errors, 1 for others. A closed output is not
/// an error.
pub fn exit(result: Result<()>) -> ! {
    polydraft_runtime::leave(result.map_or_else(|error| exit_code(&error), |()| 0).into())
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return 0;
    }
    if let Some(ExitCode(code)) = error.downcast_ref() {
        return *code;
    }
    if let Some(clap_error) = error.downcast_ref() {
        return exit_from_clap(clap_error);
    }
    match error.downcast_ref::<io::Error>() {
        // An I/O error without context is from our own output.
        Some(output) if error.chain().count() == 1 => {
            print_error(format_args!("cannot write the output: {output}"))
        }
        _ if is_usage(error) => {
            print_error(format_args!(
                "{}\n\nFor more information, try '--help'.",
                explain(error, command_line)
            ));
        }
        _ => print_error(explain(error, command_line)),
    }
    if is_usage(error) { 2 } else { 1 }
}

/// Prints help and version to standard output, and usage errors to standard error.
fn exit_from_clap(clap_error: &clap::Error) -> u8 {
    let text = clap_error.render().ansi().to_string();
    if clap_error.use_stderr() {
        let _ = write!(anstream::stderr(), "{text}");
    } else if let Err(error) = write!(anstream::stdout(), "{text}") {
        return exit_code(&error.into());
    }
    clap_error.exit_code() as u8
}

/// Level of messages on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Also summaries and notes.
    Normal,
    /// Also details of the run.
    Verbose,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// Sets the level for the whole program.
pub fn set_verbosity(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
}

/// Returns whether messages of this level are printed.
pub fn prints(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= verbosity as u8
}

/// Prints a line to standard error, unless --quiet is given. A closed standard error is ignored.
pub fn note(line: impl Display) {
    if prints(Verbosity::Normal) {
        show(line);
    }
}

/// Prints a line to standard error whatever the level. A closed standard error is ignored.
pub fn show(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// Prints a line to standard error if --verbose is given.
pub fn detail(line: impl Display) {
    if prints(Verbosity::Verbose) {
        let dim = anstyle::Style::new().dimmed();
        note(format_args!("{dim}{}{dim:#}", visible(&line.to_string())));
    }
}

/// Time of the last progress message without a terminal, or of the start of the work.
static LAST_PROGRESS: Mutex<Option<Instant>> = Mutex::new(None);

/// Listener that prints to standard error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminal;

impl Listener for Terminal {
    fn note(&self, message: &Message) {
        note(message.render(command_line));
    }

    fn detail(&self, message: &Message) {
        detail(message.render(command_line));
    }

    /// Overwrites a line of the terminal, and clears it at the end; without a terminal, prints a
    /// line per minute.
    fn progress(&self, what: &str, done: usize, total: usize) {
        if !prints(Verbosity::Normal) {
            return;
        }
        if !io::stderr().is_terminal() {
            let mut last_progress = LAST_PROGRESS.lock().unwrap_or_else(|lost| lost.into_inner());
            let since = last_progress.get_or_insert_with(Instant::now);
            if since.elapsed() >= PROGRESS_INTERVAL && done < total {
                *since = Instant::now();
                note(format_args!("{}: {} %", visible(what), 100 * done / total));
            } else if done >= total {
                *last_progress = None;
            }
            return;
        }
        let line = match (done, total) {
            _ if done >= total => String::new(),
            (0, _) => format!("{} ..", visible(what)),
            _ => format!("{}: {} %", visible(what), 100 * done / total),
        };
        // Moves to the start of the line and clears it.
        let _ = write!(io::stderr(), "\r\x1b[2K{line}");
    }
}

/// Prints an error message to standard error, also with --quiet.
pub fn print_error(line: impl Display) {
    let red = anstyle::Style::new().bold().fg_color(Some(anstyle::AnsiColor::Red.into()));
    let line = line.to_string();
    let _ = writeln!(anstream::stderr(), "{red}error:{red:#} {}", visible(&line));
}

/// Makes untrusted text safe for a terminal: characters that could move the cursor, change colours
/// or the writing direction are replaced by visible ones. Line breaks and tabs remain.
pub fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(
                c,
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            )
    };
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let sign = |c: char| match c {
        // Unicode has symbols for ASCII's control characters.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or(c).to_string(),
        '\u{7f}' => '\u{2421}'.to_string(),
        _ => format!("\\u{{{:x}}}", c as u32),
    };
    Cow::Owned(text.chars().map(|c| if hidden(c) { sign(c) } else { c.to_string() }).collect())
}

/// Prints a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// Returns the command line, quoted for a shell. Settings of a configuration file are not included.
pub fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once(program()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns the name of the running program, which may be the laboratory's.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem().map_or("polydraft".into(), |name| name.to_string_lossy().into_owned())
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_replaces_control_characters() {
        assert!(matches!(visible("fn main() {\n\té\n}"), Cow::Borrowed(_)));
        assert_eq!(visible("\u{1b}[2J\r\u{7f}\u{9b}x\u{202e}"), "␛[2J␍␡\\u{9b}x\\u{202e}");
    }

    #[test]
    fn quotes_words_for_shell() {
        for (word, expected) in [
            ("--paths", "--paths"),
            ("2,4", "2,4"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
