//! How many threads compute.
//!
//! All of a forward pass runs on one pool (`pool.rs`) with as many threads as rayon's global one,
//! which reads the weights.

use rayon::ThreadPoolBuilder;

use crate::error::{Error, Result};
use crate::pool;

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

/// Calls `work` with every number below `count`, once each, on the threads of products: for what
/// is done between products, for each sequence of a batch.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let sum = AtomicUsize::new(0);
/// polydraft_kernels::spread(10, &|number| {
///     sum.fetch_add(number, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 45);
/// ```
pub fn spread(count: usize, work: &(dyn Fn(usize) + Sync)) {
    pool::split(count, 1, &|range| range.for_each(work));
}

/// Calls `work` with each of `items`, on the threads of products; fewer than `least` are not worth
/// another thread.
///
/// ```
/// let mut numbers = [1, 2, 3];
/// polydraft_kernels::each(numbers.iter_mut().collect(), 1, |number| *number *= 2);
/// assert_eq!(numbers, [2, 4, 6]);
/// ```
pub fn each<T: Send>(items: Vec<T>, least: usize, work: impl Fn(T) + Sync) {
    pool::each(items, least, work);
}
