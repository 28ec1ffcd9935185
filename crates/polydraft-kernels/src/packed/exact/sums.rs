//! Sums of products, and how the numbers of a matrix in any format enter them.

use pulp::Simd;

use super::step::{STEP, Step};
use crate::fetch::PassPrefetch;
use crate::packed::tiles::{Piece, TILE};

/// Sums over columns in their order, which is thus the same for every N and V.
pub(super) type Sums<S, const N: usize, const V: usize> = [[<S as Simd>::f32s; V]; N];

// Below there are loops where closures would be shorter: a closure is a function of its own, which
// the compiler does not give the CPU's vectors.

/// Adds the products of four columns.
#[inline(always)]
pub(super) fn add_step<S: Simd, const N: usize, const V: usize>(
    simd: S,
    sums: &mut Sums<S, N, V>,
    x: &Step<N>,
    w: &[[S::f32s; STEP]; V],
) {
    for c in 0..STEP {
        let mut column = [simd.splat_f32s(0.0); V];
        for v in 0..V {
            column[v] = w[v][c];
        }
        add_column::<S, N, V>(simd, sums, &x[c], &column);
    }
}

/// Adds the products of one column.
#[inline(always)]
pub(super) fn add_column<S: Simd, const N: usize, const V: usize>(
    simd: S,
    sums: &mut Sums<S, N, V>,
    x: &[f32; N],
    w: &[S::f32s; V],
) {
    for n in 0..N {
        let x = simd.splat_f32s(x[n]);
        for v in 0..V {
            sums[n][v] = simd.mul_add_f32s(w[v], x, sums[n][v]);
        }
    }
}

/// Vector `v` of a tile's words.
#[inline(always)]
pub(super) fn word<S: Simd>(words: &[u32; TILE], v: usize) -> S::u32s {
    S::as_simd_u32s(words).0[v]
}

/// Some columns of a tile that can be multiplied.
pub(in crate::packed) trait Add: Sized {
    /// Adds the products of all columns, for V vectors of a tile's rows from `first` on; what comes
    /// from memory asks `ahead`.
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        ahead: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    );
}

/// Pieces that are widened in registers, or beforehand.
pub(in crate::packed) trait Words: Piece + Add {
    /// The same numbers in f32.
    type Wide: Add;

    /// The most sums with four vectors of a tile at a time, and with two, beyond which fewer
    /// vectors are faster: with sixteen registers, where some sums lie in memory then. Measured.
    const SUMS: [usize; 2];

    /// Rows of x that have a turn with some pieces together, at most, where there are sixteen
    /// registers: more are two groups, if that leaves room for the sums of more vectors. Measured.
    const TOGETHER: usize;

    /// Rows that are widened in registers, at most, where there are thirty-two registers, up to
    /// [`FEW`](super::step::FEW). Measured.
    const FEW: usize;

    /// The pieces in f32, in `room` where they are not so already.
    fn widened<'a, S: Simd>(
        simd: S,
        w: &'a [Self],
        room: &'a mut Vec<Self::Wide>,
    ) -> &'a [Self::Wide];
}

/// Pieces of four columns each of whose numbers is one of f32's.
pub(super) trait Widen: Piece {
    const SUMS: [usize; 2];
    const TOGETHER: usize;
    const FEW: usize;

    /// Vector `v` of the rows, by column.
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP];
}

impl<W: Widen> Add for W {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        ahead: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        for (piece, (x, w)) in x.iter().zip(w).enumerate() {
            ahead.step(piece);
            let mut wide = [[simd.splat_f32s(0.0); STEP]; V];
            for (v, wide) in wide.iter_mut().enumerate() {
                *wide = w.widen(simd, first + v);
            }
            add_step::<S, N, V>(simd, sums, x, &wide);
        }
    }
}
