//! How many threads compute.
//!
//! Three parts of a pass pick their own number:
//! 1. our own products, attention and gates: a pool of ours (`packed/pool.rs`), with as many threads as rayon's global one,
//!    which reads the weights;
//! 2. candle's plain products, made by gemm: rayon's pool; in how many parts a product is cut is the environment's
//!    `RAYON_NUM_THREADS`, asked for with every product, or else the number of cores;
//! 3. candle's products with its own quantised formats, and operations on 65,536 numbers or more: a pool of candle's
//!    own, started on first use with as many threads as the environment's `CANDLE_NUM_THREADS` says, or else
//!    `RAYON_NUM_THREADS`, or else one per core; candle has no other way to tell it.
//!
//! [`use_threads`] settles the first, and says what the environment has settled for the third. A program that wants
//! both alike sets the two variables before it starts any thread.

use rayon::ThreadPoolBuilder;

use crate::{Error, Result};

/// How many threads compute, the one that asks included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// Of our own products, and of candle's plain ones.
    pub products: usize,
    /// Of candle's quantised products, as the environment has it.
    pub quantised: usize,
}

/// Starts `threads` threads, at least one, for all models of the process. The first call counts; without one, the first
/// product starts one per core.
///
/// ```
/// # fn main() -> polydraft_candle::Result<()> {
/// assert_eq!(polydraft_candle::use_threads(1)?.products, 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Another number of threads runs already.
pub fn use_threads(threads: usize) -> Result<Threads> {
    let expected = threads.max(1);
    // An error here is that the pool runs already, by an earlier call or by somebody else's first product; then its
    // size decides.
    let _ = ThreadPoolBuilder::new().num_threads(expected).build_global();
    let got = rayon::current_num_threads();
    if got != expected {
        return Err(Error::Threads { expected, got });
    }
    // Starts candle's pool, so that the answer stays true whatever becomes of the environment.
    let quantised = candle_core::utils::barrier_pool().n_workers() + 1;
    Ok(Threads { products: got, quantised })
}
