//! A state space with a decay a head: what Mamba-2 keeps of a sequence.
//!
//! Source: Dao, Gu 2024 (Mamba-2), as Granite 4 and Nemotron-H have it.
//! Method: of every token the head's matrix S `[state, value]` becomes
//!     S' = a·S + b ⊗ v,   and the output is cᵀS',
//! with a decay a of the head, and b and c that neighbouring heads share. The state is
//! `[heads, state, value]`; a row of a token has the values of all heads, then b and c of all
//! groups, then a of every head.
//! Deviations: 1. Prompts go token by token, not in chunks, for the same numbers to the last bit
//! however a sequence was cut, as the gated delta rule's do.
//! Complexity: two products of `state · value` numbers for each token and head.

use pulp::Simd;

use super::walk::{self, Place, Rule, Shape, Walk};
use crate::rows::Rows;

/// Shapes of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpace {
    /// Groups of heads that share b and c; they divide `heads`.
    pub groups: usize,
    /// Heads of values, and of states.
    pub heads: usize,
    /// Width of b and of c.
    pub state: usize,
    /// Width of a value.
    pub value: usize,
}

impl StateSpace {
    /// Numbers of the values of all heads, and of what the token reads.
    pub fn inner(&self) -> usize {
        self.heads * self.value
    }

    /// Numbers of values, b and c.
    pub fn mixed(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Numbers of a token.
    pub fn width(&self) -> usize {
        self.mixed() + self.heads
    }

    /// Numbers of a state.
    pub fn memory(&self) -> usize {
        self.heads * self.state * self.value
    }

    /// The outputs of the new rows of all walks, `[rows, heads · value]`, walk by walk.
    ///
    /// # Panics
    /// Rows that are not there, or a state of another size.
    pub fn forward(&self, walks: &mut [Walk]) -> Rows {
        walk::outputs(self, walks)
    }

    /// What a head reads of a token's row.
    fn token<'a>(&self, row: &'a [f32], head: usize) -> Token<'a> {
        let Self { groups, state, value, .. } = *self;
        let of = self.inner() + head / (self.heads / groups) * state;
        Token {
            value: &row[head * value..][..value],
            write: &row[of..][..state],
            read: &row[of + groups * state..][..state],
            decay: row[self.mixed() + head],
        }
    }
}

impl Rule for StateSpace {
    fn shape(&self) -> Shape {
        let Self { heads, state, value, .. } = *self;
        Shape { width: self.width(), heads, memory: state * value, out: value }
    }

    #[inline(always)]
    fn take_in<S: Simd>(&self, simd: S, place: Place, row: &[f32], out: &mut [f32]) {
        let Place { head, from, state } = place;
        take_in(simd, from, state, self.token(row, head), out);
    }
}

/// A token's part in a head.
#[derive(Clone, Copy)]
struct Token<'a> {
    value: &'a [f32],
    /// b and c.
    write: &'a [f32],
    read: &'a [f32],
    decay: f32,
}

/// The state after a token, from the one before or in its place, and what the token reads of it.
#[inline(always)]
fn take_in<S: Simd>(
    simd: S,
    from: Option<&[f32]>,
    state: &mut [f32],
    token: Token,
    out: &mut [f32],
) {
    let width = token.value.len();
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    let mut at = 0;
    while width - at >= 4 * lanes {
        columns::<S, 4>(simd, from, state, token, &mut out[at..], at);
        at += 4 * lanes;
    }
    while width - at >= lanes {
        columns::<S, 1>(simd, from, state, token, &mut out[at..], at);
        at += lanes;
    }
    for column in at..width {
        let mut sum = 0f32;
        for (row, (write, read)) in token.write.iter().zip(token.read).enumerate() {
            let before = from.unwrap_or(state)[row * width + column];
            let after = write.mul_add(token.value[column], token.decay * before);
            state[row * width + column] = after;
            sum = after.mul_add(*read, sum);
        }
        out[column] = sum;
    }
}

/// `COUNT` vectors of columns from column `at` on.
#[inline(always)]
fn columns<S: Simd, const COUNT: usize>(
    simd: S,
    from: Option<&[f32]>,
    state: &mut [f32],
    token: Token,
    out: &mut [f32],
    at: usize,
) {
    let width = token.value.len();
    let wide = COUNT * size_of::<S::f32s>() / size_of::<f32>();
    let decay = simd.splat_f32s(token.decay);
    let values = S::as_simd_f32s(&token.value[at..at + wide]).0;
    let mut sums = [simd.splat_f32s(0.0); COUNT];
    for (row, (write, read)) in token.write.iter().zip(token.read).enumerate() {
        let (write, read) = (simd.splat_f32s(*write), simd.splat_f32s(*read));
        let range = row * width + at..row * width + at + wide;
        let numbers = S::as_simd_f32s(&from.unwrap_or(state)[range.clone()]).0;
        let before: [S::f32s; COUNT] = std::array::from_fn(|i| numbers[i]);
        let after = S::as_mut_simd_f32s(&mut state[range]).0;
        for i in 0..COUNT {
            let x = simd.mul_add_f32s(write, values[i], simd.mul_f32s(decay, before[i]));
            after[i] = x;
            sums[i] = simd.mul_add_f32s(x, read, sums[i]);
        }
    }
    let (outs, _) = S::as_mut_simd_f32s(&mut out[..wide]);
    outs.copy_from_slice(&sums);
}
