//! The loops of attention: scores, softmax, values.
//!
//! Below there are loops where closures would be shorter: a closure is a function of its own, which the compiler does
//! not give the processor's vectors.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::Rules;
use crate::cache::Pages;
use crate::cache::numbers::Line;
use crate::cache::pages::PAGE;
use crate::packed::fetch::fetch_this;
use crate::packed::stack;
use crate::transformer::exp::exp;
use crate::transformer::pass::Sight;

/// Heads that share a key head go through a page so many at a time.
const HEADS: usize = 4;

/// Some rows of one text with the query heads that share one key head.
pub(super) struct Task<'a> {
    pub pages: &'a Pages,
    /// The key head.
    pub head: usize,
    pub sights: &'a [Sight],
    /// Of the text.
    pub places: Range<usize>,
    /// Of each row, a stride apart, `[heads · head]`.
    pub queries: &'a [f32],
    /// `[rows, heads that share · head]`, zeros.
    pub out: &'a mut [f32],
    /// `[rows, heads that share]`
    pub totals: &'a mut [Total],
    pub rules: Rules,
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
    /// Of every query what it scores with the tokens of its text, then their weights: whole lines each.
    scores: Vec<Line>,
    /// Of every query its sums, `[head]` in whole lines.
    sums: Vec<Line>,
    /// What a page holds in fewer bits, widened.
    wide: Vec<Line>,
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
        // A line has four vectors at least: four are taken at once, and keys and values come from memory in one stream, which is
        // worth more than room in registers for all sums.
        match PAGE >= 4 * S::F32_LANES {
            true => self.task.run::<S, 4>(simd, self.scratch),
            false => self.task.run::<S, 2>(simd, self.scratch),
        }
    }
}

/// The part of a page that a row sees: its tokens from `from` on are in the page's slots from `slot` on.
struct Seen {
    from: usize,
    slot: usize,
    count: usize,
}

impl Task<'_> {
    /// With V vectors of a line at a time.
    #[inline(always)]
    fn run<S: Simd, const V: usize>(self, simd: S, scratch: &mut Scratch) {
        let Scratch { scores: all_scores, sums: all_sums, wide } = scratch;
        let form = self.pages.form();
        let (head, value_lines, window) = (form.head, form.value_lines(), self.rules.window);
        let group = self.rules.heads / form.heads;
        let (mut longest, mut first, mut end) = (0, usize::MAX, 0);
        for sight in self.sights {
            let (context, path) = sight.within(window, &self.places);
            longest = longest.max(context.len() + path.len());
            if !context.is_empty() {
                (first, end) = (first.min(context.start), end.max(context.end));
            }
            if let (Some(own), Some(last)) = (path.first(), path.last()) {
                (first, end) = (first.min(*own), end.max(last + 1));
            }
        }
        if longest == 0 {
            return;
        }
        let pages = first / PAGE..end.div_ceil(PAGE);
        let view = &View { window, places: self.places };
        let lines = longest.div_ceil(PAGE);
        all_scores.clear();
        // What is behind a query's tokens weighs nothing.
        all_scores.resize(self.sights.len() * group * lines, Line([f32::NEG_INFINITY; PAGE]));
        all_sums.clear();
        all_sums.resize(self.sights.len() * group * value_lines, Line::default());

        for page in pages.clone() {
            let keys = self.pages.keys(page, self.rules.layer, self.head, wide);
            // Behind the last page's keys come the first one's values.
            let mut next = match page + 1 < pages.end {
                true => self.pages.lines(page + 1, self.rules.layer, self.head)[0],
                false => self.pages.lines(pages.start, self.rules.layer, self.head)[1],
            };
            for (row, sight) in self.sights.iter().enumerate() {
                if !sees(sight, view, page) {
                    continue;
                }
                let queries =
                    &self.queries[row * self.rules.stride + self.head * group * head..][..group * head];
                let scores = &mut all_scores[row * group * lines..][..group * lines];
                for (queries, scores) in queries.chunks(HEADS * head).zip(scores.chunks_mut(HEADS * lines)) {
                    let keys = [keys, std::mem::take(&mut next)];
                    match queries.len() / head {
                        1 => score::<S, 1, V>(simd, queries, keys, scores, sight, view, page),
                        2 => score::<S, 2, V>(simd, queries, keys, scores, sight, view, page),
                        3 => score::<S, 3, V>(simd, queries, keys, scores, sight, view, page),
                        _ => score::<S, HEADS, V>(simd, queries, keys, scores, sight, view, page),
                    }
                }
            }
        }
        for (scores, total) in all_scores.chunks_exact_mut(lines).zip(self.totals.iter_mut()) {
            *total = weigh(simd, scores, self.rules.softcap);
        }
        for page in pages.clone() {
            let values = self.pages.values(page, self.rules.layer, self.head, wide);
            let mut next = match page + 1 < pages.end {
                true => self.pages.lines(page + 1, self.rules.layer, self.head)[1],
                false => &[],
            };
            for (row, sight) in self.sights.iter().enumerate() {
                let weights = &all_scores[row * group * lines..][..group * lines];
                let sums = &mut all_sums[row * group * value_lines..][..group * value_lines];
                let heads = weights.chunks(HEADS * lines).zip(sums.chunks_mut(HEADS * value_lines));
                for (weights, sums) in heads {
                    for seen in seen(sight, view, page) {
                        let values = [values, std::mem::take(&mut next)];
                        match sums.len() / value_lines {
                            1 => add::<S, 1, V>(simd, weights, values, sums, &seen),
                            2 => add::<S, 2, V>(simd, weights, values, sums, &seen),
                            3 => add::<S, 3, V>(simd, weights, values, sums, &seen),
                            _ => add::<S, HEADS, V>(simd, weights, values, sums, &seen),
                        }
                    }
                }
            }
        }
        let sums = all_sums.chunks_exact(value_lines).zip(self.totals.iter());
        for (out, (sums, total)) in self.out.chunks_exact_mut(head).zip(sums) {
            if total.sum == 0.0 {
                continue;
            }
            for (out, sum) in out.chunks_mut(PAGE).zip(sums) {
                for (out, sum) in out.iter_mut().zip(sum.0) {
                    *out = sum / total.sum;
                }
            }
        }
    }
}

/// What is looked at.
struct View {
    window: Option<usize>,
    places: Range<usize>,
}

/// Whether a row sees anything of a page.
#[inline(always)]
fn sees(sight: &Sight, view: &View, page: usize) -> bool {
    seen(sight, view, page).next().is_some()
}

/// What a row sees of a page, in the order of the text.
#[inline(always)]
fn seen<'s>(sight: &'s Sight, view: &View, page: usize) -> impl Iterator<Item = Seen> + use<'s> {
    let (context, path) = sight.within(view.window, &view.places);
    let (from, to) = (context.start.max(page * PAGE), context.end.min((page + 1) * PAGE));
    let known = context.len();
    let part = (from < to).then(|| Seen { from: from - context.start, slot: from % PAGE, count: to - from });
    let own = path.iter().enumerate().filter(move |(_, slot)| **slot / PAGE == page);
    part.into_iter().chain(own.map(move |(i, slot)| Seen { from: known + i, slot: slot % PAGE, count: 1 }))
}

/// Vector `v` of a line.
#[inline(always)]
fn vector<S: Simd>(line: &Line, v: usize) -> S::f32s {
    S::as_simd_f32s(&line.0).0[v]
}

/// Number `i` of lines that follow each other.
#[inline(always)]
fn number(lines: &[Line], i: usize) -> f32 {
    lines[i / PAGE].0[i % PAGE]
}

/// What N queries of a row score with the tokens of a page that it sees. The memory is asked for the `next` lines meanwhile: pages
/// lie apart.
#[inline(always)]
fn score<S: Simd, const N: usize, const V: usize>(
    simd: S,
    queries: &[f32],
    [keys, next]: [&[Line]; 2],
    scores: &mut [Line],
    sight: &Sight,
    view: &View,
    page: usize,
) {
    let head = keys.len();
    let mut found = [Line::default(); N];
    for first in (0..PAGE / S::F32_LANES).step_by(V) {
        let mut sums = [[simd.splat_f32s(0.0); V]; N];
        for (i, line) in keys.iter().enumerate() {
            if let Some(line) = next.get(i).filter(|_| first == 0) {
                fetch_this(line);
            }
            let mut keys = [simd.splat_f32s(0.0); V];
            for (v, key) in keys.iter_mut().enumerate() {
                *key = vector::<S>(line, first + v);
            }
            for n in 0..N {
                let query = simd.splat_f32s(queries[n * head + i]);
                for v in 0..V {
                    sums[n][v] = simd.mul_add_f32s(keys[v], query, sums[n][v]);
                }
            }
        }
        for n in 0..N {
            S::as_mut_simd_f32s(&mut found[n].0).0[first..first + V].copy_from_slice(&sums[n]);
        }
    }
    let lines = scores.len() / N;
    for seen in seen(sight, view, page) {
        for n in 0..N {
            let found = &found[n].0[seen.slot..seen.slot + seen.count];
            // Slots in their order are mostly places in theirs, or go over into the next line.
            let (line, place) = (n * lines + seen.from / PAGE, seen.from % PAGE);
            let (front, back) = found.split_at(found.len().min(PAGE - place));
            scores[line].0[place..place + front.len()].copy_from_slice(front);
            if !back.is_empty() {
                scores[line + 1].0[..back.len()].copy_from_slice(back);
            }
        }
    }
}

/// Makes scores, capped, the weights e^(score − the largest).
#[inline(always)]
fn weigh<S: Simd>(simd: S, scores: &mut [Line], cap: Option<f32>) -> Total {
    if let Some(cap) = cap {
        for line in scores.iter_mut() {
            for score in line.0.iter_mut().filter(|score| **score != f32::NEG_INFINITY) {
                *score = (*score / cap).tanh() * cap;
            }
        }
    }
    let mut largest = simd.splat_f32s(f32::NEG_INFINITY);
    for line in scores.iter() {
        for v in 0..PAGE / S::F32_LANES {
            largest = simd.max_f32s(largest, vector::<S>(line, v));
        }
    }
    let top = simd.reduce_max_f32s(largest);
    // The largest of numbers and none may be a number: what is broken must not pass for nothing.
    if top == f32::NEG_INFINITY && !scores.iter().flat_map(|line| line.0).any(f32::is_nan) {
        return Total::NOTHING;
    }
    let largest = simd.splat_f32s(top);
    let mut sum = simd.splat_f32s(0.0);
    for line in scores.iter_mut() {
        for score in S::as_mut_simd_f32s(&mut line.0).0 {
            *score = exp(simd, simd.sub_f32s(*score, largest));
            sum = simd.add_f32s(sum, *score);
        }
    }
    Total { largest: top, sum: simd.reduce_sum_f32s(sum) }
}

/// Adds to the sums of N heads of a row the values that it sees, by their weights; `next` as in [`score`].
#[inline(always)]
fn add<S: Simd, const N: usize, const V: usize>(
    simd: S,
    weights: &[Line],
    [values, next]: [&[Line]; 2],
    sums: &mut [Line],
    seen: &Seen,
) {
    let (lines, value_lines) = (weights.len() / N, sums.len() / N);
    for part in 0..value_lines {
        for first in (0..PAGE / S::F32_LANES).step_by(V) {
            let mut all = [[simd.splat_f32s(0.0); V]; N];
            for n in 0..N {
                for (v, sum) in all[n].iter_mut().enumerate() {
                    *sum = vector::<S>(&sums[n * value_lines + part], first + v);
                }
            }
            for i in 0..seen.count {
                let place = (seen.slot + i) * value_lines + part;
                if let Some(line) = next.get(place).filter(|_| first == 0) {
                    fetch_this(line);
                }
                let line = &values[place];
                let mut values = [simd.splat_f32s(0.0); V];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = vector::<S>(line, first + v);
                }
                for n in 0..N {
                    let weight = number(&weights[n * lines..(n + 1) * lines], seen.from + i);
                    let weight = simd.splat_f32s(weight);
                    for v in 0..V {
                        all[n][v] = simd.mul_add_f32s(values[v], weight, all[n][v]);
                    }
                }
            }
            for n in 0..N {
                let sums = &mut sums[n * value_lines + part].0;
                S::as_mut_simd_f32s(sums).0[first..first + V].copy_from_slice(&all[n]);
            }
        }
    }
}
