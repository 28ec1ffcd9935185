//! The gated delta rule: linear attention whose state is one matrix per head.
//!
//! Problem: the KV cache of a long sequence fills the memory, and each token reads all of it.
//! Source: Yang, Kautz, Hatamizadeh 2025 (Gated Delta Networks), as in Qwen3-Next.
//! Method: each token updates the matrix S `[key, value]` of a head to
//!     S' = a·S + k ⊗ (b · (v − kᵀ(a·S))),   and its output is qᵀS',
//! where a is the token's decay and b its strength. The state is `[value_heads, key, value]`. The
//! input row of a token holds normed queries, normed keys, values, then a of each value head, then
//! b of each value head.
//! Deviations: 1. Prompts are processed token by token, not in chunks. A token's output is then
//! bitwise the same however its sequence was split, and in a tree it depends on its path only. A
//! token reads a hundred times more bytes of weights than of state matrices.
//! Complexity: three matrix-vector products of `key · value` multiply-adds per token and head, in
//! the L2 cache.

use pulp::Simd;

use super::update::{Update, block};
use super::walk::{self, HeadState, Rule, Shape, Walk};
use crate::rows::Rows;

/// A gated delta rule layer, by the shape of its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaRule {
    /// Number of query and key heads; divides `value_heads`.
    pub key_heads: usize,
    /// Number of value heads, each with a state.
    pub value_heads: usize,
    /// Width of a key.
    pub key: usize,
    /// Width of a value.
    pub value: usize,
    /// Assignment of value heads to key heads.
    pub order: KeyHeadOrder,
}

/// Assignment of value heads to key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHeadOrder {
    /// Adjacent value heads share a key head.
    Grouped,
    /// Value head i uses key head i mod `key_heads`.
    Interleaved,
}

impl DeltaRule {
    /// Width of queries, keys and values together.
    pub fn mixed_width(&self) -> usize {
        2 * self.key_heads * self.key + self.value_heads * self.value
    }

    /// Width of a token's input row.
    pub fn width(&self) -> usize {
        self.mixed_width() + 2 * self.value_heads
    }

    /// Size of a sequence's state.
    pub fn state_size(&self) -> usize {
        self.value_heads * self.key * self.value
    }

    /// Returns the outputs `[rows, value_heads · value]` of all walks, concatenated in order, and
    /// updates their states.
    ///
    /// # Panics
    /// Row indices out of range, or a state of another size.
    pub fn forward(&self, walks: &mut [Walk]) -> Rows {
        walk::outputs(self, walks)
    }

    /// Returns the key head of a value head.
    fn key_head(&self, head: usize) -> usize {
        match self.order {
            KeyHeadOrder::Grouped => head / (self.value_heads / self.key_heads),
            KeyHeadOrder::Interleaved => head % self.key_heads,
        }
    }

    /// Returns the slices of a token's input row that belong to a head.
    fn token<'a>(&self, row: &'a [f32], head: usize) -> Token<'a> {
        let Self { key_heads, value_heads, key, value, .. } = *self;
        let (keys, start) = (key_heads * key, self.key_head(head) * key);
        let (values, gates) = (2 * keys + head * value, self.mixed_width() + head);
        Token {
            query: &row[start..start + key],
            key: &row[keys + start..keys + start + key],
            value: &row[values..values + value],
            decay: row[gates],
            strength: row[gates + value_heads],
        }
    }
}

impl Rule for DeltaRule {
    fn shape(&self) -> Shape {
        let Self { value_heads: heads, key, value, .. } = *self;
        Shape { width: self.width(), heads, state: key * value, out: value }
    }

    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, state: HeadState, row: &[f32], out: &mut [f32]) {
        let HeadState { head, before, after } = state;
        self.token(row, head).apply(simd, before, after, out);
    }
}

/// Input of one head from one token.
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
        let mut predicted = [simd.splat_f32s(0.0); COUNT];
        for (row, key) in self.key.iter().enumerate() {
            let key = simd.splat_f32s(*key);
            for (sum, x) in
                predicted.iter_mut().zip(block::<S, COUNT>(before, self.width(), row, at))
            {
                *sum = simd.mul_add_f32s(x, key, *sum);
            }
        }
        let (decay, strength) = (simd.splat_f32s(self.decay), simd.splat_f32s(self.strength));
        let values = block::<S, COUNT>(self.value, self.width(), 0, at);
        std::array::from_fn(|i| {
            let decayed = simd.mul_f32s(decay, predicted[i]);
            simd.mul_f32s(simd.sub_f32s(values[i], decayed), strength)
        })
    }

    #[inline(always)]
    fn change(&self, before: &[f32], column: usize) -> f32 {
        let mut predicted = 0f32;
        for (row, key) in self.key.iter().enumerate() {
            predicted = before[row * self.width() + column].mul_add(*key, predicted);
        }
        (self.value[column] - self.decay * predicted) * self.strength
    }
}
