//! What reaches the user: exit codes, and output that may be closed early.

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

/// A result that is no error but no success either: nothing more is printed.
#[derive(Debug)]
pub struct Verdict(u8);

impl Verdict {
    /// Ends the program with this exit code.
    pub fn error(code: u8) -> anyhow::Error {
        Self(code).into()
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Verdict {}

/// The end of a command that printed what it has: a success, or the exit code of a program that was
/// interrupted.
///
/// # Errors
/// That exit code.
pub fn done(interrupted: bool) -> Result<()> {
    match interrupted {
        false => Ok(()),
        true => {
            note("interrupted: this is what there was until then");
            Err(Verdict::error(crate::interrupts::EXIT_CODE))
        }
    }
}

/// Reports an error and ends the program: with exit code 2 for usage, 1 for the rest. A reader that
/// closed our output is none.
pub fn leave(result: Result<()>) -> ! {
    polydraft_runtime::leave(result.map_or_else(|error| exit_code(&error), |()| 0).into())
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return 0;
    }
    if let Some(Verdict(code)) = error.downcast_ref() {
        return *code;
    }
    if let Some(said) = error.downcast_ref() {
        return by_clap(said);
    }
    match error.downcast_ref::<io::Error>() {
        // An I/O error without a context is of our own output.
        Some(output) if error.chain().count() == 1 => {
            complain(format_args!("cannot write the output: {output}"))
        }
        _ if is_usage(error) => {
            complain(format_args!(
                "{}\n\nFor more information, try '--help'.",
                explain(error, command_line)
            ));
        }
        _ => complain(explain(error, command_line)),
    }
    if is_usage(error) { 2 } else { 1 }
}

/// Help and version go to standard output, as all output does; what is wrong with the command line
/// to standard error.
fn by_clap(said: &clap::Error) -> u8 {
    let text = said.render().ansi().to_string();
    if said.use_stderr() {
        let _ = write!(anstream::stderr(), "{text}");
    } else if let Err(error) = write!(anstream::stdout(), "{text}") {
        return exit_code(&error.into());
    }
    said.exit_code() as u8
}

/// How much is said on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub enum Verbosity {
    /// Errors.
    Quiet,
    /// Summaries and notes too.
    Normal,
    /// And what is done and how.
    Verbose,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// Says how much is to be said, for the whole program.
pub fn set_verbosity(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
}

/// Whether so much is to be said.
pub fn says(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= verbosity as u8
}

/// A line on standard error, for people, unless --quiet is given. A closed standard error is no
/// failure.
pub fn note(line: impl Display) {
    if says(Verbosity::Normal) {
        let _ = writeln!(anstream::stderr(), "{line}");
    }
}

/// A line on standard error with --verbose.
pub fn detail(line: impl Display) {
    if says(Verbosity::Verbose) {
        let dim = anstyle::Style::new().dimmed();
        note(format_args!("{dim}{}{dim:#}", visible(&line.to_string())));
    }
}

/// When it was said last, without a terminal, how far long work is, or that work began.
static SPOKE: Mutex<Option<Instant>> = Mutex::new(None);

/// Notes and details on standard error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terminal;

impl Listener for Terminal {
    fn note(&self, message: &Message) {
        note(message.render(command_line));
    }

    fn detail(&self, message: &Message) {
        detail(message.render(command_line));
    }

    /// A line of a terminal that is written over, and gone at the end; elsewhere one a minute.
    fn progress(&self, what: &str, done: usize, total: usize) {
        if !says(Verbosity::Normal) {
            return;
        }
        if !io::stderr().is_terminal() {
            let mut spoke = SPOKE.lock().unwrap_or_else(|lost| lost.into_inner());
            let since = spoke.get_or_insert_with(Instant::now);
            if since.elapsed() >= PROGRESS_INTERVAL && done < total {
                *since = Instant::now();
                note(format_args!("{}: {} %", visible(what), 100 * done / total));
            } else if done >= total {
                *spoke = None;
            }
            return;
        }
        let line = match (done, total) {
            _ if done >= total => String::new(),
            (0, _) => format!("{} ..", visible(what)),
            _ => format!("{}: {} %", visible(what), 100 * done / total),
        };
        // To the line's beginning, and all that stands in it away.
        let _ = write!(io::stderr(), "\r\x1b[2K{line}");
    }
}

/// An error message on standard error, also with --quiet.
pub fn complain(line: impl Display) {
    let red = anstyle::Style::new().bold().fg_color(Some(anstyle::AnsiColor::Red.into()));
    let line = line.to_string();
    let _ = writeln!(anstream::stderr(), "{red}error:{red:#} {}", visible(&line));
}

/// Untrusted text as a terminal may show it: what could move the cursor, change colours or turn the
/// direction of writing becomes a visible sign. Lines and tabs stay.
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
        // Unicode has pictures of the first 32 and of the last of ASCII.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or(c).to_string(),
        '\u{7f}' => '\u{2421}'.to_string(),
        _ => format!("\\u{{{:x}}}", c as u32),
    };
    Cow::Owned(text.chars().map(|c| if hidden(c) { sign(c) } else { c.to_string() }).collect())
}

/// A value as indented JSON on standard output, for machines.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// The command that runs, as one would type it to run it again; what a configuration file says is
/// not in it.
pub fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once(program()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The name of the program that runs, which may be the laboratory's.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_stem().map_or("polydraft".into(), |name| name.to_string_lossy().into_owned())
}

/// A word as a shell takes it.
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
    fn nothing_moves_the_cursor() {
        assert!(matches!(visible("fn main() {\n\té\n}"), Cow::Borrowed(_)));
        assert_eq!(visible("\u{1b}[2J\r\u{7f}\u{9b}x\u{202e}"), "␛[2J␍␡\\u{9b}x\\u{202e}");
    }

    #[test]
    fn words_survive_a_shell() {
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
