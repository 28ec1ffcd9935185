//! The loops of attention: scores, softmax, values.
//!
//! Below there are loops where closures would be shorter: a closure is a function of its own, which
//! the compiler does not give the CPU's vectors.

use std::ops::Range;
use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::lines::{Line, PAGE_SLOTS};
use super::mask::Mask;
use super::page::Page;
use super::rules::AttentionParams;
use crate::exp::exp;
use crate::fetch::PrefetchSlice;
use crate::stack;

/// Some tokens of one sequence with the query heads that share one key head.
pub(super) struct Task<'a> {
    pub pages: &'a [Arc<Page>],
    /// The key head.
    pub head: usize,
    pub masks: &'a [Mask],
    /// Of the sequence, whole pages.
    pub places: Range<usize>,
    /// As [`arrange`] puts them.
    pub queries: &'a [f32],
    /// `[rows, heads that share · head]`, zeros.
    pub out: &'a mut [f32],
    /// `[rows, heads that share]`
    pub totals: &'a mut [Total],
    pub rules: AttentionParams<'a>,
    /// The keys that the next task begins with.
    pub then: PrefetchSlice,
}

/// The weights that a query gave: Σ e^(score − largest).
#[derive(Debug, Clone, Copy)]
pub(super) struct Total {
    pub largest: f32,
    pub sum: f32,
}

impl Total {
    /// Where there is nothing to see.
    pub const NOTHING: Self = Self { largest: f32::NEG_INFINITY, sum: 0.0 };
}

/// Room that tasks use one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// What every query scores with the positions of the segment, then their weights: of every
    /// [`PAGE_SLOTS`] positions a line of each query.
    scores: Vec<Line>,
    /// The same of a page by its slots.
    found: Vec<Line>,
    /// Of every query its sums, `[head]` in whole lines.
    sums: Vec<Line>,
    /// What a page stores in fewer bits, widened.
    wide: Vec<Line>,
}

/// How many queries go through a page together, at most: as many as there are registers for their
/// sums.
pub(super) struct Together;

impl Together {
    #[inline(always)]
    const fn with<S: Simd>() -> usize {
        match S::F32_LANES {
            // Two vectors of a line for each, and thirty-two registers.
            16 => 8,
            // Four vectors, and sixteen.
            8 => 3,
            _ => 4,
        }
    }
}

impl WithSimd for Together {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> usize {
        Self::with::<S>()
    }
}

/// So many queries in chunks of about the same size, `most` or fewer.
#[inline(always)]
fn chunks(queries: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let size = queries.div_ceil(queries.div_ceil(most).max(1)).max(1);
    (0..queries).step_by(size).map(move |first| first..queries.min(first + size))
}

/// Puts queries of `head` numbers in chunks of those that go through a page together, in each the
/// numbers of a column side by side.
pub(super) fn arrange<'q>(
    queries: impl Iterator<Item = &'q [f32]>,
    head: usize,
    most: usize,
    out: &mut [f32],
) {
    let mut queries = queries;
    for chunk in chunks(out.len() / head, most) {
        let out = &mut out[chunk.start * head..chunk.end * head];
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
        // A line has four vectors at least: four are taken at once, and keys and values come from
        // memory in one stream.
        match PAGE_SLOTS >= 4 * S::F32_LANES {
            true => self.task.run::<S, 4>(simd, self.scratch),
            false => self.task.run::<S, 2>(simd, self.scratch),
        }
    }
}

/// Calls a function with the number of queries of a chunk known to the compiler.
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
    /// A page's keys and its values, to be prefetched.
    #[inline(always)]
    fn prefetch(&self, page: usize) -> [PrefetchSlice; 2] {
        match self.pages.get(page) {
            Some(page) => page.prefetch(self.rules.layer, self.head),
            None => [PrefetchSlice::EMPTY; 2],
        }
    }

    /// With V vectors of a line at a time.
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S, scratch: &mut Scratch) {
        let Scratch { scores: all_scores, found, sums: all_sums, wide } = scratch;
        let layout = self.rules.layout;
        let (head, value_lines, most) =
            (layout.head_size, layout.value_lines(), const { Together::with::<S>() });
        let (group, total) = (self.rules.heads / layout.heads, self.totals.len());
        let (mut last, mut first, mut end) = (0, usize::MAX, 0);
        for mask in self.masks {
            let (context, path) = mask.within(self.rules.window, &self.places);
            if !context.is_empty() {
                (first, end) = (first.min(context.start), end.max(context.end));
            }
            if let (Some(own), Some(last)) = (path.first(), path.last()) {
                (first, end) = (first.min(*own), end.max(last + 1));
            }
            last = last.max(mask.position() + 1);
        }
        if first >= end {
            return;
        }
        let pages = first / PAGE_SLOTS..end.div_ceil(PAGE_SLOTS);
        let lines = (last.min(self.places.end) - self.places.start).div_ceil(PAGE_SLOTS);
        all_scores.clear();
        // What a query does not see weighs nothing.
        all_scores.resize(lines * total, Line([f32::NEG_INFINITY; PAGE_SLOTS]));
        found.resize(found.len().max(total), Line::default());
        all_sums.clear();
        all_sums.resize(total * value_lines, Line::default());
        let view = View { window: self.rules.window, places: self.places.clone() };

        for page in pages.clone() {
            let keys = self.pages[page].keys(self.rules.layer, self.head, wide);
            // After the last page's keys come the first one's values.
            let mut prefetch = match page + 1 < pages.end {
                true => self.prefetch(page + 1)[0],
                false => self.prefetch(pages.start)[1],
            };
            let whole = view.whole(self.masks, page);
            let scores = match whole {
                true => &mut all_scores[view.line(page * PAGE_SLOTS) * total..][..total],
                false => &mut found[..total],
            };
            for chunk in chunks(total, most) {
                let queries = &self.queries[chunk.start * head..chunk.end * head];
                let (scores, prefetch) = (
                    &mut scores[chunk.clone()],
                    std::mem::replace(&mut prefetch, PrefetchSlice::EMPTY),
                );
                with_chunk!(chunk.len(), score::<S, _, V>(simd, queries, keys, prefetch, scores));
            }
            if !whole {
                for (row, mask) in self.masks.iter().enumerate() {
                    for Seen { slot, place } in view.seen(mask, page) {
                        for n in row * group..(row + 1) * group {
                            all_scores[view.line(place) * total + n].0[place % PAGE_SLOTS] =
                                found[n].0[slot];
                        }
                    }
                }
            }
        }
        for (n, sum) in self.totals.iter_mut().enumerate() {
            *sum = weigh(simd, &mut all_scores[n..], total, self.rules.softcap);
        }
        for page in pages.clone() {
            let values = self.pages[page].values(self.rules.layer, self.head, wide);
            let mut prefetch = match page + 1 < pages.end {
                true => self.prefetch(page + 1)[1],
                false => self.then,
            };
            if view.whole(self.masks, page) {
                let weights = &all_scores[view.line(page * PAGE_SLOTS) * total..][..total];
                for chunk in chunks(total, most) {
                    let sums = &mut all_sums[chunk.start * value_lines..chunk.end * value_lines];
                    let (weights, prefetch) = (
                        &weights[chunk.clone()],
                        std::mem::replace(&mut prefetch, PrefetchSlice::EMPTY),
                    );
                    with_chunk!(chunk.len(), add::<S, _, V>(simd, weights, values, prefetch, sums));
                }
                continue;
            }
            for (row, mask) in self.masks.iter().enumerate() {
                for chunk in chunks(group, most) {
                    let first = row * group + chunk.start;
                    let sums = &mut all_sums[first * value_lines..][..chunk.len() * value_lines];
                    let weights = Weights { lines: &all_scores[first..], stride: total };
                    with_chunk!(
                        chunk.len(),
                        add_seen::<S, _, V>(simd, weights, values, sums, &view, mask, page)
                    );
                }
            }
            (0..PAGE_SLOTS * value_lines).for_each(|line| prefetch.element(line));
        }
        let sums = all_sums.chunks_exact_mut(value_lines).zip(self.totals.iter());
        for (out, (sums, total)) in self.out.chunks_exact_mut(head).zip(sums) {
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

/// What is looked at.
struct View {
    window: Option<usize>,
    places: Range<usize>,
}

/// A token that a row sees: a slot of a page, and its position in the sequence.
struct Seen {
    slot: usize,
    place: usize,
}

impl View {
    /// The line of a position's scores.
    #[inline(always)]
    fn line(&self, place: usize) -> usize {
        (place - self.places.start) / PAGE_SLOTS
    }

    /// Whether all rows see all of a page, each slot at its position.
    #[inline(always)]
    fn whole(&self, masks: &[Mask], page: usize) -> bool {
        let mut whole = true;
        for mask in masks {
            let (context, _) = mask.within(self.window, &self.places);
            whole &= context.start <= page * PAGE_SLOTS && (page + 1) * PAGE_SLOTS <= context.end;
        }
        whole
    }

    /// What a row sees of a page, in the order of the sequence.
    #[inline(always)]
    fn seen<'s>(&self, mask: &'s Mask, page: usize) -> impl Iterator<Item = Seen> + use<'s> {
        let (context, path) = mask.within(self.window, &self.places);
        let slots = page * PAGE_SLOTS..(page + 1) * PAGE_SLOTS;
        let known = context.start.max(slots.start)..context.end.min(slots.end);
        let behind = self.places.end.min(mask.position() + 1) - path.len();
        let own = path.iter().enumerate().filter(move |(_, slot)| slots.contains(slot));
        known
            .map(|place| Seen { slot: place % PAGE_SLOTS, place })
            .chain(own.map(move |(i, slot)| Seen { slot: slot % PAGE_SLOTS, place: behind + i }))
    }
}

/// Vector `v` of a line.
#[inline(always)]
fn vector<S: Simd>(line: &Line, v: usize) -> S::f32s {
    S::as_simd_f32s(&line.0).0[v]
}

/// What a chunk of Q queries scores with the slots of a page. The memory is asked for what
/// comes next meanwhile: pages lie apart.
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
        // By number: with iterators the compiler kept the sums in memory, and everything took twice
        // as long.
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

/// Makes a query's scores, capped, the weights e^(score − the largest). Its lines are `stride`
/// apart.
#[inline(always)]
fn weigh<S: Simd>(simd: S, scores: &mut [Line], stride: usize, cap: Option<f32>) -> Total {
    if let Some(cap) = cap {
        for line in scores.iter_mut().step_by(stride) {
            for score in line.0.iter_mut().filter(|score| **score != f32::NEG_INFINITY) {
                *score = (*score / cap).tanh() * cap;
            }
        }
    }
    let mut largest = simd.splat_f32s(f32::NEG_INFINITY);
    for line in scores.iter().step_by(stride) {
        for v in 0..PAGE_SLOTS / S::F32_LANES {
            largest = simd.max_f32s(largest, vector::<S>(line, v));
        }
    }
    let top = simd.reduce_max_f32s(largest);
    // The largest of numbers and none may be a number: what is broken must not pass for nothing.
    if top == f32::NEG_INFINITY
        && !scores.iter().step_by(stride).flat_map(|line| line.0).any(f32::is_nan)
    {
        return Total::NOTHING;
    }
    let largest = simd.splat_f32s(top);
    let mut sum = simd.splat_f32s(0.0);
    for line in scores.iter_mut().step_by(stride) {
        for score in S::as_mut_simd_f32s(&mut line.0).0 {
            *score = exp(simd, simd.sub_f32s(*score, largest));
            sum = simd.add_f32s(sum, *score);
        }
    }
    Total { largest: top, sum: simd.reduce_sum_f32s(sum) }
}

/// Adds to the sums of a chunk of Q queries the values of a page, by the weights of its slots.
#[inline(always)]
fn add<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    weights: &[Line],
    values: &[Line],
    prefetch: PrefetchSlice,
    sums: &mut [Line],
) {
    let Some(weights) = weights.first_chunk::<Q>() else { return };
    let value_lines = sums.len() / Q;
    for part in 0..value_lines {
        for first in (0..PAGE_SLOTS / S::F32_LANES).step_by(V) {
            let mut all = [[simd.splat_f32s(0.0); V]; Q];
            load::<S, Q, V>(sums, part, first, &mut all);
            for (slot, line) in
                values[part..].iter().step_by(value_lines).take(PAGE_SLOTS).enumerate()
            {
                if first == 0 {
                    prefetch.element(slot * value_lines + part);
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
            store::<S, Q, V>(sums, part, first, &all);
        }
    }
}

/// The weights of some queries side by side, by position.
#[derive(Clone, Copy)]
struct Weights<'a> {
    lines: &'a [Line],
    /// Lines from those of a page's positions to the next one's.
    stride: usize,
}

/// Adds to the sums of Q queries of one row the values that it sees of a page.
#[inline(always)]
fn add_seen<S: Simd, const Q: usize, const V: usize>(
    simd: S,
    weights: Weights,
    values: &[Line],
    sums: &mut [Line],
    view: &View,
    mask: &Mask,
    page: usize,
) {
    let value_lines = sums.len() / Q;
    for part in 0..value_lines {
        for first in (0..PAGE_SLOTS / S::F32_LANES).step_by(V) {
            let mut all = [[simd.splat_f32s(0.0); V]; Q];
            load::<S, Q, V>(sums, part, first, &mut all);
            for Seen { slot, place } in view.seen(mask, page) {
                let line = &values[slot * value_lines + part];
                let weights = &weights.lines[view.line(place) * weights.stride..][..Q];
                for (weights, all) in weights.iter().zip(&mut all) {
                    let weight = simd.splat_f32s(weights.0[place % PAGE_SLOTS]);
                    for (v, all) in all.iter_mut().enumerate() {
                        *all = simd.mul_add_f32s(vector::<S>(line, first + v), weight, *all);
                    }
                }
            }
            store::<S, Q, V>(sums, part, first, &all);
        }
    }
}

/// V vectors of a part of each query's sums.
#[inline(always)]
fn load<S: Simd, const Q: usize, const V: usize>(
    sums: &[Line],
    part: usize,
    first: usize,
    all: &mut [[S::f32s; V]; Q],
) {
    for (lines, all) in sums.chunks_exact(sums.len() / Q).zip(all) {
        for (v, all) in all.iter_mut().enumerate() {
            *all = vector::<S>(&lines[part], first + v);
        }
    }
}

/// The other method.
#[inline(always)]
fn store<S: Simd, const Q: usize, const V: usize>(
    sums: &mut [Line],
    part: usize,
    first: usize,
    all: &[[S::f32s; V]; Q],
) {
    let value_lines = sums.len() / Q;
    for (lines, all) in sums.chunks_exact_mut(value_lines).zip(all) {
        S::as_mut_simd_f32s(&mut lines[part].0).0[first..first + V].copy_from_slice(all);
    }
}
