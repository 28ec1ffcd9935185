//! How a token changes a head's matrix, in the rules that have one: S' = a·S + w ⊗ change, and what
//! is read of it, rᵀS'. They differ in the change.

use pulp::Simd;

/// A token's part in a head whose matrix is `[rows, width]`.
pub(super) trait Update: Copy {
    fn width(&self) -> usize;
    fn decay(&self) -> f32;
    /// What the change is multiplied by in each row, and what the row is read with.
    fn rows(&self) -> [&[f32]; 2];
    /// The change of `COUNT` vectors of columns from column `at` on; `before` is the state.
    fn changes<S: Simd, const COUNT: usize>(
        &self,
        simd: S,
        before: &[f32],
        at: usize,
    ) -> [S::f32s; COUNT];
    /// The change of one column.
    fn change(&self, before: &[f32], column: usize) -> f32;

    /// The state after the token, from the one before or in its place, and what the token reads of
    /// it.
    #[inline(always)]
    fn take_in<S: Simd>(self, simd: S, from: Option<&[f32]>, state: &mut [f32], out: &mut [f32]) {
        // Columns do not know of each other: of some of them what finds the change leaves all in
        // the first cache.
        let (width, lanes) = (self.width(), size_of::<S::f32s>() / size_of::<f32>());
        let mut at = 0;
        while width - at >= 4 * lanes {
            columns::<S, Self, 4>(simd, from, state, self, &mut out[at..], at);
            at += 4 * lanes;
        }
        while width - at >= lanes {
            columns::<S, Self, 1>(simd, from, state, self, &mut out[at..], at);
            at += lanes;
        }
        let [writes, reads] = self.rows();
        for column in at..width {
            let change = self.change(from.unwrap_or(state), column);
            let mut sum = 0f32;
            for (row, (write, read)) in writes.iter().zip(reads).enumerate() {
                let before = from.unwrap_or(state)[row * width + column];
                let after = write.mul_add(change, self.decay() * before);
                state[row * width + column] = after;
                sum = after.mul_add(*read, sum);
            }
            out[column] = sum;
        }
    }
}

/// `COUNT` vectors of columns of a row, from column `at` on.
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

/// `COUNT` vectors of columns from column `at` on.
#[inline(always)]
fn columns<S: Simd, U: Update, const COUNT: usize>(
    simd: S,
    from: Option<&[f32]>,
    state: &mut [f32],
    token: U,
    out: &mut [f32],
    at: usize,
) {
    let width = token.width();
    let wide = COUNT * size_of::<S::f32s>() / size_of::<f32>();
    let change = token.changes::<S, COUNT>(simd, from.unwrap_or(state), at);
    let decay = simd.splat_f32s(token.decay());
    let mut sums = [simd.splat_f32s(0.0); COUNT];
    let [writes, reads] = token.rows();
    for (row, (write, read)) in writes.iter().zip(reads).enumerate() {
        let (write, read) = (simd.splat_f32s(*write), simd.splat_f32s(*read));
        let before = block::<S, COUNT>(from.unwrap_or(state), width, row, at);
        let after = S::as_mut_simd_f32s(&mut state[row * width + at..][..wide]).0;
        for i in 0..COUNT {
            let x = simd.mul_add_f32s(write, change[i], simd.mul_f32s(decay, before[i]));
            after[i] = x;
            sums[i] = simd.mul_add_f32s(x, read, sums[i]);
        }
    }
    let (outs, _) = S::as_mut_simd_f32s(&mut out[..wide]);
    outs.copy_from_slice(&sums);
}
