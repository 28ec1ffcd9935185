//! Joins the results of a sequence's segments by their weights (Milakov and Gimelshein 2018), in
//! the order of the sequence.

use pulp::{Simd, WithSimd};

use super::kernel::Total;

/// The segments of some tokens of one sequence.
pub(super) struct Join<'a> {
    /// Of each segment, of each key head, of each row the heads that share it, each `[head]`.
    pub found: &'a [f32],
    /// Of each of them.
    pub totals: &'a [Total],
    /// Query heads that share a key head.
    pub shared: usize,
    pub head: usize,
    /// `[rows, heads · head]`, of them the heads of a row.
    pub out: &'a mut [f32],
    pub heads: usize,
    /// A score of nothing for every head, as if a segment had it whose values are zeros.
    pub sinks: Option<&'a [f32]>,
}

impl WithSimd for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { found, totals, shared, head, out, heads, sinks } = self;
        let rows = out.len() / (heads * head);
        let mut sums = vec![Total::NOTHING; rows * heads];
        if let Some(sinks) = sinks {
            for (sum, sink) in sums.iter_mut().zip(sinks.iter().cycle()) {
                *sum = Total { largest: *sink, sum: 1.0 };
            }
        }
        let segment = rows * heads;
        let segments = found.chunks_exact(segment * head).zip(totals.chunks_exact(segment));
        for (found, totals) in segments {
            for (n, (part, total)) in found.chunks_exact(head).zip(totals).enumerate() {
                let (key_head, row, own) = (n / (rows * shared), n / shared % rows, n % shared);
                let place = row * heads + key_head * shared + own;
                add(simd, &mut out[place * head..][..head], &mut sums[place], part, total);
            }
        }
    }
}

/// Adds what a segment gave to what those before it gave, both means of values by their weights.
#[inline(always)]
fn add<S: Simd>(simd: S, mean: &mut [f32], sum: &mut Total, part: &[f32], total: &Total) {
    if total.sum == 0.0 {
        return;
    }
    if sum.sum == 0.0 {
        mean.copy_from_slice(part);
        *sum = *total;
        return;
    }
    let largest = sum.largest.max(total.largest);
    let (before, more) =
        (sum.sum * (sum.largest - largest).exp(), total.sum * (total.largest - largest).exp());
    let all = before + more;
    let (keep, add) = (before / all, more / all);
    let (vectors, rest) = S::as_mut_simd_f32s(mean);
    let (parts, rest_of_parts) = S::as_simd_f32s(part);
    for (mean, part) in vectors.iter_mut().zip(parts) {
        *mean = simd.add_f32s(
            simd.mul_f32s(*mean, simd.splat_f32s(keep)),
            simd.mul_f32s(*part, simd.splat_f32s(add)),
        );
    }
    for (mean, part) in rest.iter_mut().zip(rest_of_parts) {
        *mean = *mean * keep + part * add;
    }
    *sum = Total { largest, sum: all };
}
