//! The thread pool of all kernels.
//!
//! Problem: a product takes a fraction of a millisecond, less than waking a sleeping thread.
//! Method: work on `0..count` is divided into one contiguous share per thread. Equal calls give a
//! thread equal shares, so the same weights stay in its core's cache. A thread takes its share in
//! chunks, and then helps with the shares of others (work stealing), so that no thread waits
//! for a slow one. The caller takes part. After a task, threads spin for a moment, because the next
//! product mostly follows at once, and sleep after that. One task runs at a time: a concurrent
//! caller does its work alone. Results do not depend on which thread computes them.
//!
//! Synchronization: `Shared::gate` is one atomic word of three fields: the number of threads inside
//! the task, an open bit, and the task's generation. The caller writes the task while the gate is
//! closed and empty, then opens it. A worker enters by incrementing the count and reads the task
//! only if the gate was open. To finish, the caller closes the gate and waits until the count is 0.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Time that an idle thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// A thread takes 1 / `CHUNKS` of the rest of a share at a time: chunks shrink towards the end, so
/// that threads finish at about the same time.
const CHUNKS: usize = 8;

type Work<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// Calls `work` on all threads with disjoint ranges that cover `0..count`. Uses at most one thread
/// per `min_per_thread` indices.
pub(crate) fn parallel_ranges(count: usize, min_per_thread: usize, work: &Work) {
    static POOL: OnceLock<Pool> = OnceLock::new();
    let shares = count / min_per_thread.max(1);
    if shares <= 1 {
        return work(0..count);
    }
    POOL.get_or_init(|| Pool::new(rayon::current_num_threads())).run(count, shares, work);
}

/// Calls `work` with each of `items`, on all threads. Uses at most one thread per `min_per_thread`
/// items.
pub(crate) fn parallel_for_each<T: Send>(
    items: Vec<T>,
    min_per_thread: usize,
    work: impl Fn(T) + Sync,
) {
    if items.len() / min_per_thread.max(1) <= 1 {
        return items.into_iter().for_each(work);
    }
    // These locks are never contended: each item is in one range.
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    parallel_ranges(items.len(), min_per_thread, &|range| {
        for item in &items[range] {
            let item = item.lock().unwrap_or_else(PoisonError::into_inner).take();
            item.into_iter().for_each(&work);
        }
    });
}

/// Rest of a thread's share: the indices that no thread has taken yet. Aligned to two cache lines,
/// which the CPU prefetches as a pair.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Task {
    work: *const Work<'static>,
    shares: usize,
}

struct Shared {
    /// Number of threads inside the task (16 bits), [`OPEN`], and the generation (from [`NEXT`]).
    gate: AtomicU64,
    task: UnsafeCell<Option<Task>>,
    shares: Box<[Share]>,
    asleep: Box<[AtomicBool]>,
    panicked: AtomicBool,
}

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const NEXT: u64 = OPEN << 1;

// SAFETY:
// - `task` is written only while the gate is closed and no thread is inside (`Pool::run`).
// - `task` is read only by threads inside an open gate (`Shared::serve`).
// - The work behind its pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// Works on share `thread`, then on the rest of the other threads' shares.
    fn work(&self, task: Task, thread: usize) {
        // SAFETY: `Pool::run` returns only when no thread is inside, so the work is still alive.
        let work = unsafe { &*task.work };
        for offset in 0..task.shares {
            let share = &self.shares[(thread + offset) % task.shares];
            let end = share.end.load(Ordering::Relaxed);
            let chunk_end = |begin: usize| begin + (end - begin).div_ceil(CHUNKS);
            let take = |begin| (begin < end).then(|| chunk_end(begin));
            while let Ok(begin) =
                share.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            {
                work(begin..chunk_end(begin));
            }
        }
    }

    /// Waits for a task whose generation is not `last`.
    fn wait(&self, thread: usize, last: u64) {
        let is_new = |gate: u64| gate & OPEN != 0 && gate / NEXT != last;
        loop {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                for _ in 0..32 {
                    if is_new(self.gate.load(Ordering::Acquire)) {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
            // Set before the last check of the gate: a caller that opens it after the check sees
            // the flag, and wakes this thread.
            self.asleep[thread].store(true, Ordering::SeqCst);
            if !is_new(self.gate.load(Ordering::SeqCst)) {
                std::thread::park();
            }
            self.asleep[thread].store(false, Ordering::SeqCst);
        }
    }

    /// Runs a worker thread.
    fn serve(&self, thread: usize) {
        let mut last = 0;
        loop {
            self.wait(thread, last);
            let gate = self.gate.fetch_add(1, Ordering::SeqCst);
            if gate & OPEN != 0 {
                last = gate / NEXT;
                // SAFETY: this thread is inside an open gate, so no one writes the task.
                let task = unsafe { *self.task.get() };
                if let Some(task) = task.filter(|task| thread < task.shares)
                    && catch_unwind(AssertUnwindSafe(|| self.work(task, thread))).is_err()
                {
                    self.panicked.store(true, Ordering::Relaxed);
                }
            }
            self.gate.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

struct Pool {
    shared: &'static Shared,
    /// All threads but the caller's.
    threads: Vec<Thread>,
    busy: AtomicBool,
    /// Value of [`FORKS`] when the threads were started. A forked process has a higher one, and
    /// none of the threads.
    forks: usize,
}

/// Number of forks between the process that called [`count_forks`] and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Starts counting forks. (Comparing process IDs would cost a system call per product.)
fn count_forks() {
    #[cfg(unix)]
    {
        extern "C" fn forked() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: `forked` is static, and async-signal-safe. If registering it fails for lack of
        // memory, a forked process only offers work to threads that do not exist, and does all of
        // it itself.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forked));
        });
    }
}

impl Pool {
    fn new(threads: usize) -> Self {
        let share = || Share { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };
        // Leaked, because the threads never end.
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            gate: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            shares: (0..threads).map(|_| share()).collect(),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
        }));
        let start = |number| {
            let builder = std::thread::Builder::new().name(format!("product-{number}"));
            builder.spawn(move || shared.serve(number))
        };
        // If the system refuses more threads, the pool has fewer.
        let threads =
            (1..threads).map_while(|n| start(n).ok()).map(|handle| handle.thread().clone());
        count_forks();
        let (threads, forks) = (threads.collect(), FORKS.load(Ordering::Relaxed));
        Self { shared, threads, busy: AtomicBool::new(false), forks }
    }

    fn run(&self, count: usize, shares: usize, work: &Work) {
        let shares = shares.min(self.threads.len() + 1);
        if shares <= 1
            || self.forks != FORKS.load(Ordering::Relaxed)
            || self.busy.swap(true, Ordering::Acquire)
        {
            return work(0..count);
        }
        let busy = BusyGuard(&self.busy);
        let shared = self.shared;
        shared.panicked.store(false, Ordering::Relaxed);
        for (number, share) in shared.shares[..shares].iter().enumerate() {
            share.next.store(count * number / shares, Ordering::Relaxed);
            share.end.store(count * (number + 1) / shares, Ordering::Relaxed);
        }
        // SAFETY: the task does not outlive this call: `GateGuard` waits for all threads to leave,
        // also while a panic unwinds.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        let task = Task { work, shares };
        // SAFETY:
        // - The gate is closed and no thread is inside: the last `GateGuard` waited for that.
        // - `busy` excludes other callers.
        unsafe { *shared.task.get() = Some(task) };
        let gate = GateGuard(self);
        shared.gate.fetch_add(NEXT | OPEN, Ordering::SeqCst);
        for (number, thread) in self.threads[..shares - 1].iter().enumerate() {
            if shared.asleep[number + 1].swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.work(task, 0);
        drop(gate);
        // Read before `busy` is released: the next caller resets it.
        let panicked = shared.panicked.load(Ordering::Relaxed);
        drop(busy);
        assert!(!panicked, "a thread of a product panicked");
    }
}

/// Releases the pool when dropped.
struct BusyGuard<'a>(&'a AtomicBool);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// When dropped, closes the gate and waits until no thread is inside.
struct GateGuard<'a>(&'a Pool);

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.0.shared.gate.fetch_sub(OPEN, Ordering::SeqCst);
        let mut spins = 0;
        while self.0.shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            // On a shared core, a thread that is inside may need this core to finish.
            if spins % 1024 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

#[cfg(test)]
mod tests;
