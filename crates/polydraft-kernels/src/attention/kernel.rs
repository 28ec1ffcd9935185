//! Inner loops of attention: scores, softmax, weighted values.
//!
//! A page stores keys by column: one line of [`PAGE_SLOTS`] numbers per number of the head. So the
//! scores of a query with all slots of a page are a sum over lines, each multiplied by one number
//! of the query; lanes of a vector are slots. Values are stored by slot, and lanes are numbers of
//! the head.
//!
//! Register blocking: a chunk of Q queries goes through a page together, with Q · V accumulator
//! vectors. Each vector of a key or value is loaded once per chunk. [`MaxQueries`] is the largest Q
//! whose accumulators fit the registers.
//!
//! A page that all rows see in full is processed this way for all of their queries at once. In
//! other pages (the end of a sequence, the edge of a window, a tree), scores are computed for all
//! slots, and the scores of visible slots are copied to their positions. Values are added per row,
//! for visible slots only, in the order of the sequence.
//!
//! Loops are used instead of closures: a closure is a separate function, which does not inherit the
//! target features of the function around it, and so would not use the CPU's vectors.

use std::ops::Range;
use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::lines::{Line, PAGE_SLOTS};
use super::mask::Mask;
use super::page::Page;
use super::params::AttentionParams;
use super::view::{View, Visible};
use crate::exp::exp;
use crate::fetch::PrefetchSlice;
use crate::stack;

/// Attention of a block of rows of one sequence, with one key head, over one segment.
pub(super) struct Task<'a> {
    pub pages: &'a [Arc<Page>],
    /// Key head.
    pub head: usize,
    pub masks: &'a [Mask],
    /// Positions of the segment, whole pages.
    pub positions: Range<usize>,
    /// Queries of all rows, in the order of [`arrange`].
    pub queries: &'a [f32],
    /// Weighted means `[rows, group, head size]`, initialized with zeros.
    pub out: &'a mut [f32],
    /// Weights `[rows, group]`.
    pub sums: &'a mut [SoftmaxSum],
    pub params: AttentionParams<'a>,
    /// First keys of the next task.
    pub next: PrefetchSlice,
}

/// Denominator of a softmax: Σ e^(score − max).
#[derive(Debug, Clone, Copy)]
pub(super) struct SoftmaxSum {
    pub max: f32,
    pub sum: f32,
}

impl SoftmaxSum {
    /// The sum over no positions.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Buffers of a thread, reused between tasks.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Scores by position, later softmax weights: `[lines of positions, queries]`, in lines of
    /// [`PAGE_SLOTS`] positions.
    scores: Vec<Line>,
    /// Scores of one page by slot: `[queries]`.
    page_scores: Vec<Line>,
    /// Weighted sums of values: `[queries, value lines]`.
    sums: Vec<Line>,
    /// Keys or values of a page, widened to f32.
    widened: Vec<Line>,
}

/// Maximum number of queries of a chunk.
pub(super) struct MaxQueries;

impl MaxQueries {
    #[inline(always)]
    const fn get<S: Simd>() -> usize {
        match S::F32_LANES {
            // AVX-512: two vectors per line and query, of 32 registers.
            16 => 8,
            // AVX2: four vectors per line and query, of 16 registers.
            8 => 3,
            _ => 4,
        }
    }
}

impl WithSimd for MaxQueries {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> usize {
        Self::get::<S>()
    }
}

/// Splits `queries` queries into chunks of about equal size, at most `max` each.
#[inline(always)]
fn chunks(queries: usize, max: usize) -> impl Iterator<Item = Range<usize>> {
    let size = queries.div_ceil(queries.div_ceil(max).max(1)).max(1);
    (0..queries).step_by(size).map(move |first| first..queries.min(first + size))
}

/// Transposes each chunk of queries to `[head size, queries]`.
pub(super) fn arrange<'q>(
    queries: impl Iterator<Item = &'q [f32]>,
    head_size: usize,
    max: usize,
    out: &mut [f32],
) {
    let mut queries = queries;
    for chunk in chunks(out.len() / head_size, max) {
        let out = &mut out[chunk.start * head_size..chunk.end * head_size];
        for (n, query) in queries.by_ref().take(chunk.len()).enumerate() {
            for (out, number) in out[n..].iter_mut().step_by(chunk.len()).zip(query) {
                *out = *number;
            }
        }
    }
}

pub(super) struct Attend<'a, 's> {
    pub task: Task<'a>,
    pub scratch: &'s mut Scratch,
}

impl WithSimd for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        stack::align();
        // V is the number of vectors of a line that are processed at a time.
        // If a line has at least four vectors, four are processed at a time, so that keys and
        // values are read from memory in one stream.
        match PAGE_SLOTS >= 4 * S::F32_LANES {
            true => self.task.run::<S, 4>(simd, self.scratch),
            false => self.task.run::<S, 2>(simd, self.scratch),
        }
    }
}

/// Calls a function with the number of queries of a chunk as a constant.
macro_rules! with_chunk {
    ($count:expr, $call:ident::<$S:ident, _, $V:ident>($($argument:expr),* $(,)?)) => {
        match $count {
            1 => $call::<$S, 1, $V>($($argument),*),
            2 => $call::<$S, 2, $V>($($argument),*),
            3 => $call::<$S, 3, $V>($($argument),*),
            4 => $call::<$S, 4, $V>($($argument),*),
            5 => $call::<$S, 5, $V>($($argument),*),
            6 => $call::<$S, 6, $V>($($argument),*),
            7 => $call::<$S, 7, $V>($($argument),*),
            _ => $call::<$S, 8, $V>($($argument),*),
        }
    };
}

impl Task<'_> {
    /// Returns the memory of a page's keys and values, for prefetching.
    #[inline(always)]
    fn prefetch(&self, page: usize) -> [PrefetchSlice; 2] {
        match self.pages.get(page) {
            Some(page) => page.prefetch(self.params.layer, self.head),
            None => [PrefetchSlice::EMPTY; 2],
        }
    }

    /// Runs the task with V vectors of a line at a time.
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S, scratch: &mut Scratch) {
        let Scratch { scores: all_scores, page_scores, sums: all_sums, widened } = scratch;
        let (params, layout) = (self.params, self.params.layout);
        let (head_size, value_lines, max) =
            (layout.head_size, layout.value_lines(), const { MaxQueries::get::<S>() });
        let (group, queries) = (params.heads / layout.heads, self.sums.len());
        // Range of visible slots, and end of visible positions.
        let (mut first, mut end, mut positions_end) = (usize::MAX, 0, 0);
        for mask in self.masks {
            let (context, path) = mask.within(params.window, &self.positions);
            if !context.is_empty() {
                (first, end) = (first.min(context.start), end.max(context.end));
            }
            if let (Some(lowest), Some(highest)) = (path.first(), path.last()) {
                (first, end) = (first.min(*lowest), end.max(highest + 1));
            }
            positions_end = positions_end.max(mask.position() + 1);
        }
        if first >= end {
            return;
        }
        let pages = first / PAGE_SLOTS..end.div_ceil(PAGE_SLOTS);
        let lines =
            (positions_end.min(self.positions.end) - self.positions.start).div_ceil(PAGE_SLOTS);
        all_scores.clear();
        // Scores of positions that a query does not see stay −∞, and get weight 0.
        all_scores.resize(lines * queries, Line([f32::NEG_INFINITY; PAGE_SLOTS]));
        page_scores.resize(page_scores.len().max(queries), Line::default());
        all_sums.clear();
        all_sums.resize(queries * value_lines, Line::default());
        let view = View { window: params.window, positions: self.positions.clone() };

        // 1. Scores.
        for page in pages.clone() {
            let keys = self.pages[page].keys(params.layer, self.head, widened);
            // Values of the first page follow the keys of the last page.
            let mut prefetch = match page + 1 < pages.end {
                true => self.prefetch(page + 1)[0],
                false => self.prefetch(pages.start)[1],
            };
            let is_full = view.is_full(self.masks, page);
            let scores = match is_full {
                true => &mut all_scores[view.line(page * PAGE_SLOTS) * queries..][..queries],
                false => &mut page_scores[..queries],
            };
            for chunk in chunks(queries, max) {
                let queries = &self.queries[chunk.start * head_size..chunk.end * head_size];
                let (scores, prefetch) = (
                    &mut scores[chunk.clone()],
                    std::mem::replace(&mut prefetch, PrefetchSlice::EMPTY),
                );
                with_chunk!(chunk.len(), score::<S, _, V>(simd, queries, keys, prefetch, scores));
            }
            if !is_full {
                for (row, mask) in self.masks.iter().enumerate() {
                    for Visible { slot, position } in view.visible(mask, page) {
                        for n in row * group..(row + 1) * group {
                            let line = &mut all_scores[view.line(position) * queries + n];
                            line.0[position % PAGE_SLOTS] = page_scores[n].0[slot];
                        }
                    }
                }
            }
        }
        // 2. Softmax weights.
        for (n, sum) in self.sums.iter_mut().enumerate() {
            *sum = softmax(simd, &mut all_scores[n..], queries, params.softcap);
        }
        // 3. Weighted sums of values.
        for page in pages.clone() {
            let values = self.pages[page].values(params.layer, self.head, widened);
            let mut prefetch = match page + 1 < pages.end {
                true => self.prefetch(page + 1)[1],
                false => self.next,
            };
            if view.is_full(self.masks, page) {
                let weights = &all_scores[view.line(page * PAGE_SLOTS) * queries..][..queries];
                for chunk in chunks(queries, max) {
                    let sums = &mut all_sums[chunk.start * value_lines..chunk.end * value_lines];
                    let (weights, prefetch) = (
                        &weights[chunk.clone()],
                        std::mem::replace(&mut prefetch, PrefetchSlice::EMPTY),
                    );
                    with_chunk!(
                        chunk.len(),
                        add_page::<S, _, V>(simd, weights, values, prefetch, sums)
                    );
                }
                continue;
            }
            for (row, mask) in self.masks.iter().enumerate() {
                for chunk in chunks(group, max) {
                    let first = row * group + chunk.start;
                    let sums = &mut all_sums[first * value_lines..][..chunk.len() * value_lines];
                    let weights = Weights { lines: &all_scores[first..], stride: queries };
                    with_chunk!(
                        chunk.len(),
                        add_visible::<S, _, V>(simd, weights, values, sums, &view, mask, page)
                    );
                }
            }
            (0..PAGE_SLOTS * value_lines).for_each(|line| prefetch.element(line));
        }
        // 4. Division by the sums of weights.
        let sums = all_sums.chunks_exact_mut(value_lines).zip(self.sums.iter());
        for (out, (sums, total)) in self.out.chunks_exact_mut(head_size).zip(sums) {
            if total.sum == 0.0 {
                continue;
            }
            let total = simd.splat_f32s(total.sum);
            for (out, line) in out.chunks_mut(PAGE_SLOTS).zip(sums) {
                for sum in S::as_mut_simd_f32s(&mut line.0).0 {
                    *sum = simd.div_f32s(*sum, total);
                }
                out.copy_from_slice(&line.0[..out.len()]);
            }
        }
    }
}

/// Returns vector `v` of a line.
#[inline(always)]
fn vector<S: Simd>(line: &Line, v: usize) -> S::f32s {
    S::as_simd_f32s(&line.0).0[v]
}

/// Computes the scores of a chunk of Q queries with all slots of a page. Prefetches the next keys
/// or values meanwhile, because pages are not contiguous in memory.
#[inline(always)]
fn score<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    queries: &[f32],
    keys: &[Line],
    prefetch: PrefetchSlice,
    scores: &mut [Line],
) {
    let (queries, scores) = (&queries.as_chunks::<Q>().0[..keys.len()], &mut scores[..Q]);
    for first in (0..PAGE_SLOTS / S::F32_LANES).step_by(V) {
        let mut sums = [[simd.splat_f32s(0.0); V]; Q];
        // Indexed loop: with iterators, the compiler kept the sums in memory, which took twice as
        // long.
        for i in 0..keys.len() {
            if first == 0 {
                prefetch.element(i);
            }
            let mut line = [simd.splat_f32s(0.0); V];
            for (v, key) in line.iter_mut().enumerate() {
                *key = vector::<S>(&keys[i], first + v);
            }
            for q in 0..Q {
                let query = simd.splat_f32s(queries[i][q]);
                for v in 0..V {
                    sums[q][v] = simd.mul_add_f32s(line[v], query, sums[q][v]);
                }
            }
        }
        for q in 0..Q {
            S::as_mut_simd_f32s(&mut scores[q].0).0[first..first + V].copy_from_slice(&sums[q]);
        }
    }
}

/// Replaces the scores of a query by its softmax weights e^(score − max), after applying the cap.
/// The query's lines are `stride` apart.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [Line], stride: usize, cap: Option<f32>) -> SoftmaxSum {
    if let Some(cap) = cap {
        for line in scores.iter_mut().step_by(stride) {
            for score in line.0.iter_mut().filter(|score| **score != f32::NEG_INFINITY) {
                *score = (*score / cap).tanh() * cap;
            }
        }
    }
    let mut maxima = simd.splat_f32s(f32::NEG_INFINITY);
    for line in scores.iter().step_by(stride) {
        for v in 0..PAGE_SLOTS / S::F32_LANES {
            maxima = simd.max_f32s(maxima, vector::<S>(line, v));
        }
    }
    let max = simd.reduce_max_f32s(maxima);
    // `max` may ignore NaN: check, so that a NaN row is not taken for an empty one.
    if max == f32::NEG_INFINITY
        && !scores.iter().step_by(stride).flat_map(|line| line.0).any(f32::is_nan)
    {
        return SoftmaxSum::EMPTY;
    }
    let maxima = simd.splat_f32s(max);
    let mut sum = simd.splat_f32s(0.0);
    for line in scores.iter_mut().step_by(stride) {
        for score in S::as_mut_simd_f32s(&mut line.0).0 {
            *score = exp(simd, simd.sub_f32s(*score, maxima));
            sum = simd.add_f32s(sum, *score);
        }
    }
    SoftmaxSum { max, sum: simd.reduce_sum_f32s(sum) }
}

/// Adds the weighted values of a page to the sums of a chunk of Q queries.
#[inline(always)]
fn add_page<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    weights: &[Line],
    values: &[Line],
    prefetch: PrefetchSlice,
    sums: &mut [Line],
) {
    let Some(weights) = weights.first_chunk::<Q>() else { return };
    let value_lines = sums.len() / Q;
    for column in 0..value_lines {
        for first in (0..PAGE_SLOTS / S::F32_LANES).step_by(V) {
            let mut all = [[simd.splat_f32s(0.0); V]; Q];
            load::<S, Q, V>(sums, column, first, &mut all);
            for (slot, line) in
                values[column..].iter().step_by(value_lines).take(PAGE_SLOTS).enumerate()
            {
                if first == 0 {
                    prefetch.element(slot * value_lines + column);
                }
                let mut values = [simd.splat_f32s(0.0); V];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = vector::<S>(line, first + v);
                }
                for (weights, all) in weights.iter().zip(&mut all) {
                    let weight = simd.splat_f32s(weights.0[slot]);
                    for v in 0..V {
                        all[v] = simd.mul_add_f32s(values[v], weight, all[v]);
                    }
                }
            }
            store::<S, Q, V>(sums, column, first, &all);
        }
    }
}

/// Softmax weights by position.
#[derive(Clone, Copy)]
struct Weights<'a> {
    lines: &'a [Line],
    /// Number of lines between consecutive lines of one query.
    stride: usize,
}

/// Adds the weighted values of the slots of a page that one row sees to the sums of Q of its
/// queries.
#[inline(always)]
fn add_visible<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    weights: Weights,
    values: &[Line],
    sums: &mut [Line],
    view: &View,
    mask: &Mask,
    page: usize,
) {
    let value_lines = sums.len() / Q;
    for column in 0..value_lines {
        for first in (0..PAGE_SLOTS / S::F32_LANES).step_by(V) {
            let mut all = [[simd.splat_f32s(0.0); V]; Q];
            load::<S, Q, V>(sums, column, first, &mut all);
            for Visible { slot, position } in view.visible(mask, page) {
                let line = &values[slot * value_lines + column];
                let weights = &weights.lines[view.line(position) * weights.stride..][..Q];
                for (weights, all) in weights.iter().zip(&mut all) {
                    let weight = simd.splat_f32s(weights.0[position % PAGE_SLOTS]);
                    for (v, all) in all.iter_mut().enumerate() {
                        *all = simd.mul_add_f32s(vector::<S>(line, first + v), weight, *all);
                    }
                }
            }
            store::<S, Q, V>(sums, column, first, &all);
        }
    }
}

/// Loads V vectors of line `column` of each query's sums.
#[inline(always)]
fn load<S: Simd, const Q: usize, const V: usize>(
    sums: &[Line],
    column: usize,
    first: usize,
    all: &mut [[S::f32s; V]; Q],
) {
    for (lines, all) in sums.chunks_exact(sums.len() / Q).zip(all) {
        for (v, all) in all.iter_mut().enumerate() {
            *all = vector::<S>(&lines[column], first + v);
        }
    }
}

/// Stores V vectors of line `column` of each query's sums.
#[inline(always)]
fn store<S: Simd, const Q: usize, const V: usize>(
    sums: &mut [Line],
    column: usize,
    first: usize,
    all: &[[S::f32s; V]; Q],
) {
    let value_lines = sums.len() / Q;
    for (lines, all) in sums.chunks_exact_mut(value_lines).zip(all) {
        S::as_mut_simd_f32s(&mut lines[column].0).0[first..first + V].copy_from_slice(all);
    }
}
