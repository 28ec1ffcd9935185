//! Sums of products, and the traits of weights that are added to them.

use pulp::Simd;

use super::step::{STEP, Step};
use crate::fetch::PassPrefetch;
use crate::packed::tiles::{Chunk, TILE};

/// Accumulators of N rows of x with V vectors of a tile. Every sum runs over the columns in order,
/// so its result does not depend on N and V.
pub(super) type Sums<S, const N: usize, const V: usize> = [[<S as Simd>::f32s; V]; N];

// Loops are used instead of closures, which do not inherit the target features of the function
// around them.

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

/// Returns vector `v` of a tile's words.
#[inline(always)]
pub(super) fn word<S: Simd>(words: &[u32; TILE], v: usize) -> S::u32s {
    S::as_simd_u32s(words).0[v]
}

/// Weights of a few columns of a tile, which can be multiplied.
pub(in crate::packed) trait AddProducts: Sized {
    /// Adds the products of all columns with V vectors of the tile's rows, starting at vector
    /// `first`. Weights in memory (not in scratch buffers) prefetch with `prefetch`.
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    );
}

/// Chunks that are widened in registers, or to a scratch buffer first.
pub(in crate::packed) trait ExactWeights: Chunk + AddProducts {
    /// The chunk type in f32.
    type Wide: AddProducts;

    /// Maximum number of sums with four vectors of a tile per pass, and with two. With more sums,
    /// fewer vectors are faster. Applies with 16 registers, where some sums are spilled. Measured.
    const MAX_SUMS: [usize; 2];

    /// Maximum number of rows of a group of a small batch with 16 registers. More rows are divided
    /// into two groups, if registers then hold the sums of more vectors. Measured.
    const MAX_ROWS: usize;

    /// Maximum number of rows of a small batch with 32 registers, up to
    /// [`MAX_SMALL_BATCH`](super::step::MAX_SMALL_BATCH). Measured.
    const SMALL_BATCH: usize;

    /// Returns the chunks in f32, widened into `scratch` unless they are in f32 already.
    fn widened<'a, S: Simd>(
        simd: S,
        w: &'a [Self],
        scratch: &'a mut Vec<Self::Wide>,
    ) -> &'a [Self::Wide];
}

/// Chunks of four columns that are widened number by number.
pub(super) trait Widen: Chunk {
    const MAX_SUMS: [usize; 2];
    const MAX_ROWS: usize;
    const SMALL_BATCH: usize;

    /// Returns vector `v` of the rows in f32, by column.
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP];
}

impl<W: Widen> AddProducts for W {
    #[inline(always)]
    fn add<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
        prefetch: PassPrefetch,
        sums: &mut Sums<S, N, V>,
    ) {
        for (chunk, (x, w)) in x.iter().zip(w).enumerate() {
            prefetch.step(chunk);
            let mut wide = [[simd.splat_f32s(0.0); STEP]; V];
            for (v, wide) in wide.iter_mut().enumerate() {
                *wide = w.widen(simd, first + v);
            }
            add_step::<S, N, V>(simd, sums, x, &wide);
        }
    }
}
