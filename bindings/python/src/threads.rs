//! The one door through which Python hands work to Rust, and the threads of that work.
//!
//! Those of a process do not follow into one that is forked from it, as Python's workers are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{LazyLock, Mutex};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::{Failure, Result, lock};

/// The process that has rayon's own threads, if they are started: the one that imports the module.
pub static FIRST: LazyLock<u32> = LazyLock::new(process::id);

/// Thread pool of a forked process, with the process id that created it.
static FORKED: Mutex<Option<(u32, &ThreadPool)>> = Mutex::new(None);

/// Runs a job where what it does in parallel finds threads.
fn run<T: Send>(job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    match process::id() == *FIRST {
        true => job(),
        false => forked()?.install(job),
    }
}

fn forked() -> Result<&'static ThreadPool> {
    let mut started = lock(&FORKED);
    match *started {
        Some((process, pool)) if process == process::id() => Ok(pool),
        _ => {
            // As many as before: that number is known without the threads.
            let pool = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build();
            let pool = pool.map_err(|e| Failure::Python(PyRuntimeError::new_err(e.to_string())))?;
            // For the process's life: one that came from elsewhere cannot be ended, for its threads
            // are not there.
            let pool = &*Box::leak(Box::new(pool));
            *started = Some((process::id(), pool));
            Ok(pool)
        }
    }
}

/// Runs a piece of work without the interpreter's lock. A panic is an exception,
/// `polydraft.errors.InternalError`.
pub fn work<T: Send>(py: Python<'_>, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(|| run(job)))).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message =
            message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure::Library(
            "InternalError",
            format!("a bug in polydraft, please report it: {message}"),
        ))
    })
}

/// Panics, for tests of how a bug is reported.
#[pyfunction]
pub fn _panic(py: Python<'_>) -> Result<()> {
    work(py, || panic!("on purpose"))
}
