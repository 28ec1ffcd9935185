//! Commands that moved to polydraft-lab, under their old names.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use polydraft_runtime::Usage;

/// The arguments after the command's name.
#[derive(Args, Debug)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

/// Commands of `polydraft-lab` that were this program's.
#[derive(Subcommand, Debug)]
pub enum Moved {
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Couple(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Efficiency(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Trace(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Replay(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Report(Rest),
}

impl Moved {
    /// The error that names the command's new place.
    pub fn error(&self) -> anyhow::Error {
        moved(match self {
            Self::Couple(_) => "couple",
            Self::Efficiency(_) => "efficiency",
            Self::Trace(_) => "trace",
            Self::Replay(_) => "replay",
            Self::Report(_) => "report",
        })
    }
}

/// The error of a command that moved to polydraft-lab.
pub fn moved(name: &str) -> anyhow::Error {
    Usage::error(format_args!(
        "'{name}' is a command of the program polydraft-lab: polydraft-lab {name} (in a checkout: \
         cargo run --release -p polydraft-lab -- {name})"
    ))
}
