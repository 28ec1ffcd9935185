//! `polydraft bench`: costs of models on this machine, and the settings to use for them.

mod by_costs;
pub mod model;
pub mod speed;

use anyhow::Result;
use clap::Subcommand;

use super::moved::{Rest, moved};

/// Measure, after checking the answers.
#[derive(Subcommand)]
pub enum Bench {
    /// Recommend settings for a target and its draft, with the speed-up and the reason.
    Speed(Box<speed::Args>),
    /// Measure what passes of a model cost.
    Model(model::Args),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Decode(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Verifiers(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Acceptance(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Drafting(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    SolveTime(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Paper(Rest),
    /// Moved to polydraft-lab.
    #[command(hide = true)]
    Quality(Rest),
}

/// Runs one of them.
///
/// # Errors
/// What went wrong, in words.
pub fn run(bench: Bench) -> Result<()> {
    Err(moved(match bench {
        Bench::Speed(args) => return speed::run(*args),
        Bench::Model(args) => return model::run(args),
        Bench::Decode(_) => "bench decode",
        Bench::Verifiers(_) => "bench verifiers",
        Bench::Acceptance(_) => "bench acceptance",
        Bench::Drafting(_) => "bench drafting",
        Bench::SolveTime(_) => "bench solve-time",
        Bench::Paper(_) => "bench paper",
        Bench::Quality(_) => "bench quality",
    }))
}

/// The middle of some values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { 0.5 * (values[middle - 1] + values[middle]) }
}
