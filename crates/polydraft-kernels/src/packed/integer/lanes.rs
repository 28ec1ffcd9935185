//! The product of a tile, generic over the instruction set ([`Lanes`]).
//!
//! Lanes of a vector are rows of the tile. For each block of 32 columns, the product of four
//! columns at a time is added to integer sums, one per lane and row of x: the four weights of a
//! lane are one 32-bit word, and the four inputs are broadcast to all lanes. Then the sums are
//! converted to f32, scaled, and added to the result.
//!
//! Register blocking: N rows of x share each load of weights. V vectors of the tile's rows are
//! accumulated in one pass over all columns; within a block, J of them per pass over its words.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::fetch::{CacheLevel, prefetch_ahead};
use crate::packed::block::{BitPlanes, Block, Factors, Numbers};
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;
use crate::stack;

/// The IQ4 codebook stored as 128 + q, because `dpbusd` takes one unsigned operand.
#[cfg(target_arch = "x86_64")]
pub(super) const IQ4_UNSIGNED: [u8; 16] = {
    let (mut raised, mut i) = ([0; 16], 0);
    while i < 16 {
        raised[i] = polydraft_gguf::IQ4_CODEBOOK[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    raised
};

/// Vector operations of an instruction set, on one vector of rows of a tile.
///
/// # Safety
/// Callers of the functions guarantee:
/// - The CPU has the target features of the implementing type, which the `available` function of
///   its module checks.
/// - Pointers are valid for [`Self::LANES`] elements.
pub(super) unsafe trait Lanes {
    /// Number of rows in a vector.
    const LANES: usize;
    type Floats: Copy;
    /// Sums of products in 32 bits, one per row.
    type Integers: Copy;
    /// Four signed bytes per row, prepared for products.
    type SignedBytes: Copy;
    /// Four bytes from 0 to 63 per row.
    type SmallBytes: Copy;
    /// Sums of products with [`Self::SmallBytes`], which may have 16 bits. They can hold the
    /// products of as many words as [`words_per_i16_sum`] returns.
    type SmallSums: Copy;

    /// Returns the initial sums. `shift` corrects the offset of signed bytes, for implementations
    /// that store them with an offset.
    unsafe fn init(shift: i32) -> Self::Integers;
    /// Loads signed bytes.
    unsafe fn load_signed(words: *const u32) -> Self::SignedBytes;
    /// Adds the products of four columns. `x` holds four signed bytes.
    unsafe fn dot_signed(sums: Self::Integers, w: Self::SignedBytes, x: i32) -> Self::Integers;

    /// Returns the initial small sums.
    unsafe fn init_small(shift: i32) -> Self::SmallSums;
    /// Loads the low and the high nibbles of bytes.
    unsafe fn load_nibbles(words: *const u32) -> [Self::SmallBytes; 2];
    /// Looks up numbers of [`IQ4_CODEBOOK`](polydraft_gguf::IQ4_CODEBOOK).
    unsafe fn lookup_iq4(codes: Self::SmallBytes) -> Self::SignedBytes;
    /// Loads words, shifts them right (left if `shift` is negative), and masks them. The result
    /// must be bytes from 0 to 63.
    unsafe fn load_bits(words: *const u32, shift: i32, mask: u32) -> Self::SmallBytes;
    unsafe fn or(a: Self::SmallBytes, b: Self::SmallBytes) -> Self::SmallBytes;
    /// Adds the products of four columns.
    unsafe fn dot_small(sums: Self::SmallSums, w: Self::SmallBytes, x: i32) -> Self::SmallSums;
    /// Converts small sums to 32 bits. `shift` corrects the offset, for implementations that do not
    /// do so in `init_small`.
    unsafe fn finish_small(sums: Self::SmallSums, shift: i32) -> Self::Integers;
    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    unsafe fn to_f32(integers: Self::Integers) -> Self::Floats;
    unsafe fn splat(x: f32) -> Self::Floats;
    /// Loads f16 and converts them.
    unsafe fn load_f16(from: *const u16) -> Self::Floats;
    /// Loads bytes and converts them.
    unsafe fn load_u8(from: *const u8) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Returns a · b + c, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn store(to: *mut f32, x: Self::Floats);
}

// Loops are used instead of closures, which do not inherit the target features of the function
// around them.

/// Returns columns 4j to 4j + 3 of an input block.
///
/// # Safety
/// - `j < 8`.
#[inline(always)]
unsafe fn input_word(x: &Input, j: usize) -> i32 {
    // SAFETY: a block has eight words of four bytes.
    unsafe { x.numbers.as_ptr().cast::<i32>().add(j).read_unaligned() }
}

/// Returns vector `v` of factors in f32.
///
/// # Safety
/// - The CPU has the target features of `L`.
/// - `(v + 1) · LANES ≤ TILE`.
#[inline(always)]
unsafe fn factor<L: Lanes>(factors: &Factors, v: usize) -> L::Floats {
    let at = v * L::LANES;
    // SAFETY: all arrays have `TILE` elements; the rest is the caller's guarantee.
    unsafe {
        match factors {
            Factors::Plain(halves) => L::load_f16(halves.as_ptr().add(at)),
            Factors::TwoLevel(halves, sub_scales, 0) => L::mul(
                L::load_f16(halves.as_ptr().add(at)),
                L::load_u8(sub_scales.as_ptr().add(at)),
            ),
            Factors::TwoLevel(halves, sub_scales, offset) => {
                // Both products are exact: an f16 times an 8-bit integer.
                let (half, sub_scale) =
                    (L::load_f16(halves.as_ptr().add(at)), L::load_u8(sub_scales.as_ptr().add(at)));
                L::mul_add(half, sub_scale, L::mul(half, L::splat(-f32::from(*offset))))
            }
        }
    }
}

/// Returns how many words of bytes up to `max` can be multiplied by inputs and summed in 16 bits:
/// 1, 2 or 4, which divide the words of a span.
const fn words_per_i16_sum(max: u8) -> usize {
    match i16::MAX as usize / (2 * 127 * max as usize) {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Returns columns 4j to 4j + 3 of a vector of rows, starting at row `at`.
///
/// # Safety
/// - The CPU has the target features of `L`.
/// - `at + LANES ≤ TILE`.
#[inline(always)]
unsafe fn combine_planes<L: Lanes>(planes: &BitPlanes, j: usize, at: usize) -> L::SmallBytes {
    // SAFETY: all arrays have `TILE` words; the rest is the caller's guarantee.
    unsafe {
        let (low, high) = planes.bits(j);
        let low = L::load_bits(low.words.as_ptr().add(at), low.shift, low.mask);
        match high {
            None => low,
            Some(high) => {
                L::or(low, L::load_bits(high.words.as_ptr().add(at), high.shift, high.mask))
            }
        }
    }
}

/// Prefetches fraction `share` of `shares` of the weights ahead, if this pass prefetches.
///
/// Prefetches are spread between the products. All at once, they made loads wait, and one row in 4
/// bits took 1.2 times as long. Without the fence, a compiler would merge them again.
#[inline(always)]
fn prefetch_share<B: Block>(
    w: &B,
    sub_block: usize,
    prefetch: Option<CacheLevel>,
    share: usize,
    shares: usize,
) {
    if let Some(level) = prefetch {
        prefetch_ahead(w, shares * sub_block + share, shares * B::SUB_BLOCKS, level);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Returns the sums of products of a span of one block, for J vectors of rows, starting at vector
/// `first`, and N rows of x.
///
/// # Safety
/// - The CPU has the target features of `L`.
/// - `(first + J) · LANES ≤ TILE`.
/// - `SPAN < B::SPANS`.
#[expect(clippy::needless_range_loop, reason = "the same index into several arrays")]
#[inline(always)]
unsafe fn span_sums<L: Lanes, B: Block, const N: usize, const J: usize, const SPAN: usize>(
    w: &B,
    sub_block: usize,
    x: &[Input; N],
    first: usize,
    prefetch: Option<CacheLevel>,
) -> [[L::Integers; J]; N] {
    // SAFETY: pointers are valid for `LANES` words, because arrays have `TILE` words and
    // `(first + J) · LANES ≤ TILE`; the rest is the caller's guarantee.
    unsafe {
        let mut out = [[L::init(0); J]; N];
        match &w.numbers(sub_block) {
            Numbers::Bits8(words) => {
                for n in 0..N {
                    out[n] = [L::init(x[n].spans[SPAN].shift); J];
                }
                macro_rules! words {
                    ($($j:literal)*) => {$(
                        prefetch_share(w, sub_block, prefetch, $j, 8);
                        for v in 0..J {
                            let w = L::load_signed(words[$j].as_ptr().add((first + v) * L::LANES));
                            for n in 0..N {
                                out[n][v] = L::dot_signed(out[n][v], w, input_word(&x[n], $j));
                            }
                        }
                    )*};
                }
                words!(0 1 2 3 4 5 6 7);
            }
            Numbers::Bits4(words) => {
                let mut sums = [[L::init_small(0); J]; N];
                for n in 0..N {
                    sums[n] = [L::init_small(x[n].spans[SPAN].shift); J];
                }
                for (j, words) in words.iter().enumerate() {
                    prefetch_share(w, sub_block, prefetch, j, 4);
                    for v in 0..J {
                        let [low, high] =
                            L::load_nibbles(words.as_ptr().add((first + v) * L::LANES));
                        for n in 0..N {
                            sums[n][v] = L::dot_small(sums[n][v], low, input_word(&x[n], j));
                        }
                        for n in 0..N {
                            sums[n][v] = L::dot_small(sums[n][v], high, input_word(&x[n], j + 4));
                        }
                    }
                }
                for n in 0..N {
                    for v in 0..J {
                        out[n][v] = L::finish_small(sums[n][v], x[n].spans[SPAN].shift);
                    }
                }
            }
            Numbers::Codebook(words) => {
                for n in 0..N {
                    out[n] = [L::init(x[n].spans[SPAN].shift); J];
                }
                for (j, words) in words.iter().enumerate() {
                    prefetch_share(w, sub_block, prefetch, j, 4);
                    for v in 0..J {
                        let codes = L::load_nibbles(words.as_ptr().add((first + v) * L::LANES));
                        let [low, high] = [L::lookup_iq4(codes[0]), L::lookup_iq4(codes[1])];
                        for n in 0..N {
                            out[n][v] = L::dot_signed(out[n][v], low, input_word(&x[n], j));
                        }
                        for n in 0..N {
                            out[n][v] = L::dot_signed(out[n][v], high, input_word(&x[n], j + 4));
                        }
                    }
                }
            }
            Numbers::Planes(planes) => {
                let (count, words_per_sum) =
                    (8 / B::SPANS, const { words_per_i16_sum(B::MAX_NUMBER) });
                let mut sums = [[L::init_small(0); J]; N];
                // Unrolled by a macro, so that every shift is a constant.
                macro_rules! words {
                    ($($j:literal)*) => {$(
                        if $j / count == SPAN {
                            prefetch_share(w, sub_block, prefetch, $j, 8);
                            let shifts = |n: usize| {
                                if $j % count < words_per_sum { x[n].spans[SPAN].shift } else { 0 }
                            };
                            if $j % words_per_sum == 0 {
                                for n in 0..N {
                                    sums[n] = [L::init_small(shifts(n)); J];
                                }
                            }
                            for v in 0..J {
                                let w = combine_planes::<L>(planes, $j, (first + v) * L::LANES);
                                for n in 0..N {
                                    sums[n][v] = L::dot_small(sums[n][v], w, input_word(&x[n], $j));
                                }
                            }
                            if $j % words_per_sum == words_per_sum - 1 {
                                for n in 0..N {
                                    for v in 0..J {
                                        let products = L::finish_small(sums[n][v], shifts(n));
                                        out[n][v] = L::add(out[n][v], products);
                                    }
                                }
                            }
                        }
                    )*};
                }
                words!(0 1 2 3 4 5 6 7);
            }
        }
        out
    }
}

/// Computes one tile with N rows of x, V vectors of its rows per pass over the columns, and J of
/// them per pass over the words of a block.
///
/// # Safety
/// - The CPU has the target features of `L`.
/// - V divides the number of vectors of a tile, and J divides V.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, B: Block, const N: usize, const V: usize, const J: usize>(
    w: &[B],
    x: &[Input],
    y: &mut [[f32; TILE]],
) {
    stack::align();
    let level = CacheLevel::choose(B::SUB_BLOCKS * N * size_of::<Input>(), size_of::<B>());
    // SAFETY: by the caller's guarantees about V and J, every vector is inside the tile.
    unsafe {
        for first in (0..TILE / L::LANES).step_by(V) {
            let mut sums = [[L::splat(0.0); V]; N];
            for (w, x) in w.iter().zip(x.as_chunks::<N>().0.chunks_exact(B::SUB_BLOCKS)) {
                for (sub_block, x) in x.iter().enumerate() {
                    for v in (0..V).step_by(J) {
                        // Only the pass over the first vectors prefetches, for all of them.
                        let prefetch = (first + v == 0).then_some(level);
                        for span in 0..B::SPANS {
                            let integers = match span {
                                0 => {
                                    span_sums::<L, B, N, J, 0>(w, sub_block, x, first + v, prefetch)
                                }
                                _ => {
                                    span_sums::<L, B, N, J, 1>(w, sub_block, x, first + v, prefetch)
                                }
                            };
                            let (scales, minima) =
                                (w.scales(sub_block, span), w.minima(sub_block, span));
                            for j in 0..J {
                                let scale = factor::<L>(&scales, first + v + j);
                                for n in 0..N {
                                    let scale = L::mul(scale, L::splat(x[n].scale));
                                    let s = L::to_f32(integers[n][j]);
                                    sums[n][v + j] = L::mul_add(s, scale, sums[n][v + j]);
                                }
                                if let Some(minima) = &minima {
                                    let minimum = factor::<L>(minima, first + v + j);
                                    for n in 0..N {
                                        let sum = L::splat(x[n].spans[span].sum);
                                        sums[n][v + j] = L::mul_add(minimum, sum, sums[n][v + j]);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            for (y, sums) in y.iter_mut().zip(&sums) {
                for (v, sum) in sums.iter().enumerate() {
                    L::store(y.as_mut_ptr().add((first + v) * L::LANES), *sum);
                }
            }
        }
    }
}
