//! The matrix update that the recurrent rules share: S' = a·S + w ⊗ u, with output rᵀS'. The rules
//! differ in the row vector u (`changes`).
//!
//! Columns of S are independent of each other. So they are processed in blocks of four vectors: the
//! block is read once to compute u (if the rule needs S for it), then once more from the L1 cache
//! to update it and to accumulate the output.

use pulp::Simd;

/// Update of one head's matrix `[rows, width]` by one token.
pub(super) trait Update: Copy {
    fn width(&self) -> usize;
    fn decay(&self) -> f32;
    /// Returns w and r, with one number per row each.
    fn rows(&self) -> [&[f32]; 2];
    /// Returns u for `COUNT` vectors of columns, starting at column `at`. `before` is S.
    fn changes<S: Simd, const COUNT: usize>(
        &self,
        simd: S,
        before: &[f32],
        at: usize,
    ) -> [S::f32s; COUNT];
    /// Returns u for one column.
    fn change(&self, before: &[f32], column: usize) -> f32;

    /// Computes S' from `before`, or from `after` in place if `before` is `None`, and the output.
    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, before: Option<&[f32]>, after: &mut [f32], out: &mut [f32]) {
        let (width, lanes) = (self.width(), size_of::<S::f32s>() / size_of::<f32>());
        let mut at = 0;
        while width - at >= 4 * lanes {
            columns::<S, Self, 4>(simd, before, after, self, &mut out[at..], at);
            at += 4 * lanes;
        }
        while width - at >= lanes {
            columns::<S, Self, 1>(simd, before, after, self, &mut out[at..], at);
            at += lanes;
        }
        let [writes, reads] = self.rows();
        for column in at..width {
            let change = self.change(before.unwrap_or(after), column);
            let mut sum = 0f32;
            for (row, (write, read)) in writes.iter().zip(reads).enumerate() {
                let old = before.unwrap_or(after)[row * width + column];
                let new = write.mul_add(change, self.decay() * old);
                after[row * width + column] = new;
                sum = new.mul_add(*read, sum);
            }
            out[column] = sum;
        }
    }
}

/// Loads `COUNT` vectors of a row, starting at column `at`.
#[inline(always)]
pub(super) fn block<S: Simd, const COUNT: usize>(
    state: &[f32],
    width: usize,
    row: usize,
    at: usize,
) -> [S::f32s; COUNT] {
    let wide = COUNT * size_of::<S::f32s>() / size_of::<f32>();
    let vectors = S::as_simd_f32s(&state[row * width + at..][..wide]).0;
    std::array::from_fn(|i| vectors[i])
}

/// Updates `COUNT` vectors of columns, starting at column `at`.
#[inline(always)]
fn columns<S: Simd, U: Update, const COUNT: usize>(
    simd: S,
    before: Option<&[f32]>,
    after: &mut [f32],
    token: U,
    out: &mut [f32],
    at: usize,
) {
    let width = token.width();
    let wide = COUNT * size_of::<S::f32s>() / size_of::<f32>();
    let change = token.changes::<S, COUNT>(simd, before.unwrap_or(after), at);
    let decay = simd.splat_f32s(token.decay());
    let mut sums = [simd.splat_f32s(0.0); COUNT];
    let [writes, reads] = token.rows();
    for (row, (write, read)) in writes.iter().zip(reads).enumerate() {
        let (write, read) = (simd.splat_f32s(*write), simd.splat_f32s(*read));
        let old = block::<S, COUNT>(before.unwrap_or(after), width, row, at);
        let new = S::as_mut_simd_f32s(&mut after[row * width + at..][..wide]).0;
        for i in 0..COUNT {
            let x = simd.mul_add_f32s(write, change[i], simd.mul_f32s(decay, old[i]));
            new[i] = x;
            sums[i] = simd.mul_add_f32s(x, read, sums[i]);
        }
    }
    let (outs, _) = S::as_mut_simd_f32s(&mut out[..wide]);
    outs.copy_from_slice(&sums);
}
