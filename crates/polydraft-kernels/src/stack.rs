//! Where sums lie that find no room in registers.
//!
//! Problem: stacks are aligned to 16 bytes, and compilers align that of a function further only if
//! something in it asks for it; registers that are kept there for a while do not. A vector of 32
//! bytes then lies across two lines of the cache wherever a thread's stack happens to begin so, and
//! across two pages in the worst case, in every product of that thread: a prompt in q8_0 took 1.4
//! times as long on one thread as on its neighbour.

/// Aligns the stack of the function that this stands in to lines of the cache.
#[inline(always)]
pub(crate) fn align() {
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "it only has to lie somewhere")] u8);
    // Somebody may have seen where it is, so that it is somewhere.
    std::hint::black_box(&mut Line(0));
}
