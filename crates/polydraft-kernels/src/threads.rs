//! How many threads compute.
//!
//! All of a forward pass runs on one pool (`pool.rs`) with as many threads as rayon's global one,
//! which reads the weights.

use rayon::ThreadPoolBuilder;

use crate::error::{Error, Result};

/// Starts `threads` threads, at least one, for all models of the process, the one that asks
/// included. The first call counts; without one, the first product starts one per core.
///
/// ```
/// # fn main() -> polydraft_kernels::Result<()> {
/// polydraft_kernels::use_threads(1)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// Another number of threads runs already.
pub fn use_threads(threads: usize) -> Result<()> {
    let expected = threads.max(1);
    // An error here is that the pool runs already, by an earlier call or by somebody else's first
    // product; then its size decides.
    let _ = ThreadPoolBuilder::new().num_threads(expected).build_global();
    match rayon::current_num_threads() {
        got if got == expected => Ok(()),
        got => Err(Error::Threads { expected, got }),
    }
}
