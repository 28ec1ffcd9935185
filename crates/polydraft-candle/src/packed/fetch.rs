//! Weights are asked of the memory before they are used.
//!
//! A product that goes straight through memory is foreseen by processors. Where the sums of several rows need it, a product
//! goes through a tile more than once, in strides, and they do not foresee that: eight rows took twice the time of one, waiting.

#![allow(unsafe_code)]

/// How far ahead, in bytes: enough to hide the way to memory, little enough to stay in the fastest cache.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 1 << 14;
/// Bytes that come from memory together.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Asks for the piece that lies [`AHEAD`] of this one. Past the end of a tile lies the next one; past the last, nothing
/// comes of it.
#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "there is no stable hint elsewhere")
)]
pub(super) fn fetch<P>(piece: &P) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of::<P>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let ahead = std::ptr::from_ref(piece).cast::<i8>().wrapping_add(AHEAD + offset);
        // SAFETY: a hint, which reads nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) };
    }
}
