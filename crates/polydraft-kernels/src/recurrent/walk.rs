//! Runs recurrent layers over the tokens of a pass, including trees of draft tokens.
//!
//! Problem: a token's state is computed from its parent's state, and in a tree several tokens share
//! a parent.
//! Method: each head processes its sequence on its own, in two phases. 1. The committed tokens
//! update the sequence's state in place, one after the other. 2. The tree tokens are visited depth
//! first with one scratch state per level: a token at depth d reads the state of level d − 1 (its
//! parent's, or the committed state at depth 0) and writes level d. Scratch memory grows with the
//! depth of the tree, not with its number of tokens.

use pulp::{Arch, Simd, WithSimd};

use crate::pool;
use crate::rows::Rows;

/// Minimum number of multiplications per thread.
const MIN_WORK: usize = 1 << 17;

/// State of all heads of a sequence before a pass.
#[derive(Debug)]
pub enum RecurrentState<'a> {
    /// Only read: the pass has no committed tokens.
    ReadOnly(&'a [f32]),
    /// Updated by the committed tokens.
    Updated(&'a mut [f32]),
}

/// Token of a draft tree, in depth-first order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeToken {
    /// Index into [`Walk::rows`].
    pub row: usize,
    /// Number of ancestors in the tree.
    pub depth: usize,
}

/// Input of one sequence to a recurrent layer in a pass.
#[derive(Debug)]
pub struct Walk<'a> {
    /// State before the pass.
    pub state: RecurrentState<'a>,
    /// Input rows of the tokens: `[tokens, width]`.
    pub rows: &'a [f32],
    /// Number of leading rows that are committed: each follows the one before it, and updates the
    /// state.
    pub committed: usize,
    /// Tree tokens in depth-first order: each after its parent and before its parent's next child.
    pub tree: &'a [TreeToken],
    /// First row whose output is wanted. Rows before it were computed in an earlier pass, and are
    /// only repeated for their effect on the state.
    pub first_output: usize,
}

/// Update rule of a recurrent layer.
pub(super) trait Rule: Sync {
    fn shape(&self) -> Shape;

    /// Computes a head's state after a token, and the token's output.
    fn apply<S: Simd>(&self, simd: S, state: HeadState, row: &[f32], out: &mut [f32]);
}

/// Sizes of a recurrent layer, in numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Width of a token's input row.
    pub width: usize,
    pub heads: usize,
    /// Size of a head's state.
    pub state: usize,
    /// Width of a head's output.
    pub out: usize,
}

/// State of one head, before and after a token.
pub(super) struct HeadState<'a> {
    pub head: usize,
    /// State before the token; `None` if `after` holds it and is updated in place.
    pub before: Option<&'a [f32]>,
    pub after: &'a mut [f32],
}

/// Returns the outputs `[rows, heads · out]` of all walks, concatenated in order.
pub(super) fn outputs<R: Rule>(rule: &R, walks: &mut [Walk]) -> Rows {
    let shape = rule.shape();
    let count = |walk: &Walk| walk.rows.len() / shape.width - walk.first_output;
    let all: usize = walks.iter().map(count).sum();
    let mut out = vec![0f32; all * shape.heads * shape.out];
    let mut rows = out.chunks_exact_mut(shape.heads * shape.out);
    let mut heads = Vec::with_capacity(walks.len() * shape.heads);
    let (mut steps, sequences) = (0, walks.len());
    for walk in walks {
        let count = count(walk);
        let mut outs: Vec<Vec<&mut [f32]>> = Vec::new();
        outs.resize_with(shape.heads, || Vec::with_capacity(count));
        for row in rows.by_ref().take(count) {
            for (head, out) in outs.iter_mut().zip(row.chunks_exact_mut(shape.out)) {
                head.push(out);
            }
        }
        steps += walk.committed + walk.tree.len();
        let tokens = Tokens { rows: walk.rows, committed: walk.committed, tree: walk.tree };
        let mut push = |head, state, outs| {
            let first_output = walk.first_output;
            heads.push(HeadTask { rule, shape, head, state, tokens, first_output, outs });
        };
        match &mut walk.state {
            RecurrentState::ReadOnly(state) => {
                assert!(walk.committed == 0, "committed tokens update the state");
                let states = state.chunks_exact(shape.state);
                for ((head, state), outs) in states.enumerate().zip(outs) {
                    push(head, RecurrentState::ReadOnly(state), outs);
                }
            }
            RecurrentState::Updated(state) => {
                let states = state.chunks_exact_mut(shape.state);
                for ((head, state), outs) in states.enumerate().zip(outs) {
                    push(head, RecurrentState::Updated(state), outs);
                }
            }
        }
    }
    let work = 3 * shape.state * steps / sequences.max(1);
    let arch = Arch::new();
    pool::parallel_for_each(heads, MIN_WORK / work.max(1) + 1, |head| arch.dispatch(head));
    Rows::new(out, shape.heads * shape.out)
}

/// Tokens of one sequence, shared by all heads.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    rows: &'a [f32],
    committed: usize,
    tree: &'a [TreeToken],
}

/// One head of one sequence.
struct HeadTask<'a, R> {
    rule: &'a R,
    shape: Shape,
    head: usize,
    state: RecurrentState<'a>,
    tokens: Tokens<'a>,
    first_output: usize,
    /// Output of each row from `first_output` on.
    outs: Vec<&'a mut [f32]>,
}

impl<R: Rule> WithSimd for HeadTask<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rule, shape, head, state, tokens, first_output, mut outs } = self;
        let token = |row: usize| &tokens.rows[row * shape.width..][..shape.width];
        // Receives the outputs of rows before `first_output`.
        let mut discarded = vec![0f32; shape.out];
        let committed: &[f32] = match state {
            RecurrentState::ReadOnly(state) => state,
            RecurrentState::Updated(state) => {
                for row in 0..tokens.committed {
                    let state = HeadState { head, before: None, after: &mut *state };
                    let out = output(&mut outs, &mut discarded, row.checked_sub(first_output));
                    rule.apply(simd, state, token(row), out);
                }
                state
            }
        };
        let depth = tokens.tree.iter().map(|token| token.depth + 1).max().unwrap_or(0);
        let mut levels = vec![vec![0f32; committed.len()]; depth];
        for TreeToken { row, depth } in tokens.tree {
            let (above, below) = levels.split_at_mut(*depth);
            let before = Some(above.last().map_or(committed, Vec::as_slice));
            let state = HeadState { head, before, after: &mut below[0] };
            let out = output(&mut outs, &mut discarded, row.checked_sub(first_output));
            rule.apply(simd, state, token(*row), out);
        }
    }
}

/// Selects the output of a row, or `discarded` if its output is not wanted.
#[inline(always)]
fn output<'o>(
    outs: &'o mut [&mut [f32]],
    discarded: &'o mut [f32],
    index: Option<usize>,
) -> &'o mut [f32] {
    match index {
        Some(index) => outs[index],
        None => discarded,
    }
}
