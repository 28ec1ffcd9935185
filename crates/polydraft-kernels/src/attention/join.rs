//! Joins the outputs of a sequence's segments, in the order of the sequence.
//!
//! A segment gives the mean m of its values, weighted by e^score, and its total weight as a pair of
//! maximum score and sum. Two segments join to (w₁·m₁ + w₂·m₂) / (w₁ + w₂), with both weights taken
//! relative to the larger maximum (Milakov and Gimelshein 2018).

use pulp::{Simd, WithSimd};

use super::kernel::SoftmaxSum;

/// Segment outputs of a block of rows.
pub(super) struct Join<'a> {
    /// Means `[segments, key heads, rows, group, head size]`.
    pub means: &'a [f32],
    /// Weights `[segments, key heads, rows, group]`.
    pub sums: &'a [SoftmaxSum],
    /// Number of query heads per key head.
    pub group: usize,
    pub head_size: usize,
    /// Output `[rows, heads, head size]`.
    pub out: &'a mut [f32],
    pub heads: usize,
    /// Attention sinks: an additional score per query head, with value zero.
    pub sinks: Option<&'a [f32]>,
}

impl WithSimd for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { means, sums, group, head_size, out, heads, sinks } = self;
        let rows = out.len() / (heads * head_size);
        let mut joined = vec![SoftmaxSum::EMPTY; rows * heads];
        if let Some(sinks) = sinks {
            for (sum, sink) in joined.iter_mut().zip(sinks.iter().cycle()) {
                *sum = SoftmaxSum { max: *sink, sum: 1.0 };
            }
        }
        let segment = rows * heads;
        let segments = means.chunks_exact(segment * head_size).zip(sums.chunks_exact(segment));
        for (means, sums) in segments {
            for (n, (mean, sum)) in means.chunks_exact(head_size).zip(sums).enumerate() {
                let (key_head, row, member) = (n / (rows * group), n / group % rows, n % group);
                let index = row * heads + key_head * group + member;
                let out = &mut out[index * head_size..][..head_size];
                add(simd, out, &mut joined[index], mean, sum);
            }
        }
    }
}

/// Joins a segment (`new`, `new_sum`) into the mean and weight of the segments before it.
#[inline(always)]
fn add<S: Simd>(
    simd: S,
    mean: &mut [f32],
    sum: &mut SoftmaxSum,
    new: &[f32],
    new_sum: &SoftmaxSum,
) {
    if new_sum.sum == 0.0 {
        return;
    }
    if sum.sum == 0.0 {
        mean.copy_from_slice(new);
        *sum = *new_sum;
        return;
    }
    let max = sum.max.max(new_sum.max);
    let (old_weight, new_weight) =
        (sum.sum * (sum.max - max).exp(), new_sum.sum * (new_sum.max - max).exp());
    let total = old_weight + new_weight;
    let (old_share, new_share) = (old_weight / total, new_weight / total);
    let (vectors, rest) = S::as_mut_simd_f32s(mean);
    let (new_vectors, new_rest) = S::as_simd_f32s(new);
    for (mean, new) in vectors.iter_mut().zip(new_vectors) {
        *mean = simd.add_f32s(
            simd.mul_f32s(*mean, simd.splat_f32s(old_share)),
            simd.mul_f32s(*new, simd.splat_f32s(new_share)),
        );
    }
    for (mean, new) in rest.iter_mut().zip(new_rest) {
        *mean = *mean * old_share + new * new_share;
    }
    *sum = SoftmaxSum { max, sum: total };
}
