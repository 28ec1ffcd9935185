//! Calls into llama.cpp that may fail in its own ways.
//!
//! llama.cpp throws exceptions, and where it finds itself wrong, or has lost a machine that it
//! computes on, it ends the process: it calls the function that was set for that and then `abort`.
//! Neither is for a program that has output to keep, or other requests to answer. So every such
//! call is made on one thread that does nothing else, for which its callers wait:
//! 1. an exception is caught in `border.cpp` and becomes an error of that call;
//! 2. where llama.cpp would end the process, the thread that says so is stopped for good, all
//!    callers that wait get [`Error::Ended`], and llama.cpp is not called again. What its other
//!    threads are at goes on, so that nothing that they may read is freed, and the process has to
//!    be left by [`leave`](super::leave).
//!
//! One thread for all models: passes of target and draft take turns anyway, and the threads that
//! share a pass belong to the thread that began it.
//!
//! Going there and back takes two wake-ups: 0.15 to 0.28 ms on a virtual machine, 1 to 3 % of a
//! pass of a model of 135 M. A program that is to end with llama.cpp anyway saves them by [`host`]:
//! it runs as a whole beside a thread that waits for it.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Error, Result};

/// What the system gives a process's first thread, for which C++ is written.
const STACK: usize = 8 << 20;
/// Bytes of what an exception says.
const SAID: usize = 500;

// SAFETY: the crate's C++ defines it so.
unsafe extern "C-unwind" {
    /// Calls `work(data)`. Returns 1 if it threw, with the reason in `what`, which has room for
    /// `most` bytes.
    fn polydraft_llama_try(
        work: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
        what: *mut c_char,
        most: usize,
    ) -> c_int;
}

type Job = Box<dyn FnOnce() + Send>;

/// Why llama.cpp cannot go on in this process, if it cannot; what is waited for is written under
/// the same lock.
static ENDED: Mutex<Option<String>> = Mutex::new(None);
/// The same, for a look without a lock.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// Whether the program is hosted.
static IS_HOSTED: AtomicBool = AtomicBool::new(false);
/// Something that somebody waits for has happened.
static NEWS: Condvar = Condvar::new();

fn ended() -> MutexGuard<'static, Option<String>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether llama.cpp cannot be called any more.
pub(crate) fn has_ended() -> bool {
    HAS_ENDED.load(Ordering::Acquire)
}

/// A pointer sent to the thread that calls llama.cpp.
pub(super) struct Carried<T>(T);

// SAFETY: only what is llama.cpp's own and belongs to no thread is carried, and its owner waits
// meanwhile.
unsafe impl<T> Send for Carried<T> {}

impl<T> Carried<T> {
    /// # Safety
    /// Whoever owns `value` touches it no more until the call that it is for has returned, and not
    /// at all if llama.cpp has ended.
    pub unsafe fn new(value: T) -> Self {
        Self(value)
    }

    pub fn take(self) -> T {
        self.0
    }
}

/// In place of `abort`: the calling thread stays here for good.
pub(super) extern "C" fn end(said: *const c_char) {
    let said = match said.is_null() {
        true => "no reason was given".to_owned(),
        // SAFETY: llama.cpp gives a string that ends in 0 and lives until this returns.
        false => unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned(),
    };
    // It begins with the whole path of a source file.
    let said = said.trim();
    let place = said.find(": ").unwrap_or(0);
    let from = said[..place].rfind(['/', '\\']).map_or(0, |slash| slash + 1);
    // The first reason is the cause of the others.
    ended().get_or_insert_with(|| said[from..].to_owned());
    HAS_ENDED.store(true, Ordering::Release);
    NEWS.notify_all();
    loop {
        std::thread::park();
    }
}

/// Runs `job` on the thread that calls llama.cpp.
///
/// # Errors
/// [`Error::Ended`] where llama.cpp ends in it or has ended before; then what the job was given is
/// never freed.
pub(super) fn call<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    match IS_HOSTED.load(Ordering::Relaxed) {
        // Where it ends this thread stays, and the host goes on.
        true => Ok(job()),
        false => wait_for(job, |job| {
            worker().send(job).expect("the thread takes jobs as long as the process lives");
        }),
    }
}

/// Runs a program that uses models of this crate on a thread of its own and waits for it. Calls
/// into llama.cpp are made where they stand in it. To be called once, before any model is loaded.
///
/// # Errors
/// [`Error::Ended`] where llama.cpp ends in it: the program stays where it is for good, and the
/// process is to be left by [`leave`](crate::leave).
pub fn host<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    IS_HOSTED.store(true, Ordering::Relaxed);
    wait_for(program, |program| {
        let thread = std::thread::Builder::new().name("polydraft".to_owned()).stack_size(STACK);
        thread.spawn(program).expect("a thread for the program");
    })
}

/// Has `job` run by another thread, to which `send` gives it.
fn wait_for<T: Send + 'static>(
    job: impl FnOnce() -> T + Send + 'static,
    send: impl FnOnce(Job),
) -> Result<T> {
    type Done<T> = std::result::Result<T, Box<dyn Any + Send>>;
    let done: Arc<Mutex<Option<Done<T>>>> = Arc::default();
    let theirs = Arc::clone(&done);
    let job = move || {
        let value = catch_unwind(AssertUnwindSafe(job));
        let _lock = ended();
        *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        NEWS.notify_all();
    };
    let mut lock = ended();
    if lock.is_none() {
        send(Box::new(job));
    }
    loop {
        if let Some(value) = done.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return value.map_or_else(|panic| resume_unwind(panic), Ok);
        }
        if let Some(said) = &*lock {
            return Err(Error::Ended { said: said.clone() });
        }
        lock = NEWS.wait(lock).unwrap_or_else(PoisonError::into_inner);
    }
}

fn worker() -> &'static Sender<Job> {
    static WORKER: OnceLock<Sender<Job>> = OnceLock::new();
    WORKER.get_or_init(|| {
        let (jobs, taken) = channel::<Job>();
        let work = move || taken.iter().for_each(|job| job());
        let thread = std::thread::Builder::new().name("llama.cpp".to_owned());
        thread.stack_size(STACK).spawn(work).expect("a thread for llama.cpp");
        jobs
    })
}

/// Calls llama.cpp, on the thread that does that; an exception becomes its text.
///
/// `work` may do nothing that panics: what is thrown in it goes through C++.
pub(super) fn attempt<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    struct State<F, T> {
        work: Option<F>,
        value: Option<T>,
    }
    /// # Safety
    /// `state` is a `State<F, T>` that nobody else uses meanwhile.
    unsafe extern "C-unwind" fn go<F: FnOnce() -> T, T>(state: *mut c_void) {
        // SAFETY: `attempt` lends its own state, and waits.
        let state = unsafe { &mut *state.cast::<State<F, T>>() };
        state.value = state.work.take().map(|work| work());
    }
    fn trampoline<F: FnOnce() -> T, T>(
        _: &State<F, T>,
    ) -> unsafe extern "C-unwind" fn(*mut c_void) {
        go::<F, T>
    }
    let mut state = State { work: Some(work), value: None };
    let mut what = [0_u8; SAID];
    let go = trampoline(&state);
    // SAFETY: `state` and `what` live until the call returns, and `go` is made for just this state.
    let threw = unsafe {
        polydraft_llama_try(go, (&raw mut state).cast(), what.as_mut_ptr().cast(), what.len())
    };
    match (threw, state.value) {
        (0, Some(value)) => Ok(value),
        _ => {
            let said = CStr::from_bytes_until_nul(&what).map(CStr::to_string_lossy);
            Err(said.unwrap_or_default().into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_made_on_one_thread_and_panics_come_back() {
        let name = || std::thread::current().name().map(str::to_owned);
        assert_eq!(call(name).unwrap().as_deref(), Some("llama.cpp"));
        let threads: Vec<_> = (0..4)
            .map(|number| {
                std::thread::spawn(move || call(move || (number, std::thread::current().id())))
            })
            .collect();
        let answers: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert!(
            answers
                .iter()
                .enumerate()
                .all(|(number, (got, id))| number == *got && *id == answers[0].1)
        );
        assert!(catch_unwind(|| call(|| panic!("mine"))).is_err());
        assert_eq!(call(|| attempt(|| 5)).unwrap(), Ok(5));
    }
}
