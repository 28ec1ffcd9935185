//! Software prefetching of weights and of the KV cache.
//!
//! CPUs prefetch sequential reads by themselves. A product of several rows, however, may go through
//! a tile more than once and in strides, which the CPU does not predict: without software prefetch,
//! eight rows took twice the time of one, waiting for memory.

#![allow(unsafe_code)]

/// Prefetch distance in bytes: enough to hide the latency of memory, and little enough to stay in
/// the L1 cache.
const AHEAD: usize = 1 << 14;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Cache level to prefetch into.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheLevel {
    L1,
    L2,
}

impl CacheLevel {
    /// Selects the level for a product of `weights` bytes of weights and `inputs` bytes of inputs.
    ///
    /// Intel: always L2. Their L1 has few line fill buffers, and loads wait for them. (Xeon with
    /// AVX-512, two threads: with prefetch into L1 instead, one row took 1.05 to 1.2 times as long,
    /// two rows 1.15 and four 1.2 in q8_0.)
    ///
    /// Others: L1 if inputs are small, so that prefetched lines are not evicted before they are
    /// used. (EPYC with AVX-512, one thread: with prefetch into L2 instead, two rows in f32 took
    /// 1.26 times as long and four in q8_0 1.07 times; but eight in f32 0.73, four in bf16 0.87,
    /// four in q4_0 0.74, eight in q8_0 0.78.)
    #[inline(always)]
    pub fn choose(inputs: usize, weights: usize) -> Self {
        if 4 * inputs < weights && !is_intel() { Self::L1 } else { Self::L2 }
    }
}

/// Whether the CPU is made by Intel.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static INTEL: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            let vendor = std::arch::x86_64::__cpuid(0);
            [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"GenuineIntel"
        });
        *INTEL
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Prefetches the memory [`AHEAD`] bytes after `block`, as many bytes as the block has: fraction
/// `index` of `count` equal fractions.
///
/// Blocks of a tile and tiles of a matrix are contiguous, so these are weights that are needed
/// next; after the last tile the hint has no effect. Callers spread the fractions of a large block
/// over their work, because a CPU tracks a few dozen outstanding lines, and stalls when there are
/// more.
#[inline(always)]
pub(crate) fn prefetch_ahead<P>(block: &P, index: usize, count: usize, level: CacheLevel) {
    let start = std::ptr::from_ref(block).cast::<i8>().wrapping_add(AHEAD);
    let lines = lines::<P>(index, count);
    match level {
        CacheLevel::L1 => {
            lines.for_each(|line| hint(start.wrapping_add(line * LINE), CacheLevel::L1));
        }
        CacheLevel::L2 => {
            lines.for_each(|line| hint(start.wrapping_add(line * LINE), CacheLevel::L2));
        }
    }
}

/// Prefetch schedule for several passes over the same blocks.
///
/// The passes together prefetch as many bytes as the blocks have, [`AHEAD`] bytes after them. Pass
/// p of n takes the p-th contiguous n-th of that range, in equal steps with each block. If instead
/// each pass took a fraction of every block, memory would be read in strides: four rows in bf16
/// then took a twelfth longer.
#[derive(Clone, Copy)]
pub(crate) struct PassPrefetch {
    start: *const i8,
    /// Bytes to prefetch with each block.
    share: usize,
    level: CacheLevel,
}

impl PassPrefetch {
    /// Schedule of pass `pass` of `passes` over `blocks`.
    #[inline(always)]
    pub fn new<P>(blocks: &[P], pass: usize, passes: usize, level: CacheLevel) -> Self {
        let share = size_of::<P>() / passes;
        let start = blocks.as_ptr().cast::<i8>().wrapping_add(AHEAD + pass * share * blocks.len());
        Self { start, share, level }
    }

    /// Prefetches this pass's share while block number `block` is processed.
    #[inline(always)]
    pub fn step(self, block: usize) {
        for line in block * self.share / LINE..(block + 1) * self.share / LINE {
            hint(self.start.wrapping_add(line * LINE), self.level);
        }
    }
}

/// A slice in memory that is prefetched element by element.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchSlice {
    start: *const i8,
    /// Size of an element in bytes.
    size: usize,
    count: usize,
}

// SAFETY: the pointer is only used for prefetch hints, which read nothing.
unsafe impl Send for PrefetchSlice {}

impl PrefetchSlice {
    pub const EMPTY: Self = Self { start: std::ptr::null(), size: 0, count: 0 };

    #[inline(always)]
    pub fn new<T>(elements: &[T]) -> Self {
        Self { start: elements.as_ptr().cast(), size: size_of::<T>(), count: elements.len() }
    }

    /// Prefetches element `i`, if it exists, into L2.
    ///
    /// Pages of the KV cache are not contiguous, so the CPU prefetches little of them. It tracks
    /// more outstanding lines for L2 than for L1: the KV cache was read at 15 GB/s instead of 9.
    #[inline(always)]
    pub fn element(self, i: usize) {
        if i < self.count {
            for line in 0..self.size / LINE {
                hint(self.start.wrapping_add(i * self.size + line * LINE), CacheLevel::L2);
            }
        }
    }
}

#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only x86-64 has a stable prefetch intrinsic")
)]
fn hint(address: *const i8, level: CacheLevel) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetch instructions do not access memory architecturally, so any address is valid.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match level {
            CacheLevel::L1 => _mm_prefetch::<_MM_HINT_T0>(address),
            CacheLevel::L2 => _mm_prefetch::<_MM_HINT_T1>(address),
        }
    }
}

/// Returns the cache lines of fraction `index` of `count` of a block.
#[inline(always)]
fn lines<P>(index: usize, count: usize) -> std::ops::Range<usize> {
    let all = size_of::<P>().div_ceil(LINE);
    index * all / count..(index + 1) * all / count
}
