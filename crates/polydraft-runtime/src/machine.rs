//! The machine and the threads that compute on it.

use std::sync::OnceLock;

use anyhow::Result;

use crate::listen::Listener;
use crate::message::{OptionName, message};

static SETTLED: OnceLock<usize> = OnceLock::new();

/// The machine of a measurement: CPU, threads, operating system.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {threads} threads, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Starts the threads that compute. The first call counts: threads are started once for a process.
///
/// # Errors
/// The system has no threads left.
pub fn use_threads(threads: usize) -> Result<()> {
    polydraft_models::use_threads(threads)?;
    SETTLED.get_or_init(|| threads);
    Ok(())
}

/// Bytes of memory that can be had, where the system says.
pub fn available_memory() -> Option<u64> {
    polydraft_models::available_memory()
}

/// This many threads, or one per core by default, and never more than that.
pub fn threads_or_all(threads: Option<usize>, listener: &dyn Listener) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let requested = threads.unwrap_or(cores);
    if requested > cores {
        listener.note(&message![
            format!("note: this machine runs {cores} threads at once; "),
            OptionName::Threads.with(requested),
            " is taken as that",
        ]);
    }
    requested.min(cores)
}

/// Threads that compute: as [`use_threads`] has said, else one per core.
pub fn threads() -> usize {
    SETTLED.get().copied().unwrap_or_else(|| threads_or_all(None, &crate::listen::Silent))
}
