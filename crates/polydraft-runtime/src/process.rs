//! The process that computes: where llama.cpp is hosted, and how the process ends.

pub use polydraft_llama::{has_ended, host, leave};

use anyhow::Result;

/// Returns whether this build has llama.cpp in it.
pub const fn llama_is_built() -> bool {
    polydraft_llama::BUILT
}

/// Computes layers for other machines at `endpoint`, `HOST:PORT`, until the process is killed.
///
/// # Errors
/// A build without llama.cpp; an address that cannot be had.
pub fn compute_for_others(endpoint: &str, threads: usize) -> Result<()> {
    Ok(polydraft_llama::serve_rpc(endpoint, threads)?)
}
