//! How many threads compute.
//!
//! On a processor all of a pass is ours: products, attention, norms and gates, on a pool of our own
//! (`packed/pool.rs`) with as many threads as rayon's global one, which reads the weights. Of
//! candle's tensor operations, which have pools of their own, none is left there; training uses
//! them.

use rayon::ThreadPoolBuilder;

use crate::{Error, Result};

/// Starts `threads` threads, at least one, for all models of the process, the one that asks
/// included. The first call counts; without one, the first product starts one per core.
///
/// ```
/// # fn main() -> polydraft_models::Result<()> {
/// polydraft_models::use_threads(1)?;
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
