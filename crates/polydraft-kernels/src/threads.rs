//! Public interface of the thread pool.
//!
//! All kernels of a forward pass run on one pool (`pool.rs`). It has as many threads as rayon's
//! global pool, which is used to read weights.

use rayon::ThreadPoolBuilder;

use crate::error::{Error, Result};
use crate::pool;

/// Sets the number of threads of the process, including the caller's; at least one. Only the first
/// call has an effect. Without a call, the first product starts one thread per core.
///
/// ```
/// # fn main() -> polydraft_kernels::Result<()> {
/// polydraft_kernels::use_threads(1)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// Another number of threads is already running.
pub fn use_threads(threads: usize) -> Result<()> {
    let expected = threads.max(1);
    // Building fails if the pool was already built by an earlier call or by the first product.
    // Then its size is compared below.
    let _ = ThreadPoolBuilder::new().num_threads(expected).build_global();
    match rayon::current_num_threads() {
        got if got == expected => Ok(()),
        got => Err(Error::Threads { expected, got }),
    }
}

/// Calls `work` with each number below `count`, on the threads of the kernels. Intended for work
/// between products, such as per-sequence work of a batch.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let sum = AtomicUsize::new(0);
/// polydraft_kernels::parallel_for(10, &|number| {
///     sum.fetch_add(number, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 45);
/// ```
pub fn parallel_for(count: usize, work: &(dyn Fn(usize) + Sync)) {
    pool::parallel_ranges(count, 1, &|range| range.for_each(work));
}

/// Calls `work` with each of `items`, on the threads of the kernels. Uses at most one thread per
/// `min_per_thread` items.
///
/// ```
/// let mut numbers = [1, 2, 3];
/// polydraft_kernels::parallel_for_each(numbers.iter_mut().collect(), 1, |number| *number *= 2);
/// assert_eq!(numbers, [2, 4, 6]);
/// ```
pub fn parallel_for_each<T: Send>(items: Vec<T>, min_per_thread: usize, work: impl Fn(T) + Sync) {
    pool::parallel_for_each(items, min_per_thread, work);
}
