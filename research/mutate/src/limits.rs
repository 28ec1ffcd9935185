//! Memory, counted: more than a gigabyte above what a process began an input with cannot be had.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that an input may take.
const MOST: isize = 1 << 30;
/// Bytes beyond, in small pieces: what reports that there is no more needs a little.
const RESERVE: isize = 16 << 20;
/// A small piece.
const SMALL: isize = 1 << 16;

/// Bytes in use.
static HELD: AtomicIsize = AtomicIsize::new(0);
/// Bytes that may be in use.
static ALLOWED: AtomicIsize = AtomicIsize::new(isize::MAX - RESERVE);

/// The system's allocator, with a limit. Whoever does not cope with an allocation that fails ends
/// the process, as it would on a machine without memory.
pub struct Counting;

// SAFETY: all is left to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as isize;
        let allowed = ALLOWED.load(Ordering::Relaxed) + if size <= SMALL { RESERVE } else { 0 };
        if HELD.fetch_add(size, Ordering::Relaxed) > allowed - size {
            HELD.fetch_sub(size, Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// An input begins.
pub fn begin() {
    ALLOWED.store(HELD.load(Ordering::Relaxed) + MOST, Ordering::Relaxed);
}
