//! The state space of Mamba-2, with one decay per head.
//!
//! Source: Dao, Gu 2024 (Mamba-2), as in Granite 4 and Nemotron-H.
//! Method: each token updates the matrix S `[state, value]` of a head to
//!     S' = a·S + b ⊗ v,   and its output is cᵀS',
//! where a is the decay of the head, and a group of adjacent heads shares b and c. The state is
//! `[heads, state, value]`. The input row of a token holds the values of all heads, b of all
//! groups, c of all groups, then a of all heads.
//! Deviations: 1. Prompts are processed token by token, not in chunks, so that a token's output is
//! bitwise the same however its sequence was split, as in `delta`.
//! Complexity: two matrix-vector products of `state · value` multiply-adds per token and head.

use pulp::Simd;

use super::update::{Update, block};
use super::walk::{self, HeadState, Rule, Shape, Walk};
use crate::rows::Rows;

/// A state space layer, by the shape of its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpace {
    /// Number of groups of heads that share b and c; divides `heads`.
    pub groups: usize,
    /// Number of heads, each with a state.
    pub heads: usize,
    /// Width of b and of c.
    pub state: usize,
    /// Width of a value.
    pub value: usize,
}

impl StateSpace {
    /// Width of the values of all heads, and of the output.
    pub fn inner(&self) -> usize {
        self.heads * self.value
    }

    /// Width of values, b and c together.
    pub fn mixed_width(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Width of a token's input row.
    pub fn width(&self) -> usize {
        self.mixed_width() + self.heads
    }

    /// Size of a sequence's state.
    pub fn state_size(&self) -> usize {
        self.heads * self.state * self.value
    }

    /// Returns the outputs `[rows, heads · value]` of all walks, concatenated in order, and updates
    /// their states.
    ///
    /// # Panics
    /// Row indices out of range, or a state of another size.
    pub fn forward(&self, walks: &mut [Walk]) -> Rows {
        walk::outputs(self, walks)
    }

    /// Returns the slices of a token's input row that belong to a head.
    fn token<'a>(&self, row: &'a [f32], head: usize) -> Token<'a> {
        let Self { groups, state, value, .. } = *self;
        let start = self.inner() + head / (self.heads / groups) * state;
        Token {
            value: &row[head * value..][..value],
            write: &row[start..][..state],
            read: &row[start + groups * state..][..state],
            decay: row[self.mixed_width() + head],
        }
    }
}

impl Rule for StateSpace {
    fn shape(&self) -> Shape {
        let Self { heads, state, value, .. } = *self;
        Shape { width: self.width(), heads, state: state * value, out: value }
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
    value: &'a [f32],
    /// b.
    write: &'a [f32],
    /// c.
    read: &'a [f32],
    decay: f32,
}

impl Update for Token<'_> {
    fn width(&self) -> usize {
        self.value.len()
    }

    fn decay(&self) -> f32 {
        self.decay
    }

    fn rows(&self) -> [&[f32]; 2] {
        [self.write, self.read]
    }

    #[inline(always)]
    fn changes<S: Simd, const COUNT: usize>(
        &self,
        _simd: S,
        _before: &[f32],
        at: usize,
    ) -> [S::f32s; COUNT] {
        block::<S, COUNT>(self.value, self.width(), 0, at)
    }

    #[inline(always)]
    fn change(&self, _before: &[f32], column: usize) -> f32 {
        self.value[column]
    }
}
