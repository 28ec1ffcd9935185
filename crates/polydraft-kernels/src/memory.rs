//! Arena allocator for weights, backed by huge pages.
//!
//! Problem: by default the system maps memory in pages of 4 KiB. The page faults of the first
//! access take as long as reading the weights from the page cache, and each forward pass touches
//! more pages than the TLB has entries.
//! Method: allocate chunks of many megabytes, aligned to huge pages and advised to use them, and
//! place matrices in them one after the other. A matrix larger than half a chunk gets its own. A
//! chunk is freed with the last matrix in it.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// Size of a chunk that several matrices share.
const CHUNK: usize = 16 * HUGE_PAGE;
/// Alignment of allocations: a pair of cache lines.
const ALIGNMENT: usize = 128;

/// A system allocation, freed as a unit.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a chunk only owns memory. `allocate` gives out disjoint ranges of it.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(bytes: usize) -> Self {
        let size = bytes.next_multiple_of(HUGE_PAGE);
        // A size that overflows the address space is treated as out of memory.
        let Ok(layout) = Layout::from_size_align(size, HUGE_PAGE) else {
            handle_alloc_error(Layout::new::<u8>())
        };
        // SAFETY: the layout is not empty: `allocate` rounds sizes up to at least `ALIGNMENT`.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just allocated, and `MADV_HUGEPAGE` does not change its contents.
        // Systems without huge pages return an error, which is ignored.
        unsafe {
            libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
        }
        Self { start, layout }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY:
        // - `start` was allocated with this layout.
        // - No buffer refers to it: each one holds an `Arc` of its chunk.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The chunk that is being filled, and the number of bytes used in it.
static CURRENT: Mutex<(Weak<Chunk>, usize)> = Mutex::new((Weak::new(), 0));

/// Allocates `bytes` bytes, and returns their address and their chunk.
fn allocate(bytes: usize) -> (NonNull<u8>, Arc<Chunk>) {
    let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
    if bytes > CHUNK / 2 {
        let chunk = Chunk::new(bytes);
        return (chunk.start, Arc::new(chunk));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let chunk = match current.0.upgrade().filter(|_| current.1 + bytes <= CHUNK) {
        Some(chunk) => chunk,
        None => {
            let chunk = Arc::new(Chunk::new(CHUNK));
            *current = (Arc::downgrade(&chunk), 0);
            chunk
        }
    };
    let offset = current.1;
    current.1 += bytes;
    // SAFETY: `offset + bytes <= CHUNK`, as checked above.
    (unsafe { chunk.start.add(offset) }, chunk)
}

/// A slice of `T` in a chunk, like a boxed slice. Elements are never dropped, so it can only be
/// created with `Copy` types.
#[derive(Debug)]
pub(crate) struct ArenaSlice<T> {
    start: NonNull<T>,
    count: usize,
    /// Keeps the memory allocated.
    _chunk: Arc<Chunk>,
}

// SAFETY: the slice owns its range of the chunk, as a box would.
unsafe impl<T: Send> Send for ArenaSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ArenaSlice<T> {}

impl<P: Copy> ArenaSlice<MaybeUninit<P>> {
    /// Allocates `count` uninitialized elements. Their pages are mapped by the threads that first
    /// write to them.
    pub fn new(count: usize) -> Self {
        const { assert!(align_of::<P>() <= ALIGNMENT) };
        let Some(bytes) = count.checked_mul(size_of::<P>()) else {
            handle_alloc_error(Layout::new::<P>())
        };
        let (start, chunk) = allocate(bytes);
        Self { start: start.cast(), count, _chunk: chunk }
    }

    /// Marks all elements as initialized.
    ///
    /// # Safety
    /// Every element was written.
    pub unsafe fn assume_init(self) -> ArenaSlice<P> {
        ArenaSlice { start: self.start.cast(), count: self.count, _chunk: self._chunk }
    }
}

impl<T> Deref for ArenaSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY:
        // - `allocate` returned this range to this slice only, and `_chunk` keeps it allocated.
        // - `ALIGNMENT` is a multiple of the alignment of `T` (asserted in `new`).
        // - Elements are initialized (`assume_init`), or `T` is `MaybeUninit`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for ArenaSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize, value: u64) -> ArenaSlice<u64> {
        let mut memory = ArenaSlice::new(count);
        memory.iter_mut().for_each(|number| {
            number.write(value);
        });
        // SAFETY: every element was just written.
        unsafe { memory.assume_init() }
    }

    #[test]
    fn allocations_do_not_overlap() {
        // More than one chunk of small slices, some slices with their own chunk, some freed, on
        // two threads at the same time.
        let work = |seed: u64| {
            let mut slices: Vec<(ArenaSlice<u64>, u64)> = Vec::new();
            for i in 0..200 {
                let count = if i % 50 == 49 { CHUNK / 8 } else { (i as usize * 7919) % 60_000 };
                let value = seed * 1000 + i;
                slices.push((filled(count, value), value));
                if i % 3 == 0 {
                    slices.swap_remove((i as usize * 31) % slices.len());
                }
            }
            for (memory, value) in &slices {
                assert!(memory.iter().all(|number| number == value));
                assert_eq!(memory.as_ptr().addr() % ALIGNMENT, 0);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| work(1));
            scope.spawn(|| work(2));
        });
    }
}
