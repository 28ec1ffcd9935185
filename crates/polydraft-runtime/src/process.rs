//! The process that computes: where llama.cpp is hosted, and how the process ends.

use std::path::Path;

use anyhow::Result;
pub use polydraft_llama::{Description as GgufDescription, has_ended, host, leave};

/// Returns whether this build has llama.cpp in it.
pub const fn has_llama() -> bool {
    polydraft_llama::BUILT
}

/// Computes layers for other machines at `endpoint`, `HOST:PORT`, until the process is killed.
///
/// # Errors
/// A build without llama.cpp; an address that cannot be had.
pub fn serve_rpc(endpoint: &str, threads: usize) -> Result<()> {
    Ok(polydraft_llama::serve_rpc(endpoint, threads)?)
}

/// Describes a GGUF file of any architecture, by its header: one that the native backend may not
/// compute.
///
/// # Errors
/// A file that contradicts the format or itself.
pub fn describe_gguf(path: &Path) -> Result<GgufDescription> {
    Ok(GgufDescription::read(path)?)
}
