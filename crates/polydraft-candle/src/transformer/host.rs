//! Attention on a processor, of all texts of a pass at once.
//!
//! Problem: each token attends to its own text, which lies in pages, and in a tree to its ancestors among its fellows.
//! As tensor operations that is a dozen per text and layer, with masks and copies; and a product of another shape sums
//! in another order.
//! Method: ours. One loop over some rows, a key head and a stretch of the text. It goes through the stretch's pages once
//! for the scores and once for the values; what a row does not see is skipped, not masked. What the stretches gave is put
//! together by their weights (Milakov and Gimelshein 2018), in the order of the text. A row's sums go in that order too,
//! number by number, and stretches are the same for every row: so they are the same to the last bit whatever else is in
//! the pass, in the tree or in the chunk, and wherever slots were moved. What is computed for a token depends on the text
//! up to it only.
//! Complexity: `rows · slots · heads · head` multiply-adds, twice; every key and value is read from memory once for
//! [`ROWS`] rows.

mod kernel;

use std::ops::Range;

use candle_core::Tensor;
use pulp::Arch;

use super::pass::{Part, Sight};
use crate::cache::{Cache, Pages};
use crate::packed::pool;
use kernel::{Scratch, Task, Total};

/// Rows of one text that go through the pages together.
const ROWS: usize = 8;
/// Places of a text that are gone through at once: few enough for their scores to stay in a core's cache, and for threads
/// to share a long text.
const STRETCH: usize = 512;
/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 14;

/// How queries meet keys in one layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub layer: usize,
    /// Of queries.
    pub heads: usize,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
}

/// The pages of a part.
fn pages<'p>(part: &'p Part) -> candle_core::Result<&'p Pages> {
    match &*part.cache {
        Cache::Pages(pages) => Ok(pages),
        Cache::Tensors(_) => candle_core::bail!("attention: expected a cache in memory, got one on a card"),
    }
}

/// The numbers of `[rows, all widths]` in parts of these widths, `[rows, width]` each.
pub(super) fn separate<const N: usize>(
    mixed: &Tensor,
    widths: [usize; N],
) -> candle_core::Result<[Vec<f32>; N]> {
    let numbers = mixed.flatten_all()?.to_vec1::<f32>()?;
    let all: usize = widths.iter().sum();
    let rows = numbers.len() / all.max(1);
    let mut parts = widths.map(|width| Vec::with_capacity(rows * width));
    for mut row in numbers.chunks_exact(all.max(1)) {
        for (part, width) in parts.iter_mut().zip(widths) {
            let (own, rest) = row.split_at(width);
            part.extend_from_slice(own);
            row = rest;
        }
    }
    Ok(parts)
}

/// Writes the keys and values `[rows, key heads · head]` of all parts.
pub(super) fn write(
    parts: &mut [Part],
    layer: usize,
    keys: &[f32],
    values: &[f32],
) -> candle_core::Result<()> {
    let rows: usize = parts.iter().map(|part| part.tokens.len()).sum();
    let width = keys.len() / rows.max(1);
    let mut rows = keys.chunks_exact(width).zip(values.chunks_exact(width));
    for part in parts {
        let slots = part.start..part.end();
        let Cache::Pages(pages) = &mut *part.cache else {
            candle_core::bail!("attention: expected a cache in memory, got one on a card")
        };
        for (slot, (key, value)) in slots.zip(&mut rows) {
            pages.write(layer, slot, key, value);
        }
    }
    Ok(())
}

/// Rows of one part, and which rows of the pass they are.
struct Block<'a> {
    pages: &'a Pages,
    sights: &'a [Sight],
    rows: Range<usize>,
    /// The numbers of the stretches of text that they see.
    stretches: Range<usize>,
}

/// The numbers of the stretches of text that some rows see.
fn stretches(sights: &[Sight], window: Option<usize>) -> Range<usize> {
    let first = sights.iter().map(|sight| sight.first(window)).min().unwrap_or(0);
    let last = sights.iter().map(Sight::position).max().unwrap_or(0);
    first / STRETCH..last / STRETCH + 1
}

/// The values that the queries `[rows, heads · head]`, scaled, find in their texts: as many rows of the same width.
pub(super) fn attend(parts: &[Part], queries: &[f32], rules: Rules) -> candle_core::Result<Vec<f32>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let form = pages(first)?.form();
    let (width, threads) = (rules.heads * form.head, rayon::current_num_threads());
    let work: usize = parts.iter().map(|part| part.tokens.len() * part.end() * width).sum();
    let parallel = threads > 1 && work > GRAIN;
    // Fewer rows at once where threads would have nothing to do.
    let mut rows = ROWS;
    let tasks = |rows| {
        let of = |part: &Part| part.tokens.len().div_ceil(rows) * part.end().div_ceil(STRETCH);
        parts.iter().map(of).sum::<usize>() * form.heads
    };
    while parallel && rows > 1 && tasks(rows) < 4 * threads {
        rows /= 2;
    }

    let mut blocks = Vec::new();
    let mut row = 0;
    for part in parts {
        let pages = pages(part)?;
        for sights in part.sights.chunks(rows) {
            let stretches = stretches(sights, rules.window);
            blocks.push(Block { pages, sights, rows: row..row + sights.len(), stretches });
            row += sights.len();
        }
    }
    // Behind each other: of each block, of each stretch, of each key head, of each row the heads that share the key head.
    let (group, shared) = (width / form.heads, rules.heads / form.heads);
    let rows: usize = blocks.iter().map(|block| block.stretches.len() * block.rows.len()).sum();
    let mut found = vec![0f32; rows * width];
    let mut totals = vec![Total::NOTHING; rows * rules.heads];
    let mut tasks = Vec::with_capacity(blocks.len() * form.heads);
    let (mut rest, mut rest_of_totals) = (&mut found[..], &mut totals[..]);
    for Block { pages, sights, rows, stretches } in &blocks {
        for stretch in stretches.clone() {
            for head in 0..form.heads {
                let (out, totals);
                (out, rest) = rest.split_at_mut(rows.len() * group);
                (totals, rest_of_totals) = rest_of_totals.split_at_mut(rows.len() * shared);
                let queries = &queries[rows.start * width..rows.end * width];
                let places = stretch * STRETCH..(stretch + 1) * STRETCH;
                tasks.push(Task { pages, head, sights, places, queries, out, totals, rules });
            }
        }
    }
    let arch = Arch::new();
    let least = GRAIN / (work / tasks.len().max(1)).max(1) + 1;
    pool::each(tasks, least, |scratch: &mut Scratch, task| arch.dispatch(kernel::Attend { task, scratch }));
    let alone = |block: &Block| block.sights.len() == 1 && block.stretches.len() == 1;
    if blocks.iter().all(alone) {
        return Ok(found);
    }
    let mut by_row = vec![0f32; queries.len()];
    let mut parts = found.chunks_exact(form.head).zip(&totals);
    for block in &blocks {
        let out = &mut by_row[block.rows.start * width..block.rows.end * width];
        let mut sums = vec![Total::NOTHING; block.rows.len() * rules.heads];
        for _ in block.stretches.clone() {
            for head in 0..form.heads {
                for row in 0..block.rows.len() {
                    for own in 0..shared {
                        let Some((part, total)) = parts.next() else { return Ok(by_row) };
                        let place = row * rules.heads + head * shared + own;
                        join(&mut out[place * form.head..][..form.head], &mut sums[place], part, total);
                    }
                }
            }
        }
    }
    Ok(by_row)
}

/// Adds what a stretch gave to what those before it gave, both means of values by their weights.
fn join(mean: &mut [f32], sum: &mut Total, part: &[f32], total: &Total) {
    if total.sum == 0.0 {
        return;
    }
    if sum.sum == 0.0 {
        mean.copy_from_slice(part);
        *sum = *total;
        return;
    }
    let largest = sum.largest.max(total.largest);
    let (before, more) =
        (sum.sum * (sum.largest - largest).exp(), total.sum * (total.largest - largest).exp());
    let all = before + more;
    let (keep, add) = (before / all, more / all);
    for (mean, part) in mean.iter_mut().zip(part) {
        *mean = *mean * keep + part * add;
    }
    *sum = Total { largest, sum: all };
}

/// Rotates every head of `rows [n, heads · head]` by its row's cosines and sines `[n, head / 2]`, and multiplies by
/// `scale`.
pub(super) fn rotate(
    rows: &mut [f32],
    width: usize,
    head: usize,
    rotation: Option<&[Vec<f32>; 2]>,
    scale: f32,
) {
    if let Some([cos, sin]) = rotation {
        let angles = cos.chunks_exact(head / 2).zip(sin.chunks_exact(head / 2));
        for (row, (cos, sin)) in rows.chunks_exact_mut(width).zip(angles) {
            for head in row.chunks_exact_mut(head) {
                let (first, second) = head.split_at_mut(cos.len());
                for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
    if scale != 1.0 {
        rows.iter_mut().for_each(|value| *value *= scale);
    }
}

#[cfg(test)]
mod tests;
