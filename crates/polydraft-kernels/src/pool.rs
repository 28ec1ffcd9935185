//! Threads for products: a product is over in a fraction of a millisecond, less than it takes to
//! wake a thread that sleeps.
//!
//! Method: the caller works too. Others spin for a moment after each task, since the next product
//! mostly follows at once, and sleep after that. Each thread has a part of its own, side by side in
//! memory and the same one for equal tasks; whoever is done helps the rest, so that nobody waits
//! for one that was late. One task at a time: where another one runs, the caller works alone. What
//! is computed does not depend on who computes it.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// A thread takes what is left of a part in so many pieces: smaller ones towards the end, so that
/// nobody waits for long.
const STEPS: usize = 8;

type Work<'a> = dyn Fn(Range<usize>) + Sync + 'a;

/// Calls `work` with ranges that make up `0..count`, on all threads; fewer than `least` numbers are
/// not worth another thread. Each number is in one range.
pub(crate) fn split(count: usize, least: usize, work: &Work) {
    static POOL: OnceLock<Pool> = OnceLock::new();
    let parts = count / least.max(1);
    if parts <= 1 {
        return work(0..count);
    }
    POOL.get_or_init(|| Pool::start(rayon::current_num_threads())).run(count, parts, work);
}

/// Calls `work` with each of `items`, on all threads; fewer than `least` are not worth another
/// thread.
pub(crate) fn each<T: Send>(items: Vec<T>, least: usize, work: impl Fn(T) + Sync) {
    if items.len() / least.max(1) <= 1 {
        return items.into_iter().for_each(work);
    }
    // Nobody waits at these locks: each item is in one range.
    let items: Vec<_> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
    split(items.len(), least, &|range| {
        for item in &items[range] {
            let item = item.lock().unwrap_or_else(PoisonError::into_inner).take();
            item.into_iter().for_each(&work);
        }
    });
}

/// What is left of a thread's part. Two cache lines: neighbours are fetched together.
#[repr(align(128))]
struct Part {
    next: AtomicUsize,
    end: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Task {
    work: *const Work<'static>,
    parts: usize,
}

struct Shared {
    /// Threads inside the task, whether it is open, and a number that differs from the last one's.
    gate: AtomicU64,
    task: UnsafeCell<Option<Task>>,
    parts: Box<[Part]>,
    asleep: Box<[AtomicBool]>,
    panicked: AtomicBool,
}

const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const NEXT: u64 = OPEN << 1;

// SAFETY: the task is written only while the gate is closed and nobody is inside, and read only
// inside; its work is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// Works on part `mine`, then on what others left.
    fn take(&self, task: Task, mine: usize) {
        // SAFETY: the caller of `run` waits until everyone is outside, so the work lives.
        let work = unsafe { &*task.work };
        for offset in 0..task.parts {
            let part = &self.parts[(mine + offset) % task.parts];
            let end = part.end.load(Ordering::Relaxed);
            let behind = |begin: usize| begin + (end - begin).div_ceil(STEPS);
            let take = |begin| (begin < end).then(|| behind(begin));
            while let Ok(begin) = part.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            {
                work(begin..behind(begin));
            }
        }
    }

    /// Until there is a task with another number than `last`.
    fn wait(&self, mine: usize, last: u64) {
        let fresh = |gate: u64| gate & OPEN != 0 && gate / NEXT != last;
        loop {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                for _ in 0..32 {
                    if fresh(self.gate.load(Ordering::Acquire)) {
                        return;
                    }
                    std::hint::spin_loop();
                }
            }
            // Said before the last look: whoever opens the gate after it sees it, and wakes this
            // thread.
            self.asleep[mine].store(true, Ordering::SeqCst);
            if !fresh(self.gate.load(Ordering::SeqCst)) {
                std::thread::park();
            }
            self.asleep[mine].store(false, Ordering::SeqCst);
        }
    }

    fn serve(&self, mine: usize) {
        let mut last = 0;
        loop {
            self.wait(mine, last);
            let gate = self.gate.fetch_add(1, Ordering::SeqCst);
            if gate & OPEN != 0 {
                last = gate / NEXT;
                // SAFETY: inside an open gate nobody writes it.
                let task = unsafe { *self.task.get() };
                if let Some(task) = task.filter(|task| mine < task.parts)
                    && catch_unwind(AssertUnwindSafe(|| self.take(task, mine))).is_err()
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
    /// All but the caller's.
    threads: Vec<Thread>,
    busy: AtomicBool,
    /// Forks before there were the threads: they do not follow into a process that is forked from
    /// theirs.
    forks: usize,
}

/// Forks that this process comes from, as far as it has seen them.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Counts forks from now on. (To ask for the process's number at every product was a system's call
/// each.)
fn count_forks() {
    #[cfg(unix)]
    {
        extern "C" fn forked() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the function is there as long as the process, and does nothing that a child must
        // not do. Should there be no memory for it, a forked process offers work to threads that it
        // does not have, and does all of it itself.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forked));
        });
    }
}

impl Pool {
    fn start(threads: usize) -> Self {
        let part = || Part { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };
        // For the process's life: its threads never end.
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            gate: AtomicU64::new(0),
            task: UnsafeCell::new(None),
            parts: (0..threads).map(|_| part()).collect(),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            panicked: AtomicBool::new(false),
        }));
        let start = |number| {
            let named = std::thread::Builder::new().name(format!("product-{number}"));
            named.spawn(move || shared.serve(number))
        };
        // Where the system gives no more, there are fewer.
        let threads =
            (1..threads).map_while(|n| start(n).ok()).map(|handle| handle.thread().clone());
        count_forks();
        let (threads, forks) = (threads.collect(), FORKS.load(Ordering::Relaxed));
        Self { shared, threads, busy: AtomicBool::new(false), forks }
    }

    fn run(&self, count: usize, parts: usize, work: &Work) {
        let parts = parts.min(self.threads.len() + 1);
        if parts <= 1
            || self.forks != FORKS.load(Ordering::Relaxed)
            || self.busy.swap(true, Ordering::Acquire)
        {
            return work(0..count);
        }
        let busy = Busy(&self.busy);
        let shared = self.shared;
        shared.panicked.store(false, Ordering::Relaxed);
        for (number, part) in shared.parts[..parts].iter().enumerate() {
            part.next.store(count * number / parts, Ordering::Relaxed);
            part.end.store(count * (number + 1) / parts, Ordering::Relaxed);
        }
        // SAFETY: the task does not outlive this call: `Closing` waits for everyone, also while a
        // panic unwinds.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        let task = Task { work, parts };
        // SAFETY: the gate is closed, nobody is inside, and `busy` keeps other callers out.
        unsafe { *shared.task.get() = Some(task) };
        let closing = Closing(self);
        shared.gate.fetch_add(NEXT | OPEN, Ordering::SeqCst);
        for (number, thread) in self.threads[..parts - 1].iter().enumerate() {
            if shared.asleep[number + 1].swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.take(task, 0);
        drop(closing);
        // While other callers wait: they begin with a new answer.
        let panicked = shared.panicked.load(Ordering::Relaxed);
        drop(busy);
        assert!(!panicked, "a thread of a product panicked");
    }
}

/// Makes other callers wait.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Closes the gate and waits until everyone is outside.
struct Closing<'a>(&'a Pool);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.shared.gate.fetch_sub(OPEN, Ordering::SeqCst);
        let mut turns = 0;
        while self.0.shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            turns += 1;
            // Where threads share a core, one that is inside may need this one.
            if turns % 1024 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

#[cfg(test)]
mod tests;
