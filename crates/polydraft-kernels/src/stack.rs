//! Stack alignment for spilled vector registers.
//!
//! Problem: stacks are aligned to 16 bytes. Compilers align a function's stack frame further only
//! for variables that need it, not for spilled registers. Depending on where a thread's stack
//! begins, a spilled vector of 32 bytes can then straddle two cache lines, or even two pages, in
//! every product of that thread: a prompt in q8_0 took 1.4 times as long on one thread as on
//! another.

/// Aligns the stack frame of the function that this is inlined into to cache lines.
#[inline(always)]
pub(crate) fn align() {
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "only its address matters")] u8);
    // `black_box` keeps the compiler from removing the variable.
    std::hint::black_box(&mut Line(0));
}
