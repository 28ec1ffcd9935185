//! Memory limit: a global allocator that fails when an input uses more than a gigabyte.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// Maximum number of bytes of an input.
const MOST: isize = 1 << 30;
/// Additional bytes for small allocations, so that the failure can still be reported.
const RESERVE: isize = 16 << 20;
/// Maximum size of a small allocation.
const SMALL: isize = 1 << 16;

/// Number of bytes in use.
static HELD: AtomicIsize = AtomicIsize::new(0);
/// Maximum number of bytes in use.
static ALLOWED: AtomicIsize = AtomicIsize::new(isize::MAX - RESERVE);

/// The system's allocator with a limit. Code that does not handle a failed allocation aborts the
/// process, as it would without memory.
pub struct Counting;

// SAFETY: every call is forwarded to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as isize;
        let allowed = ALLOWED.load(Ordering::Relaxed) + if size <= SMALL { RESERVE } else { 0 };
        if HELD.fetch_add(size, Ordering::Relaxed) > allowed - size {
            HELD.fetch_sub(size, Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's guarantees for `GlobalAlloc::alloc` are those of `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's guarantees for `GlobalAlloc::dealloc` are those of `System.dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Starts an input: sets the limit to a gigabyte above current usage.
pub fn begin() {
    ALLOWED.store(HELD.load(Ordering::Relaxed) + MOST, Ordering::Relaxed);
}
