//! Memory that weights lie in.
//!
//! Problem: the system hands out memory in pages of 4 KiB unless asked otherwise. Touching each for
//! the first time takes as long as reading weights from a file's cache, and every pass needs more
//! addresses of pages than the CPU's TLB holds.
//! Method: chunks of many megabytes, aligned to large pages and with the request for them, in which
//! matrices follow each other; a matrix that nearly fills a chunk has one of its own. A chunk goes
//! when the last matrix in it goes.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A large page.
const PAGE: usize = 2 << 20;
/// A chunk that several matrices share.
const SHARED: usize = 16 * PAGE;
/// What lies in a chunk begins with a pair of cache lines.
const STEP: usize = 128;

/// Memory that is given back as a whole.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is memory; who may use which part of it is settled in `take`.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Self {
        let size = bytes.next_multiple_of(PAGE);
        // More than there are addresses is more than there is memory.
        let Ok(layout) = Layout::from_size_align(size, PAGE) else {
            handle_alloc_error(Layout::new::<u8>())
        };
        // SAFETY: no chunk is empty: `take` asks for at least one step.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        #[cfg(target_os = "linux")]
        // SAFETY: it is advice about memory that was just allocated. A system without large pages
        // refuses, and all is well.
        unsafe {
            libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
        }
        Self { start, layout }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody holds a part of it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The chunk that has room left, and how much of it is taken.
static OPEN: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// So many bytes that nobody else has, and the chunk that they are in.
fn take(bytes: usize) -> (NonNull<u8>, Arc<Chunk>) {
    let bytes = bytes.max(1).next_multiple_of(STEP);
    if bytes > SHARED / 2 {
        let chunk = Chunk::new(bytes);
        return (chunk.start, Arc::new(chunk));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let chunk = match open.0.upgrade().filter(|_| open.1 + bytes <= SHARED) {
        Some(chunk) => chunk,
        None => {
            let chunk = Arc::new(Chunk::new(SHARED));
            *open = (Arc::downgrade(&chunk), 0);
            chunk
        }
    };
    let offset = open.1;
    open.1 += bytes;
    // SAFETY: within the chunk, as was just asked.
    (unsafe { chunk.start.add(offset) }, chunk)
}

/// So many of `T` side by side, as in a box; they are never dropped, so only what is `Copy` is put
/// there.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    start: NonNull<T>,
    count: usize,
    /// Holds the memory.
    _chunk: Arc<Chunk>,
}

// SAFETY: nobody else has this memory.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Memory<T> {}

impl<P: Copy> Memory<MaybeUninit<P>> {
    /// Memory that no one touched yet: the system hands it to the threads as they write.
    pub fn new(count: usize) -> Self {
        const { assert!(align_of::<P>() <= STEP) };
        let Some(bytes) = count.checked_mul(size_of::<P>()) else {
            handle_alloc_error(Layout::new::<P>())
        };
        let (start, chunk) = take(bytes);
        Self { start: start.cast(), count, _chunk: chunk }
    }

    /// # Safety
    /// Each was written.
    pub unsafe fn written(self) -> Memory<P> {
        Memory { start: self.start.cast(), count: self.count, _chunk: self._chunk }
    }
}

impl<T> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `take` gave this much to nobody else, aligned for `T`, and what is not known to
        // be written is `MaybeUninit`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize, value: u64) -> Memory<u64> {
        let mut memory = Memory::new(count);
        memory.iter_mut().for_each(|number| {
            number.write(value);
        });
        // SAFETY: just written.
        unsafe { memory.written() }
    }

    #[test]
    fn nobody_has_what_another_has() {
        // More than a shared chunk holds, some with chunks of their own, from two threads, some
        // given back.
        let work = |seed: u64| {
            let mut held: Vec<(Memory<u64>, u64)> = Vec::new();
            for i in 0..200 {
                let count = if i % 50 == 49 { SHARED / 8 } else { (i as usize * 7919) % 60_000 };
                let value = seed * 1000 + i;
                held.push((filled(count, value), value));
                if i % 3 == 0 {
                    held.swap_remove((i as usize * 31) % held.len());
                }
            }
            for (memory, value) in &held {
                assert!(memory.iter().all(|number| number == value));
                assert_eq!(memory.as_ptr().addr() % STEP, 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(1));
            scope.spawn(|| work(2));
        });
    }
}
