//! The product of a tile, written once for every vector unit.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::fetch::{CacheLevel, prefetch_ahead};
use crate::packed::block::{Block, Cut, Factors, Numbers};
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;
use crate::stack;

/// The table of coded numbers as 128 + q, unsigned, for the instructions that want one side so.
#[cfg(target_arch = "x86_64")]
pub(super) const IQ4_RAISED: [u8; 16] = {
    let (mut raised, mut i) = ([0; 16], 0);
    while i < 16 {
        raised[i] = polydraft_gguf::IQ4_CODEBOOK[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    raised
};

/// What a vector unit can do with some rows of a tile.
///
/// # Safety
/// Functions may be called where the CPU has what the implementing type asks for; pointers must be
/// good for [`Self::LANES`] numbers.
pub(super) unsafe trait Lanes {
    /// Rows of a vector.
    const LANES: usize;
    type Floats: Copy;
    /// Sums of products, one for each row.
    type Integers: Copy;
    /// Words of four signed bytes, made ready for products.
    type Eights: Copy;
    /// Bytes from 0 to 63.
    type Fours: Copy;
    /// Sums of products with those, as many as [`together`] says.
    type FourSums: Copy;

    /// What sums begin with; `shift` takes the offset away, of those that hold one.
    unsafe fn start(shift: i32) -> Self::Integers;
    unsafe fn eights(words: *const u32) -> Self::Eights;
    /// Adds the products of four columns; `x` holds four bytes.
    unsafe fn add_eights(sums: Self::Integers, w: Self::Eights, x: i32) -> Self::Integers;

    unsafe fn start_fours(shift: i32) -> Self::FourSums;
    /// The lower halves of bytes, and the upper ones.
    unsafe fn fours(words: *const u32) -> [Self::Fours; 2];
    /// The numbers of [`IQ4_CODEBOOK`](polydraft_gguf::IQ4_CODEBOOK) at those places.
    unsafe fn decoded(places: Self::Fours) -> Self::Eights;
    /// Words shifted to the right, or to the left by what is below zero, and what `mask` keeps of
    /// them: four bytes from 0 to 63.
    unsafe fn bits(words: *const u32, shift: i32, mask: u32) -> Self::Fours;
    unsafe fn or(a: Self::Fours, b: Self::Fours) -> Self::Fours;
    unsafe fn add_fours(sums: Self::FourSums, w: Self::Fours, x: i32) -> Self::FourSums;
    unsafe fn end_fours(sums: Self::FourSums, shift: i32) -> Self::Integers;
    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    unsafe fn floats(integers: Self::Integers) -> Self::Floats;
    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn halves(from: *const u16) -> Self::Floats;
    unsafe fn bytes(from: *const u8) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a · b + c, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn store(to: *mut f32, x: Self::Floats);
}

// Below there are loops where closures would be shorter: a closure is a function of its own, which
// the compiler does not give the CPU's vectors.

/// Columns 4j to 4j + 3 of a block.
///
/// # Safety
/// `j` is below 8.
#[inline(always)]
unsafe fn word(x: &Input, j: usize) -> i32 {
    // SAFETY: eight words of four bytes.
    unsafe { x.numbers.as_ptr().cast::<i32>().add(j).read_unaligned() }
}

/// Vector `v` of factors.
///
/// # Safety
/// As [`Lanes`]; `v · LANES` is below [`TILE`].
#[inline(always)]
unsafe fn factor<L: Lanes>(factors: &Factors, v: usize) -> L::Floats {
    let at = v * L::LANES;
    // SAFETY: within arrays of `TILE` numbers; the rest is the caller's promise.
    unsafe {
        match factors {
            Factors::Plain(halves) => L::halves(halves.as_ptr().add(at)),
            Factors::Stepped(halves, steps, 0) => {
                L::mul(L::halves(halves.as_ptr().add(at)), L::bytes(steps.as_ptr().add(at)))
            }
            Factors::Stepped(halves, steps, offset) => {
                // Exact: an f16 times an integer of 8 bits.
                let (half, step) =
                    (L::halves(halves.as_ptr().add(at)), L::bytes(steps.as_ptr().add(at)));
                L::mul_add(half, step, L::mul(half, L::splat(-f32::from(*offset))))
            }
        }
    }
}

/// Words of bytes up to `most` whose products with inputs add up in 16 bits, of the four of a span
/// at least.
const fn together(most: u8) -> usize {
    match i16::MAX as usize / (2 * 127 * most as usize) {
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// Columns 4j to 4j + 3 of a vector of rows from row `at` on.
///
/// # Safety
/// As [`Lanes`]; `at + LANES` is at most [`TILE`].
#[inline(always)]
unsafe fn put_together<L: Lanes>(cut: &Cut, j: usize, at: usize) -> L::Fours {
    // SAFETY: within arrays of `TILE` words; the rest is the caller's promise.
    unsafe {
        let (low, high) = cut.bits(j);
        let low = L::bits(low.words.as_ptr().add(at), low.shift, low.mask);
        match high {
            None => low,
            Some(high) => L::or(low, L::bits(high.words.as_ptr().add(at), high.shift, high.mask)),
        }
    }
}

/// Asks the memory for a share of what lies ahead, if it is this turn's to ask. The shares are
/// asked for between the products, where a CPU has room for them: all at once they made loads wait,
/// and one row in 4 bits took 1.2 times as long. A compiler would put them together again without
/// the fence.
#[inline(always)]
fn ask<B: Block>(w: &B, part: usize, ahead: Option<CacheLevel>, share: usize, shares: usize) {
    if let Some(cache) = ahead {
        prefetch_ahead(w, shares * part + share, shares * B::PARTS, cache);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Sums of products of a span of one block, for J vectors of rows from vector `first` on and N rows
/// of x.
///
/// # Safety
/// As [`Lanes`]; `(first + J) · LANES` is at most [`TILE`]; `SPAN` is below the block's.
#[expect(clippy::needless_range_loop, reason = "the same index into several arrays")]
#[inline(always)]
unsafe fn block<L: Lanes, B: Block, const N: usize, const J: usize, const SPAN: usize>(
    w: &B,
    part: usize,
    x: &[Input; N],
    first: usize,
    ahead: Option<CacheLevel>,
) -> [[L::Integers; J]; N] {
    // SAFETY: pointers lead to `LANES` words within arrays of `TILE`; the rest is the caller's
    // promise.
    unsafe {
        let mut out = [[L::start(0); J]; N];
        match &w.numbers(part) {
            Numbers::Eight(words) => {
                for n in 0..N {
                    out[n] = [L::start(x[n].spans[SPAN].shift); J];
                }
                macro_rules! words {
                    ($($j:literal)*) => {$(
                        ask(w, part, ahead, $j, 8);
                        for v in 0..J {
                            let w = L::eights(words[$j].as_ptr().add((first + v) * L::LANES));
                            for n in 0..N {
                                out[n][v] = L::add_eights(out[n][v], w, word(&x[n], $j));
                            }
                        }
                    )*};
                }
                words!(0 1 2 3 4 5 6 7);
            }
            Numbers::Four(words) => {
                let mut sums = [[L::start_fours(0); J]; N];
                for n in 0..N {
                    sums[n] = [L::start_fours(x[n].spans[SPAN].shift); J];
                }
                for (j, words) in words.iter().enumerate() {
                    ask(w, part, ahead, j, 4);
                    for v in 0..J {
                        let [low, high] = L::fours(words.as_ptr().add((first + v) * L::LANES));
                        for n in 0..N {
                            sums[n][v] = L::add_fours(sums[n][v], low, word(&x[n], j));
                        }
                        for n in 0..N {
                            sums[n][v] = L::add_fours(sums[n][v], high, word(&x[n], j + 4));
                        }
                    }
                }
                for n in 0..N {
                    for v in 0..J {
                        out[n][v] = L::end_fours(sums[n][v], x[n].spans[SPAN].shift);
                    }
                }
            }
            Numbers::Coded(words) => {
                for n in 0..N {
                    out[n] = [L::start(x[n].spans[SPAN].shift); J];
                }
                for (j, words) in words.iter().enumerate() {
                    ask(w, part, ahead, j, 4);
                    for v in 0..J {
                        let places = L::fours(words.as_ptr().add((first + v) * L::LANES));
                        let [low, high] = [L::decoded(places[0]), L::decoded(places[1])];
                        for n in 0..N {
                            out[n][v] = L::add_eights(out[n][v], low, word(&x[n], j));
                        }
                        for n in 0..N {
                            out[n][v] = L::add_eights(out[n][v], high, word(&x[n], j + 4));
                        }
                    }
                }
            }
            Numbers::Cut(cut) => {
                let (count, together) = (8 / B::SPANS, const { together(B::MOST) });
                let mut sums = [[L::start_fours(0); J]; N];
                // Written out, for only so every shift is known to the compiler.
                macro_rules! words {
                    ($($j:literal)*) => {$(
                        if $j / count == SPAN {
                            ask(w, part, ahead, $j, 8);
                            let shifts = |n: usize| {
                                if $j % count < together { x[n].spans[SPAN].shift } else { 0 }
                            };
                            if $j % together == 0 {
                                for n in 0..N {
                                    sums[n] = [L::start_fours(shifts(n)); J];
                                }
                            }
                            for v in 0..J {
                                let w = put_together::<L>(cut, $j, (first + v) * L::LANES);
                                for n in 0..N {
                                    sums[n][v] = L::add_fours(sums[n][v], w, word(&x[n], $j));
                                }
                            }
                            if $j % together == together - 1 {
                                for n in 0..N {
                                    for v in 0..J {
                                        let products = L::end_fours(sums[n][v], shifts(n));
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

/// One tile with N rows of x; V vectors of its rows in one go through the columns, J of them in one
/// go through a block.
///
/// # Safety
/// As [`Lanes`]; V divides the vectors of a tile, and J divides V.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, B: Block, const N: usize, const V: usize, const J: usize>(
    w: &[B],
    x: &[Input],
    y: &mut [[f32; TILE]],
) {
    stack::align();
    let cache = CacheLevel::choose(B::PARTS * N * size_of::<Input>(), size_of::<B>());
    // SAFETY: V and J are as the caller promised, so that every vector lies in its tile.
    unsafe {
        for first in (0..TILE / L::LANES).step_by(V) {
            let mut sums = [[L::splat(0.0); V]; N];
            for (w, x) in w.iter().zip(x.as_chunks::<N>().0.chunks_exact(B::PARTS)) {
                for (part, x) in x.iter().enumerate() {
                    for v in (0..V).step_by(J) {
                        // The first vectors ask for what all of them need.
                        let ahead = (first + v == 0).then_some(cache);
                        for span in 0..B::SPANS {
                            let integers = match span {
                                0 => block::<L, B, N, J, 0>(w, part, x, first + v, ahead),
                                _ => block::<L, B, N, J, 1>(w, part, x, first + v, ahead),
                            };
                            let (scales, minima) = (w.scales(part, span), w.minima(part, span));
                            for j in 0..J {
                                let scale = factor::<L>(&scales, first + v + j);
                                for n in 0..N {
                                    let scale = L::mul(scale, L::splat(x[n].scale));
                                    let s = L::floats(integers[n][j]);
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
