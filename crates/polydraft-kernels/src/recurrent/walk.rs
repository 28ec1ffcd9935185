//! The way of layers' states through the tokens of a pass.
//!
//! Problem: a token's state is made of its parent's, and a tree has several children of one.
//! Method: a tree's nodes go on from their parents' states: a head walks the tree depth first with
//! one state for each level, so that what lives is as deep as the tree, not as large. The tokens
//! that are decided come first, and change the state itself.

use pulp::{Arch, Simd, WithSimd};

use crate::pool;
use crate::rows::Rows;

/// Multiplications that are worth another thread.
const GRAIN: usize = 1 << 17;

/// The state of all heads that a walk begins with.
#[derive(Debug)]
pub enum Memory<'a> {
    /// It stays: no token is decided.
    Fixed(&'a [f32]),
    /// The decided tokens change it.
    Moving(&'a mut [f32]),
}

/// A token of the tree that is walked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its row.
    pub row: usize,
    /// How many of its ancestors are in the tree.
    pub depth: usize,
}

/// What one sequence goes through in a pass.
#[derive(Debug)]
pub struct Walk<'a> {
    /// What is there before.
    pub memory: Memory<'a>,
    /// Of each token the numbers that its rule reads.
    pub rows: &'a [f32],
    /// The first so many rows are decided, one after the other.
    pub settled: usize,
    /// Others, each after its parent and before its parent's next child.
    pub steps: &'a [Step],
    /// The rows from here on are new: outputs are of them.
    pub new: usize,
}

/// What becomes of a state by a token.
pub(super) trait Rule: Sync {
    fn shape(&self) -> Shape;

    /// The state of a head after a token, and what the token reads of it.
    fn take_in<S: Simd>(&self, simd: S, place: Place, row: &[f32], out: &mut [f32]);
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Numbers of a token.
    pub width: usize,
    pub heads: usize,
    /// Numbers of a head's state, and of its output.
    pub memory: usize,
    pub out: usize,
}

/// A head's state.
pub(super) struct Place<'a> {
    pub head: usize,
    /// The one before; without one it is changed in its place.
    pub from: Option<&'a [f32]>,
    pub state: &'a mut [f32],
}

/// The outputs of the new rows of all walks, `[rows, heads · out]`, walk by walk.
pub(super) fn outputs<R: Rule>(rule: &R, walks: &mut [Walk]) -> Rows {
    let shape = rule.shape();
    let count = |walk: &Walk| walk.rows.len() / shape.width - walk.new;
    let all: usize = walks.iter().map(count).sum();
    let mut out = vec![0f32; all * shape.heads * shape.out];
    let mut rows = out.chunks_exact_mut(shape.heads * shape.out);
    let mut heads = Vec::with_capacity(walks.len() * shape.heads);
    let (mut steps, parts) = (0, walks.len());
    for walk in walks {
        let new = count(walk);
        let mut outs: Vec<Vec<&mut [f32]>> = Vec::new();
        outs.resize_with(shape.heads, || Vec::with_capacity(new));
        for row in rows.by_ref().take(new) {
            for (head, out) in outs.iter_mut().zip(row.chunks_exact_mut(shape.out)) {
                head.push(out);
            }
        }
        steps += walk.settled + walk.steps.len();
        let tokens = Tokens { rows: walk.rows, settled: walk.settled, steps: walk.steps };
        let mut push = |head, memory, outs| {
            heads.push(Head { rule, shape, head, memory, tokens, new: walk.new, outs });
        };
        match &mut walk.memory {
            Memory::Fixed(state) => {
                assert!(walk.settled == 0, "decided tokens change the state");
                let states = state.chunks_exact(shape.memory);
                for ((head, state), outs) in states.enumerate().zip(outs) {
                    push(head, Memory::Fixed(state), outs);
                }
            }
            Memory::Moving(state) => {
                let states = state.chunks_exact_mut(shape.memory);
                for ((head, state), outs) in states.enumerate().zip(outs) {
                    push(head, Memory::Moving(state), outs);
                }
            }
        }
    }
    let work = 3 * shape.memory * steps / parts.max(1);
    let arch = Arch::new();
    pool::each(heads, GRAIN / work.max(1) + 1, |head| arch.dispatch(head));
    Rows::new(out, shape.heads * shape.out)
}

/// What all heads go through.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    rows: &'a [f32],
    settled: usize,
    steps: &'a [Step],
}

/// One head of one walk.
struct Head<'a, R> {
    rule: &'a R,
    shape: Shape,
    head: usize,
    memory: Memory<'a>,
    tokens: Tokens<'a>,
    new: usize,
    /// Of each new row.
    outs: Vec<&'a mut [f32]>,
}

impl<R: Rule> WithSimd for Head<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rule, shape, head, memory, tokens, new, mut outs } = self;
        let token = |row: usize| &tokens.rows[row * shape.width..][..shape.width];
        // What a token reads that did so in an earlier pass.
        let mut again = vec![0f32; shape.out];
        let state: &[f32] = match memory {
            Memory::Fixed(state) => state,
            Memory::Moving(state) => {
                for row in 0..tokens.settled {
                    let place = Place { head, from: None, state: &mut *state };
                    let out = output(&mut outs, &mut again, row.checked_sub(new));
                    rule.take_in(simd, place, token(row), out);
                }
                state
            }
        };
        let deepest = tokens.steps.iter().map(|step| step.depth + 1).max().unwrap_or(0);
        let mut levels = vec![vec![0f32; state.len()]; deepest];
        for Step { row, depth } in tokens.steps {
            let (above, below) = levels.split_at_mut(*depth);
            let from = above.last().map_or(state, Vec::as_slice);
            let state = &mut below[0];
            let place = Place { head, from: Some(from), state };
            let out = output(&mut outs, &mut again, row.checked_sub(new));
            rule.take_in(simd, place, token(*row), out);
        }
    }
}

/// Where what a token reads goes.
#[inline(always)]
fn output<'o>(
    outs: &'o mut [&mut [f32]],
    again: &'o mut [f32],
    new: Option<usize>,
) -> &'o mut [f32] {
    match new {
        Some(new) => outs[new],
        None => again,
    }
}
