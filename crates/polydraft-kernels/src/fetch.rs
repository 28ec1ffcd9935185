//! Prefetches weights before they are used.
//!
//! CPUs prefetch a product that goes straight through memory. Where the sums of several rows need
//! it, a product goes through a tile more than once, in strides, which they do not prefetch: eight
//! rows took twice the time of one, waiting.

#![allow(unsafe_code)]

/// How far ahead, in bytes: enough to hide the way to memory, little enough to stay in the fastest
/// cache.
const AHEAD: usize = 1 << 14;
/// Bytes that come from memory together.
const LINE: usize = 64;

/// The cache that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    First,
    Second,
}

impl Cache {
    /// For so many bytes of weights and the inputs that they meet.
    ///
    /// On Intel's CPUs the second cache: the way into the first one has room for a few lines, and
    /// loads wait for them. (A Xeon with AVX-512, two threads: with the first one, one row cost
    /// 1.05 to 1.2 times as much, two 1.15 and four 1.2 in q8_0.) On others the first cache as long
    /// as inputs leave it room: what was asked for must not be gone when its turn comes. (An EPYC
    /// with AVX-512, one thread: with the second one, two rows in f32 cost 1.26 times as much, four
    /// in q8_0 1.07; eight in f32 0.73, four in bf16 0.87, four in q4_0 0.74, eight in q8_0 0.78.)
    #[inline(always)]
    pub fn of(inputs: usize, weights: usize) -> Self {
        if 4 * inputs < weights && !is_intel() { Self::First } else { Self::Second }
    }
}

/// Whether the CPU is one of Intel's.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static INTEL: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            let of = std::arch::x86_64::__cpuid(0);
            [of.ebx, of.edx, of.ecx].map(u32::to_le_bytes).concat() == *b"GenuineIntel"
        });
        *INTEL
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Asks for part `part` of `parts` of the piece that lies [`AHEAD`] of this one. Past the end of a
/// tile lies the next one; past the last, nothing comes of it. Large pieces are asked for in parts,
/// while one works: a CPU keeps track of a few dozen lines that are on their way, and waits when
/// there are more.
#[inline(always)]
pub(crate) fn fetch<P>(piece: &P, part: usize, parts: usize, cache: Cache) {
    let start = std::ptr::from_ref(piece).cast::<i8>().wrapping_add(AHEAD);
    let lines = lines::<P>(part, parts);
    match cache {
        Cache::First => lines.for_each(|line| hint(start.wrapping_add(line * LINE), Cache::First)),
        Cache::Second => {
            lines.for_each(|line| hint(start.wrapping_add(line * LINE), Cache::Second));
        }
    }
}

/// What those who have their turn with some pieces ask of the memory, one piece after the other: a
/// part of as much as these are, as far ahead as [`fetch`] asks. Every turn asks for a part that
/// follows that of the turn before: were each to ask for a part of every piece, memory would be
/// read in strides, and four rows in bf16 cost a twelfth more.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    start: *const i8,
    /// Bytes a piece.
    share: usize,
    cache: Cache,
}

impl Ahead {
    /// Turn `turn` of `turns` with these pieces.
    #[inline(always)]
    pub fn of<P>(pieces: &[P], turn: usize, turns: usize, cache: Cache) -> Self {
        let share = size_of::<P>() / turns;
        let start = pieces.as_ptr().cast::<i8>().wrapping_add(AHEAD + turn * share * pieces.len());
        Self { start, share, cache }
    }

    /// With piece `piece` of them.
    #[inline(always)]
    pub fn ask(self, piece: usize) {
        for line in piece * self.share / LINE..(piece + 1) * self.share / LINE {
            hint(self.start.wrapping_add(line * LINE), self.cache);
        }
    }
}

/// Lines that lie together somewhere else, to be asked for one by one.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    start: *const i8,
    /// Of a line.
    bytes: usize,
    count: usize,
}

// SAFETY: nothing is read at the address.
unsafe impl Send for Prefetch {}

impl Prefetch {
    pub const NOTHING: Self = Self { start: std::ptr::null(), bytes: 0, count: 0 };

    #[inline(always)]
    pub fn of<T>(lines: &[T]) -> Self {
        Self { start: lines.as_ptr().cast(), bytes: size_of::<T>(), count: lines.len() }
    }

    /// Asks for line `i`, if there is one. Where pages lie apart a CPU prefetches little, and it
    /// keeps track of fewer lines that are on their way into its first cache than into its second:
    /// the KV cache came at 9 GB/s and 15.
    #[inline(always)]
    pub fn ask(self, i: usize) {
        if i < self.count {
            for line in 0..self.bytes / LINE {
                hint(self.start.wrapping_add(i * self.bytes + line * LINE), Cache::Second);
            }
        }
    }
}

#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there is no stable hint elsewhere")
)]
fn hint(address: *const i8, cache: Cache) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match cache {
            Cache::First => _mm_prefetch::<_MM_HINT_T0>(address),
            Cache::Second => _mm_prefetch::<_MM_HINT_T1>(address),
        }
    }
}

/// The lines of a part of a piece.
#[inline(always)]
fn lines<P>(part: usize, parts: usize) -> std::ops::Range<usize> {
    let all = size_of::<P>().div_ceil(LINE);
    part * all / parts..(part + 1) * all / parts
}
