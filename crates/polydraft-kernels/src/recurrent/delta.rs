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

use super::update::{Update, block};
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
        self.token(row, head).take_in(simd, from, state, out);
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

impl Update for Token<'_> {
    fn width(&self) -> usize {
        self.value.len()
    }

    fn decay(&self) -> f32 {
        self.decay
    }

    fn rows(&self) -> [&[f32]; 2] {
        [self.key, self.query]
    }

    #[inline(always)]
    fn changes<S: Simd, const COUNT: usize>(
        &self,
        simd: S,
        before: &[f32],
        at: usize,
    ) -> [S::f32s; COUNT] {
        let mut found = [simd.splat_f32s(0.0); COUNT];
        for (row, key) in self.key.iter().enumerate() {
            let key = simd.splat_f32s(*key);
            for (sum, x) in found.iter_mut().zip(block::<S, COUNT>(before, self.width(), row, at)) {
                *sum = simd.mul_add_f32s(x, key, *sum);
            }
        }
        let (decay, strength) = (simd.splat_f32s(self.decay), simd.splat_f32s(self.strength));
        let values = block::<S, COUNT>(self.value, self.width(), 0, at);
        std::array::from_fn(|i| {
            let known = simd.mul_f32s(decay, found[i]);
            simd.mul_f32s(simd.sub_f32s(values[i], known), strength)
        })
    }

    #[inline(always)]
    fn change(&self, before: &[f32], column: usize) -> f32 {
        let mut found = 0f32;
        for (row, key) in self.key.iter().enumerate() {
            found = before[row * self.width() + column].mul_add(*key, found);
        }
        (self.value[column] - self.decay * found) * self.strength
    }
}
