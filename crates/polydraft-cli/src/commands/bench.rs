//! `polydraft bench`: costs of models on this machine, and recommended settings.

mod by_costs;
pub mod model;
pub mod speed;

use anyhow::Result;
use clap::Subcommand;

/// Measure speed, after checking the results.
#[derive(Subcommand)]
pub enum Bench {
    /// Recommend settings for a target and its draft, with the speed-up and the reason.
    Speed(Box<speed::Args>),
    /// Measure loading, decoding and the cost of passes of a model.
    Model(model::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// Fails as the subcommand does.
pub fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Speed(args) => speed::run(*args),
        Bench::Model(args) => model::run(args),
    }
}

/// Returns the median.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { 0.5 * (values[middle - 1] + values[middle]) }
}
