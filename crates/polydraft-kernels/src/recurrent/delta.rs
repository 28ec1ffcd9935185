//! The gated delta rule: attention whose memory of a sequence is one matrix a head.
//!
//! Problem: the KV cache of a long sequence fills the memory, and all of it is read for each token.
//! Source: Yang, Kautz, Hatamizadeh 2025 (Gated Delta Networks), as Qwen3-Next has it.
//! Method: of every token the head's matrix S `[key, value]` becomes
//!     S' = a·S + k ⊗ (b · (v − kᵀ(a·S))),   and the output is qᵀS',
//! with a decay a and a strength b of the token. The state is `[value_heads, key, value]`; a row of
//! a token has queries and keys, normed, then values, then of each head of values a and b.
//! Deviations: 1. Prompts go token by token too, not in chunks: the numbers of a token are then the
//! same, to the bit, however its sequence was cut, and in a tree those of its path alone. The
//! matrices of a token are a hundredth of what its weights are to read.
//! Complexity: three products of `key · value` numbers for each token and head, in the second
//! cache.

use pulp::Simd;

use super::walk::{self, Place, Rule, Shape, Walk};
use crate::rows::Rows;

/// Shapes of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaRule {
    /// Heads of queries and keys; they divide `value_heads`.
    pub key_heads: usize,
    /// Heads of values, and of states.
    pub value_heads: usize,
    /// Width of a key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// Which values a key is for.
    pub order: HeadsOfKeys,
}

/// Which heads of values share a head of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadsOfKeys {
    /// Neighbours do.
    Neighbours,
    /// Every so manieth does.
    InTurn,
}

impl DeltaRule {
    /// Numbers of queries, keys and values.
    pub fn mixed(&self) -> usize {
        2 * self.key_heads * self.key + self.value_heads * self.value
    }

    /// Numbers of a token.
    pub fn width(&self) -> usize {
        self.mixed() + 2 * self.value_heads
    }

    /// Numbers of a state.
    pub fn state(&self) -> usize {
        self.value_heads * self.key * self.value
    }

    /// The outputs of the new rows of all walks, `[rows, value_heads · value]`, walk by walk.
    ///
    /// # Panics
    /// Rows that are not there, or a state of another size.
    pub fn forward(&self, walks: &mut [Walk]) -> Rows {
        walk::outputs(self, walks)
    }

    /// The head of keys of a head of values.
    fn key_head(&self, head: usize) -> usize {
        match self.order {
            HeadsOfKeys::Neighbours => head / (self.value_heads / self.key_heads),
            HeadsOfKeys::InTurn => head % self.key_heads,
        }
    }

    /// What a head reads of a token's row.
    fn token<'a>(&self, row: &'a [f32], head: usize) -> Token<'a> {
        let Self { key_heads, value_heads, key, value, .. } = *self;
        let (keys, of) = (key_heads * key, self.key_head(head) * key);
        let (values, gates) = (2 * keys + head * value, self.mixed() + head);
        Token {
            query: &row[of..of + key],
            key: &row[keys + of..keys + of + key],
            value: &row[values..values + value],
            decay: row[gates],
            strength: row[gates + value_heads],
        }
    }
}

impl Rule for DeltaRule {
    fn shape(&self) -> Shape {
        let Self { value_heads: heads, key, value, .. } = *self;
        Shape { width: self.width(), heads, memory: key * value, out: value }
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
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    strength: f32,
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
    // Columns do not know of each other: of some of them the first pass leaves all in the first
    // cache.
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
        let before = |state: &[f32], row: usize| from.unwrap_or(state)[row * width + column];
        let mut found = 0f32;
        for (row, key) in token.key.iter().enumerate() {
            found = before(state, row).mul_add(*key, found);
        }
        let change = (token.value[column] - token.decay * found) * token.strength;
        let mut sum = 0f32;
        for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
            let after = key.mul_add(change, token.decay * before(state, row));
            state[row * width + column] = after;
            sum = after.mul_add(*query, sum);
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
    let block = |state: &[f32], row: usize| -> [S::f32s; COUNT] {
        let numbers = &from.unwrap_or(state)[row * width + at..][..wide];
        let vectors = S::as_simd_f32s(numbers).0;
        std::array::from_fn(|i| vectors[i])
    };
    let mut found = [simd.splat_f32s(0.0); COUNT];
    for (row, key) in token.key.iter().enumerate() {
        let key = simd.splat_f32s(*key);
        for (sum, x) in found.iter_mut().zip(block(state, row)) {
            *sum = simd.mul_add_f32s(x, key, *sum);
        }
    }
    let (decay, strength) = (simd.splat_f32s(token.decay), simd.splat_f32s(token.strength));
    let values = S::as_simd_f32s(&token.value[at..at + wide]).0;
    let change: [S::f32s; COUNT] = std::array::from_fn(|i| {
        let known = simd.mul_f32s(decay, found[i]);
        simd.mul_f32s(simd.sub_f32s(values[i], known), strength)
    });
    let mut sums = [simd.splat_f32s(0.0); COUNT];
    for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
        let (key, query) = (simd.splat_f32s(*key), simd.splat_f32s(*query));
        let before = block(state, row);
        let after = S::as_mut_simd_f32s(&mut state[row * width + at..][..wide]).0;
        for i in 0..COUNT {
            let x = simd.mul_add_f32s(key, change[i], simd.mul_f32s(decay, before[i]));
            after[i] = x;
            sums[i] = simd.mul_add_f32s(x, query, sums[i]);
        }
    }
    let (outs, _) = S::as_mut_simd_f32s(&mut out[..wide]);
    outs.copy_from_slice(&sums);
}
