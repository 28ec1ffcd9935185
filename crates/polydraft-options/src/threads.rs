//! How many threads compute: settled by the first thing that the program does, before any other thread runs.
//!
//! Our own threads are started by [`polydraft_candle::use_threads`]. candle's can be told by the environment only, and
//! changing that is sound while there is one thread: this file is the one place that does so.

use anyhow::Result;
use clap::ArgMatches;

use crate::models;
use crate::output::note;

/// Starts the threads that a command is to compute with, if it computes with models: those have `--threads`.
pub fn settle(matches: &ArgMatches) -> Result<()> {
    let mut command = matches;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    let Ok(given) = command.try_get_one::<u32>("threads") else { return Ok(()) };
    let target = command.try_get_one::<String>("target");
    let small = target.is_ok_and(|target| models::is_small(target.map(String::as_str)));
    let threads = or_all(given.copied().or(small.then_some(1)));
    for variable in ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"] {
        // SAFETY: `main` calls this first, when no other thread runs that could read the environment.
        unsafe { std::env::set_var(variable, threads.to_string()) };
    }
    polydraft_candle::use_threads(threads)?;
    Ok(())
}

/// So many threads, or one per core if nothing is said, and never more.
pub fn or_all(threads: Option<u32>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let asked = threads.map_or(cores, |threads| threads as usize);
    if asked > cores {
        note(format_args!(
            "note: this machine runs {cores} threads at once; --threads {asked} is taken as that"
        ));
    }
    asked.min(cores)
}

/// Threads that compute, once [`settle`] has said.
pub fn settled() -> usize {
    let told = std::env::var("RAYON_NUM_THREADS").ok().and_then(|threads| threads.parse().ok());
    told.filter(|threads| *threads > 0).unwrap_or_else(|| or_all(None))
}
