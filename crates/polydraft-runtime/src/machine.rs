//! The machine and its compute threads.

use std::sync::OnceLock;

use anyhow::Result;

use crate::listen::Listener;
use crate::message::{OptionName, message};

static STARTED_THREADS: OnceLock<usize> = OnceLock::new();

/// Describes the machine of a measurement: CPU, threads, operating system.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {threads} threads, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Starts the compute threads. Only the first call has an effect: threads are started once per
/// process.
///
/// # Errors
/// The system cannot start threads.
pub fn use_threads(threads: usize) -> Result<()> {
    polydraft_models::use_threads(threads)?;
    STARTED_THREADS.get_or_init(|| threads);
    Ok(())
}

/// Returns the bytes of available memory, if the system reports them.
pub fn available_memory() -> Option<u64> {
    polydraft_models::available_memory()
}

/// Returns the number of threads to use: the given one or one per core, at most one per core.
pub fn threads_or_all(threads: Option<usize>, listener: &dyn Listener) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let requested = threads.unwrap_or(cores);
    if requested > cores {
        listener.note(&message![
            format!("note: this machine has {cores} hardware threads; "),
            OptionName::Threads.with(requested),
            " is reduced to that",
        ]);
    }
    requested.min(cores)
}

/// Returns the number of compute threads: as set by [`use_threads`], otherwise one per core.
pub fn threads() -> usize {
    STARTED_THREADS.get().copied().unwrap_or_else(|| threads_or_all(None, &crate::listen::Silent))
}
