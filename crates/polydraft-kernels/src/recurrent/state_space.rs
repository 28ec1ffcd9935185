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

use super::update::{Update, block};
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
        self.token(row, head).take_in(simd, from, state, out);
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
