//! What reaches the user: exit codes, and output that may be closed early.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

/// A mistake in the command line that clap could not see. It ends with exit code 2, as clap's own do.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// Ends the program with exit code 2 and this message.
    pub fn error(message: impl Display) -> anyhow::Error {
        Self(message.to_string()).into()
    }
}

impl Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}\n\nFor more information, try '--help'.", self.0)
    }
}

impl std::error::Error for Usage {}

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

/// Reports an error: exit code 2 for usage, 1 for the rest. A reader that closed our output is none.
pub fn exit_code(result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    if let Some(Verdict(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    let red = anstyle::Style::new().bold().fg_color(Some(anstyle::AnsiColor::Red.into()));
    note(format_args!("{red}error:{red:#} {error:#}"));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

/// A line on standard error, for people. Nobody listening is no failure.
pub fn note(line: impl Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// A value as indented JSON on standard output, for machines.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// What the numbers were measured on.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {threads} threads, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}
