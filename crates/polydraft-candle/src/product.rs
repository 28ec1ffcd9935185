//! Products of few rows with a large f32 matrix: what decoding does all day.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` and w `[out, in]`, rows up to [`MOST_ROWS`]. Reading w is the cost; a product
//! that packs or streams w more than once makes a tree of eight nodes several times as dear as one token.
//! Method: ours. One pass over w; each row of w meets every row of x while it is in the first-level cache. A row's
//! result does not depend on the other rows, so that trees of different shapes give a node the same logits.
//! Complexity: `rows · out · in` multiply-adds, `out · in` reads of w from memory.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// More rows than this go to the general product, which is bound by arithmetic and better at it.
pub(crate) const MOST_ROWS: usize = 32;
/// Rows of x that are multiplied at once: with two sums each they and their inputs fit into the vector registers.
const BLOCK: usize = 8;
/// Entries of w that are worth another thread.
const GRAIN: usize = 1 << 18;

/// The operation x, w ↦ x · wᵀ.
pub(crate) struct FewRows;

impl CustomOp2 for FewRows {
    fn name(&self) -> &'static str {
        "few-rows-product"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = x_layout.shape().dims2()?;
        let (out, w_width) = w_layout.shape().dims2()?;
        let (Some((x0, x1)), Some((w0, w1))) = (x_layout.contiguous_offsets(), w_layout.contiguous_offsets())
        else {
            candle_core::bail!(
                "few-rows product: expected contiguous tensors, got {x_layout:?} and {w_layout:?}"
            )
        };
        if width != w_width {
            candle_core::bail!("few-rows product: expected {w_width} columns, got {width}");
        }
        let aligned = Aligned::new(&x.as_slice::<f32>()?[x0..x1]);
        let x = aligned.values();
        let w = &w.as_slice::<f32>()?[w0..w1];
        // [out, rows] first: then threads write apart from each other.
        let mut transposed = vec![0f32; out * rows];
        let share = (GRAIN / width.max(1)).max(1).max(out.div_ceil(rayon::current_num_threads()));
        if share >= out {
            multiply(x, w, width, rows, &mut transposed);
        } else {
            let parts = transposed.par_chunks_mut(share * rows).zip(w.par_chunks(share * width));
            parts.for_each(|(y, w)| multiply(x, w, width, rows, y));
        }
        if rows == 1 {
            return Ok((CpuStorage::F32(transposed), Shape::from((rows, out))));
        }
        let mut y = vec![0f32; out * rows];
        for (column, values) in transposed.chunks_exact(rows).enumerate() {
            for (row, value) in values.iter().enumerate() {
                y[row * out + column] = *value;
            }
        }
        Ok((CpuStorage::F32(y), Shape::from((rows, out))))
    }
}

/// A copy that begins where a cache line does: a vector across two lines takes twice as long to load, and x is loaded
/// again for every row of w.
struct Aligned {
    buffer: Vec<f32>,
    start: usize,
    length: usize,
}

impl Aligned {
    const LINE: usize = 64;

    fn new(values: &[f32]) -> Self {
        let spare = Self::LINE / size_of::<f32>();
        let mut buffer = vec![0f32; values.len() + spare];
        let start = buffer.as_ptr().align_offset(Self::LINE).min(spare);
        buffer[start..start + values.len()].copy_from_slice(values);
        Self { buffer, start, length: values.len() }
    }

    fn values(&self) -> &[f32] {
        &self.buffer[self.start..self.start + self.length]
    }
}

/// y `[rows of w, rows]`, by the widest vectors that this processor has.
fn multiply(x: &[f32], w: &[f32], width: usize, rows: usize, y: &mut [f32]) {
    if rows > 0 && width > 0 {
        Arch::new().dispatch(Multiply { x, w, width, rows, y });
    }
}

struct Multiply<'a> {
    x: &'a [f32],
    w: &'a [f32],
    width: usize,
    rows: usize,
    y: &'a mut [f32],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, w, width, rows, y } = self;
        // One row of w at a time: two or four side by side, which would hide the latency of sums, read memory in a
        // pattern that took twice as long.
        for (w, y) in w.chunks_exact(width).zip(y.chunks_exact_mut(rows)) {
            for (x, y) in x.chunks(BLOCK * width).zip(y.chunks_mut(BLOCK)) {
                match y.len() {
                    1 => dots::<S, 1>(simd, x, w, y),
                    2 => dots::<S, 2>(simd, x, w, y),
                    3 => dots::<S, 3>(simd, x, w, y),
                    4 => dots::<S, 4>(simd, x, w, y),
                    5 => dots::<S, 5>(simd, x, w, y),
                    6 => dots::<S, 6>(simd, x, w, y),
                    7 => dots::<S, 7>(simd, x, w, y),
                    _ => dots::<S, BLOCK>(simd, x, w, y),
                }
            }
        }
    }
}

/// One row of w with N rows of x.
#[inline(always)]
fn dots<S: Simd, const N: usize>(simd: S, x: &[f32], w: &[f32], y: &mut [f32]) {
    let (vectors, rest) = S::as_simd_f32s(w);
    let xs: [_; N] = std::array::from_fn(|n| row_of::<S>(x, n, w.len()));
    // Two sums each, for even and odd vectors: one alone would wait for its own last addition. All slices get a
    // length that the compiler can see, so that no bounds are checked inside.
    let (pairs, odd) = vectors.as_chunks::<2>();
    let rows: [&[[S::f32s; 2]]; N] = std::array::from_fn(|n| &xs[n].0.as_chunks::<2>().0[..pairs.len()]);
    let mut sums = [[simd.splat_f32s(0.0); 2]; N];
    for (i, w) in pairs.iter().enumerate() {
        for n in 0..N {
            let x = &rows[n][i];
            sums[n][0] = simd.mul_add_f32s(w[0], x[0], sums[n][0]);
            sums[n][1] = simd.mul_add_f32s(w[1], x[1], sums[n][1]);
        }
    }
    if let [w] = odd {
        for n in 0..N {
            sums[n][0] = simd.mul_add_f32s(*w, xs[n].0[2 * pairs.len()], sums[n][0]);
        }
    }
    for n in 0..N {
        y[n] = simd.reduce_sum_f32s(simd.add_f32s(sums[n][0], sums[n][1]));
    }
    if !rest.is_empty() {
        for n in 0..N {
            y[n] += rest.iter().zip(xs[n].1).map(|(w, x)| w * x).sum::<f32>();
        }
    }
}

/// One row of a matrix: whole vectors, and what is left.
#[inline(always)]
fn row_of<S: Simd>(values: &[f32], row: usize, width: usize) -> (&[S::f32s], &[f32]) {
    S::as_simd_f32s(&values[row * width..(row + 1) * width])
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    fn values(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + seed) * 1.618).sin()).collect()
    }

    #[test]
    fn every_variant_equals_the_product_in_double_precision() {
        for (width, out) in [(1, 1), (3, 5), (16, 4), (31, 7), (96, 33), (257, 9)] {
            for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32] {
                let (x, w) = (values(rows * width, 0.3), values(out * width, 7.1));
                // By the best vectors of this processor, and by none.
                let mut variants = vec![vec![0f32; out * rows]; 2];
                multiply(&x, &w, width, rows, &mut variants[0]);
                let y = &mut variants[1];
                Multiply { x: &x, w: &w, width, rows, y }.with_simd(pulp::Scalar::new());
                for y in variants {
                    for (o, y) in y.chunks_exact(rows).enumerate() {
                        for (r, y) in y.iter().enumerate() {
                            let pairs = x[r * width..].iter().zip(&w[o * width..]).take(width);
                            let exact: f64 = pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                            assert!(
                                (f64::from(*y) - exact).abs() < 1e-6 * width as f64,
                                "{width} {out} {rows}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company() {
        // Trees of different shapes must give one node the same logits, or ties could break differently.
        let (width, out, rows) = (200, 50, 13);
        let tensor = |v, r: usize| Tensor::from_vec(v, (r, width), &Device::Cpu).unwrap();
        let (x, w) = (tensor(values(rows * width, 0.5), rows), tensor(values(out * width, 2.0), out));
        let together = x.apply_op2_no_bwd(&w, &FewRows).unwrap().to_vec2::<f32>().unwrap();
        for (r, row) in together.iter().enumerate() {
            let alone = x.narrow(0, r, 1).unwrap().contiguous().unwrap();
            let alone = alone.apply_op2_no_bwd(&w, &FewRows).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(*row, alone[0], "row {r}");
        }
    }
}
