//! `polydraft bench`: measurements that check their answers first.

pub mod acceptance;
pub mod decode;
pub mod model;

use anyhow::Result;
use clap::Subcommand;

/// Measure, after checking the answers.
#[derive(Subcommand)]
pub enum Bench {
    Decode(decode::Args),
    Acceptance(acceptance::Args),
    Model(model::Args),
}

pub fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Decode(args) => decode::run(args),
        Bench::Acceptance(args) => acceptance::run(args),
        Bench::Model(args) => model::run(args),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { 0.5 * (values[middle - 1] + values[middle]) }
}

/// What the numbers were measured on.
fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown processor", |(_, name)| name.trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {threads} threads, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}
