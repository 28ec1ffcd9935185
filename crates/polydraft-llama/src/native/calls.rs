//! Calls into llama.cpp that may throw or abort.
//!
//! llama.cpp throws exceptions; on failed assertions, and when it loses a remote machine, it calls
//! the abort callback and then `abort`. A program that has output to save or other requests to
//! answer can afford neither. So every such call runs on one thread that does nothing else, while
//! its callers wait:
//! 1. an exception is caught in `border.cpp` and becomes an error of that call;
//! 2. when llama.cpp aborts, the aborting thread is parked forever, all waiting callers get
//!    [`Error::Ended`], and llama.cpp is not called again. Its other threads go on, so nothing that
//!    they may read is freed, and the process has to exit with [`leave`](super::leave).
//!
//! There is one thread for all models: passes of target and draft alternate anyway, and the threads
//! that share a pass belong to the thread that started it.
//!
//! The switch to the thread and back takes two wake-ups: 0.15 to 0.28 ms on a virtual machine, 1 to
//! 3 % of a pass of a model of 135 M parameters. A program that need not survive llama.cpp avoids
//! them with [`host`], which runs all of it on one thread while the main thread waits.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Error, Result};

/// Stack size, the usual one of a process's main thread, for which C++ code is written.
const STACK_BYTES: usize = 8 << 20;
/// Maximum length of an exception's message.
const MESSAGE_BYTES: usize = 500;

// SAFETY: the declaration matches the definition in `border.cpp`.
unsafe extern "C-unwind" {
    /// Calls `work(data)`. Returns 1 if it threw an exception, with its message in `message`, a
    /// buffer of `size` bytes.
    fn polydraft_llama_try(
        work: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
}

type Job = Box<dyn FnOnce() + Send>;

/// Why llama.cpp aborted in this process, if it did. Results of calls are written under the same
/// lock.
static ENDED: Mutex<Option<String>> = Mutex::new(None);
/// Whether [`ENDED`] is set, for checks without the lock.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Whether the program runs inside [`host`].
static IS_HOSTED: AtomicBool = AtomicBool::new(false);
/// Notified when a call has finished or llama.cpp has aborted.
static CHANGED: Condvar = Condvar::new();

fn ended() -> MutexGuard<'static, Option<String>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether llama.cpp has aborted and cannot be called any more.
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Ordering::Acquire)
}

/// Pointer that is sent to the thread that calls llama.cpp.
pub(super) struct SendPtr<T>(T);

// SAFETY: `SendPtr::new` requires that the value is not used by two threads at once; llama.cpp's
// objects are not bound to a thread.
unsafe impl<T> Send for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// Wraps a value to be sent.
    ///
    /// # Safety
    /// - Until the call that uses `value` has returned, its owner must not use it.
    /// - If llama.cpp aborts, the owner must never use it again.
    pub unsafe fn new(value: T) -> Self {
        Self(value)
    }

    pub fn take(self) -> T {
        self.0
    }
}

/// Called by llama.cpp instead of `abort`: records the reason and parks the calling thread forever.
pub(super) extern "C" fn abort_callback(reason: *const c_char) {
    let reason = match reason.is_null() {
        true => "no reason was given".to_owned(),
        // SAFETY: `reason` is not null; llama.cpp passes a string that ends in 0 and lives until
        // this returns.
        false => unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned(),
    };
    // The reason begins with the full path of a source file.
    let reason = reason.trim();
    let path_end = reason.find(": ").unwrap_or(0);
    let from = reason[..path_end].rfind(['/', '\\']).map_or(0, |slash| slash + 1);
    // The first reason is the cause of the others.
    ended().get_or_insert_with(|| reason[from..].to_owned());
    HAS_ENDED.store(true, Ordering::Release);
    CHANGED.notify_all();
    loop {
        std::thread::park();
    }
}

/// Runs `job` on the thread that calls llama.cpp.
///
/// # Errors
/// [`Error::Ended`] if llama.cpp aborts in it or has aborted before; the job's arguments are then
/// leaked.
pub(super) fn call<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    match IS_HOSTED.load(Ordering::Relaxed) {
        // If llama.cpp aborts, this thread is parked and the host continues.
        true => Ok(job()),
        false => wait_for(job, |job| {
            worker().send(job).expect("the thread takes jobs as long as the process lives");
        }),
    }
}

/// Runs a program that uses models of this crate on a thread of its own and waits for it. The
/// program's calls into llama.cpp are then made directly on its threads. Call this once, before any
/// model is loaded.
///
/// # Errors
/// [`Error::Ended`] if llama.cpp aborts: the program's thread is parked forever, and the process
/// has to exit with [`leave`](crate::leave).
pub fn host<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    IS_HOSTED.store(true, Ordering::Relaxed);
    wait_for(program, |program| {
        let thread =
            std::thread::Builder::new().name("polydraft".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(program).expect("a thread for the program");
    })
}

/// Runs `job` on another thread, to which `send` passes it, and waits for the result.
fn wait_for<T: Send + 'static>(
    job: impl FnOnce() -> T + Send + 'static,
    send: impl FnOnce(Job),
) -> Result<T> {
    type Done<T> = std::result::Result<T, Box<dyn Any + Send>>;
    let done: Arc<Mutex<Option<Done<T>>>> = Arc::default();
    let result = Arc::clone(&done);
    let job = move || {
        let value = catch_unwind(AssertUnwindSafe(job));
        let _lock = ended();
        *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        CHANGED.notify_all();
    };
    let mut lock = ended();
    if lock.is_none() {
        send(Box::new(job));
    }
    loop {
        if let Some(value) = done.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return value.map_or_else(|panic| resume_unwind(panic), Ok);
        }
        if let Some(reason) = &*lock {
            return Err(Error::Ended { reason: reason.clone() });
        }
        lock = CHANGED.wait(lock).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Sender to the thread that calls llama.cpp, which is started on first use.
fn worker() -> &'static Sender<Job> {
    static WORKER: OnceLock<Sender<Job>> = OnceLock::new();
    WORKER.get_or_init(|| {
        let (jobs, received) = channel::<Job>();
        let work = move || received.iter().for_each(|job| job());
        let thread = std::thread::Builder::new().name("llama.cpp".to_owned());
        thread.stack_size(STACK_BYTES).spawn(work).expect("a thread for llama.cpp");
        jobs
    })
}

/// Calls llama.cpp and returns the message of an exception. Must run on the thread that calls
/// llama.cpp.
///
/// `work` must not panic: its unwinding would pass through C++.
pub(super) fn catch_exception<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    struct State<F, T> {
        work: Option<F>,
        value: Option<T>,
    }
    /// # Safety
    /// - `state` must point to a `State<F, T>` that lives until this returns.
    /// - Nobody else may use the state in the meantime.
    unsafe extern "C-unwind" fn run<F: FnOnce() -> T, T>(state: *mut c_void) {
        // SAFETY: `catch_exception` passes a pointer to its own state, and does not use the state
        // until this returns.
        let state = unsafe { &mut *state.cast::<State<F, T>>() };
        state.value = state.work.take().map(|work| work());
    }
    fn trampoline<F: FnOnce() -> T, T>(
        _: &State<F, T>,
    ) -> unsafe extern "C-unwind" fn(*mut c_void) {
        run::<F, T>
    }
    let mut state = State { work: Some(work), value: None };
    let mut message = [0_u8; MESSAGE_BYTES];
    let run = trampoline(&state);
    // SAFETY:
    // - `state` and `message` live until the call returns;
    // - `run` is instantiated for the type of this `state`;
    // - `size` is the length of `message`.
    let threw = unsafe {
        polydraft_llama_try(
            run,
            (&raw mut state).cast(),
            message.as_mut_ptr().cast(),
            message.len(),
        )
    };
    match (threw, state.value) {
        (0, Some(value)) => Ok(value),
        _ => {
            let message = CStr::from_bytes_until_nul(&message).map(CStr::to_string_lossy);
            Err(message.unwrap_or_default().into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_run_on_one_thread_and_panics_reach_the_caller() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(call(name).unwrap().as_deref(), Some("llama.cpp"));
        let threads: Vec<_> = (0..4)
            .map(|number| {
                std::thread::spawn(move || call(move || (number, std::thread::current().id())))
            })
            .collect();
        let results: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert!(
            results
                .iter()
                .enumerate()
                .all(|(number, (got, id))| number == *got && *id == results[0].1)
        );
        assert!(catch_unwind(|| call(|| panic!("mine"))).is_err());
        assert_eq!(call(|| catch_exception(|| 5)).unwrap(), Ok(5));
    }
}
