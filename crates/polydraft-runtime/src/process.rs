//! The computing process: where llama.cpp is hosted, and how the process ends.

use std::path::Path;

use anyhow::Result;
pub use polydraft_llama::{Description as GgufDescription, has_ended, host, leave};

/// Returns whether this build contains llama.cpp.
pub const fn has_llama() -> bool {
    polydraft_llama::BUILT
}

/// Serves as an RPC server at `endpoint`, `HOST:PORT`, until the process is killed.
///
/// # Errors
/// A build without llama.cpp; an unavailable address.
pub fn serve_rpc(endpoint: &str, threads: usize) -> Result<()> {
    Ok(polydraft_llama::serve_rpc(endpoint, threads)?)
}

/// Describes a GGUF file of any architecture by its header, including those that the native backend
/// does not support.
///
/// # Errors
/// An invalid file.
pub fn describe_gguf(path: &Path) -> Result<GgufDescription> {
    Ok(GgufDescription::read(path)?)
}
