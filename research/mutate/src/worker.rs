//! Worker process: runs inputs, and reports the number of each before running it.

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args as ClapArgs;

use crate::clock::own_cpu_seconds;
use crate::kinds::{self, Kind};
use crate::{folder, limits};

/// Inputs to run.
#[derive(ClapArgs, Debug, Clone)]
pub struct Args {
    /// The seed of all inputs.
    #[arg(long)]
    pub seed: u64,
    /// Number of the first input.
    #[arg(long)]
    pub first: u64,
    /// Difference between the numbers of consecutive inputs.
    #[arg(long)]
    pub step: u64,
    /// End of the range of input numbers (exclusive).
    #[arg(long)]
    pub end: u64,
    /// Inputs of this kind only.
    #[arg(long)]
    pub only: Option<Kind>,
    /// Folder for inputs that are files.
    #[arg(long)]
    pub folder: PathBuf,
}

/// Outcome of an input.
enum Outcome {
    /// The input was read and used.
    Taken,
    /// The reader rejected the input with this error.
    Refused(String),
    /// The reader panicked.
    Panicked(String),
}

fn try_one(
    seed: u64,
    number: u64,
    only: Option<Kind>,
    folder: &std::path::Path,
) -> (Kind, Outcome) {
    let (kind, mut dice) = kinds::begin(seed, number, only);
    limits::begin();
    let outcome = match catch_unwind(AssertUnwindSafe(|| {
        kinds::run(kind, number, &mut dice, folder)
    })) {
        Ok(Ok(())) => Outcome::Taken,
        Ok(Err(error)) => Outcome::Refused(format!("{error:#}")),
        Err(payload) => {
            let output = payload.downcast_ref::<String>().cloned();
            let output = output.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Outcome::Panicked(output.unwrap_or_default())
        }
    };
    (kind, outcome)
}

/// Runs inputs. Prints the number of each input before running it, `! NUMBER MESSAGE` for a panic,
/// and at the end `= KIND ACCEPTED REJECTED`.
pub fn run(args: &Args) -> Result<()> {
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::io::stdout().lock();
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut number = args.first;
    while number < args.end {
        writeln!(out, "{number}")?;
        out.flush()?;
        let (kind, outcome) = try_one(args.seed, number, args.only, &args.folder);
        let count = counts.entry(format!("{kind:?}")).or_default();
        match outcome {
            Outcome::Taken => count.0 += 1,
            Outcome::Refused(_) => count.1 += 1,
            Outcome::Panicked(output) => {
                writeln!(out, "! {number} {kind:?}: {}", output.replace('\n', " "))?
            }
        }
        number += args.step;
        if number >= args.end || (number / args.step).is_multiple_of(1_000) {
            for (kind, (taken, refused)) in std::mem::take(&mut counts) {
                writeln!(out, "= {kind} {taken} {refused}")?;
            }
        }
    }
    Ok(())
}

/// Runs one input and prints its outcome.
pub fn one(seed: u64, number: u64, only: Option<Kind>) -> Result<bool> {
    let folder = folder::make()?;
    let clock = std::time::Instant::now();
    let (kind, outcome) = try_one(seed, number, only, folder.path());
    let seconds = clock.elapsed().as_secs_f64();
    let (fine, output) = match outcome {
        Outcome::Taken => (true, "taken".to_owned()),
        Outcome::Refused(output) => (true, format!("refused: {output}")),
        Outcome::Panicked(output) => (false, format!("panicked: {output}")),
    };
    println!("{kind:?}, {seconds:.3} s, {output}");
    Ok(fine)
}

/// Runs all inputs that have ever failed.
pub fn corpus() -> Result<bool> {
    let folder = folder::make()?;
    let mut fine = true;
    for line in include_str!("../corpus/failed.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse().ok());
        let (Some(seed), Some(input)) = (number(), number()) else { continue };
        let only = words.next().and_then(|word| clap::ValueEnum::from_str(word, true).ok());
        let before = own_cpu_seconds();
        let (kind, outcome) = try_one(seed, input, only, folder.path());
        let seconds = own_cpu_seconds() - before;
        if seconds > 10.0 {
            println!("{seed} {input} {kind:?}: {seconds} s");
            fine = false;
        }
        if let Outcome::Panicked(output) = outcome {
            println!("{seed} {input} {kind:?}: {output}");
            fine = false;
        }
    }
    Ok(fine)
}
