//! Weights are asked of the memory before they are used.
//!
//! A product that goes straight through memory is foreseen by processors. Where the sums of several rows need it, a product
//! goes through a tile more than once, in strides, and they do not foresee that: eight rows took twice the time of one, waiting.

#![allow(unsafe_code)]

/// How far ahead, in bytes: enough to hide the way to memory, little enough to stay in the fastest cache.
const AHEAD: usize = 1 << 14;
/// Bytes that come from memory together.
const LINE: usize = 64;

/// Asks for part `part` of `parts` of the piece that lies [`AHEAD`] of this one. Past the end of a tile lies the next one; past
/// the last, nothing comes of it. Large pieces are asked for in parts, while one works: a processor keeps track of a few dozen
/// lines that are on their way, and waits when there are more.
#[inline(always)]
pub(super) fn fetch<P>(piece: &P, part: usize, parts: usize) {
    for line in lines::<P>(part, parts) {
        hint(std::ptr::from_ref(piece).cast::<i8>().wrapping_add(AHEAD + line * LINE));
    }
}

/// What those who have their turn with some pieces ask of the memory, one piece after the other: a part of as much as these are, as far
/// ahead as [`fetch`] asks. Every turn asks for a part that lies behind that of the turn before: were each to ask for a part of every
/// piece, memory would be read in strides, and four rows in bf16 cost a twelfth more.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    start: *const i8,
    /// Bytes a piece.
    share: usize,
}

impl Ahead {
    /// Turn `turn` of `turns` with these pieces.
    #[inline(always)]
    pub fn of<P>(pieces: &[P], turn: usize, turns: usize) -> Self {
        let share = size_of::<P>() / turns;
        let start = pieces.as_ptr().cast::<i8>().wrapping_add(AHEAD + turn * share * pieces.len());
        Self { start, share }
    }

    /// With piece `piece` of them.
    #[inline(always)]
    pub fn ask(self, piece: usize) {
        for line in piece * self.share / LINE..(piece + 1) * self.share / LINE {
            hint(self.start.wrapping_add(line * LINE));
        }
    }
}

/// Asks for `what` itself, which is small.
#[inline(always)]
pub(crate) fn fetch_this<T>(what: &T) {
    for line in lines::<T>(0, 1) {
        hint(std::ptr::from_ref(what).cast::<i8>().wrapping_add(line * LINE));
    }
}

#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there is no stable hint elsewhere")
)]
fn hint(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
}

/// The lines of a part of a piece.
#[inline(always)]
fn lines<P>(part: usize, parts: usize) -> std::ops::Range<usize> {
    let all = size_of::<P>().div_ceil(LINE);
    part * all / parts..(part + 1) * all / parts
}
