//! Attention over a paged KV cache, of all sequences of a pass at once.
//!
//! Problem: each token attends to its own sequence, which lies in pages, and in a tree to its
//! ancestors. As tensor operations that is a dozen per sequence and layer, with masks and copies;
//! and a product of another shape sums in another order.
//! Method: ours. One loop over some tokens, a key head and a segment of the sequence. It goes
//! through the segment's pages once for the scores and once for the values; what a token does not
//! see is skipped, not masked. The results of the segments are joined by their weights (Milakov and
//! Gimelshein 2018), in the order of the sequence. A token's sums go in that order too, number by
//! number, and segments are the same for every token: so they are the same to the last bit whatever
//! else is in the pass, in the tree or in the chunk, and wherever slots were moved. What is
//! computed for a token depends on the sequence up to it only.
//! Complexity: `rows · slots · heads · head` multiply-adds, twice; every key and value is read from
//! memory once for `ROWS` rows. With one row the memory is the limit (17 GB/s on one thread of an
//! EPYC with AVX-512, which reads 25 to 30), with several arithmetic (37 multiply-adds a nanosecond
//! of 46; `benches/attention.rs`).

mod join;
mod kernel;
mod lines;
mod mask;
mod page;
mod rotate;
mod rules;
mod segments;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use pulp::Arch;

use crate::fetch::PrefetchSlice;
use crate::pool;
use join::Join;
use kernel::{Scratch, Task, Total};
pub use lines::{CacheType, PAGE_SLOTS};
pub use mask::Mask;
pub use page::{Page, PageLayout};
pub use rotate::{rotate, rotate_neighbours};
pub use rules::AttentionParams;
use segments::{beginning, segment_at, segments};

/// Rows of one sequence that go through the pages together.
const ROWS: usize = 8;
/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 14;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// One sequence's tokens in a pass.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// Its KV cache.
    pub pages: &'a [Arc<Page>],
    /// What each of the tokens sees.
    pub masks: &'a [Mask],
    /// Slots up to the last token's.
    pub end: usize,
}

/// Rows of one part, and which rows of the pass they are.
struct Block<'a> {
    pages: &'a [Arc<Page>],
    masks: &'a [Mask],
    rows: Range<usize>,
    /// The numbers of the segments that they see.
    segments: Range<usize>,
}

/// The values `[rows, heads · head]` that the queries, scaled, find in their sequences; a row is a
/// token.
///
/// # Panics
/// Masks of slots that the pages do not have; fewer queries than masks.
pub fn attend(parts: &[SequenceInput], queries: &[f32], rules: AttentionParams) -> Vec<f32> {
    let layout = rules.layout;
    let (width, threads) = (rules.heads * layout.head_size, rayon::current_num_threads());
    let work: usize = parts.iter().map(|part| part.masks.len() * part.end * width).sum();
    let parallel = threads > 1 && work > GRAIN;
    // Fewer rows at once where threads would have nothing to do.
    let mut rows = ROWS;
    let tasks = |rows| {
        let of =
            |part: &SequenceInput| part.masks.len().div_ceil(rows) * (segment_at(part.end) + 1);
        parts.iter().map(of).sum::<usize>() * layout.heads
    };
    while parallel && rows > 1 && tasks(rows) < 4 * threads {
        rows /= 2;
    }

    let mut blocks = Vec::new();
    let mut row = 0;
    for part in parts {
        for masks in part.masks.chunks(rows) {
            let segments = segments(masks, rules.window);
            blocks.push(Block { pages: part.pages, masks, rows: row..row + masks.len(), segments });
            row += masks.len();
        }
    }
    // One after the other: of each block, of each segment, of each key head, of each row the heads
    // that share the key head.
    let (group, shared) = (width / layout.heads, rules.heads / layout.heads);
    let rows: usize = blocks.iter().map(|block| block.segments.len() * block.rows.len()).sum();
    let mut found = vec![0f32; rows * width];
    let mut totals = vec![Total::NOTHING; rows * rules.heads];
    let count: usize = blocks.iter().map(|block| block.segments.len()).sum();
    let mut tasks: Vec<Task> = Vec::with_capacity(count * layout.heads);
    let (mut rest, mut rest_of_totals) = (&mut found[..], &mut totals[..]);
    let arranged = arranged(&blocks, queries, rules, [layout.heads, layout.head_size]);
    for Block { pages, masks, rows, segments } in &blocks {
        let queries = &arranged[rows.start * width..rows.end * width];
        for segment in segments.clone() {
            for (head, queries) in queries.chunks_exact(rows.len() * group).enumerate() {
                let (out, totals);
                (out, rest) = rest.split_at_mut(rows.len() * group);
                (totals, rest_of_totals) = rest_of_totals.split_at_mut(rows.len() * shared);
                let places = beginning(segment)..beginning(segment + 1);
                if let Some(before) = tasks.last_mut() {
                    let page = pages.get(places.start / PAGE_SLOTS);
                    let keys = page.map(|page| page.prefetch(rules.layer, head)[0]);
                    before.then = keys.unwrap_or(PrefetchSlice::EMPTY);
                }
                let then = PrefetchSlice::EMPTY;
                tasks.push(Task { pages, head, masks, places, queries, out, totals, rules, then });
            }
        }
    }
    let arch = Arch::new();
    let least = GRAIN / (work / tasks.len().max(1)).max(1) + 1;
    pool::parallel_for_each(tasks, least, |task| {
        SCRATCH.with_borrow_mut(|scratch| arch.dispatch(kernel::Attend { task, scratch }));
    });
    let alone = |block: &Block| block.masks.len() == 1 && block.segments.len() == 1;
    if rules.sinks.is_none() && blocks.iter().all(alone) {
        return found;
    }
    let mut by_row = vec![0f32; row * width];
    let (mut joins, mut rest) =
        (Vec::with_capacity(blocks.len()), (&mut by_row[..], &found[..], &totals[..]));
    for block in &blocks {
        let (rows, segments) = (block.rows.len(), block.segments.len());
        let (out, found, totals);
        (out, rest.0) = rest.0.split_at_mut(rows * width);
        (found, rest.1) = rest.1.split_at(segments * rows * width);
        (totals, rest.2) = rest.2.split_at(segments * rows * rules.heads);
        let (head, heads, sinks) = (layout.head_size, rules.heads, rules.sinks);
        joins.push(Join { found, totals, shared, head, out, heads, sinks });
    }
    pool::parallel_for_each(joins, GRAIN * blocks.len() / rows.max(1) / width + 1, |join| {
        arch.dispatch(join)
    });
    by_row
}

/// Of each block, of each key head its queries as the loops want them.
fn arranged(
    blocks: &[Block],
    queries: &[f32],
    rules: AttentionParams,
    [heads, head]: [usize; 2],
) -> Vec<f32> {
    let (width, together) = (rules.heads * head, Arch::new().dispatch(kernel::Together));
    let rows = blocks.last().map_or(0, |block| block.rows.end);
    let (mut arranged, group) = (vec![0f32; rows * width], width / heads);
    let (mut parts, mut rest) = (Vec::with_capacity(blocks.len()), &mut arranged[..]);
    for Block { rows, .. } in blocks {
        let out;
        (out, rest) = rest.split_at_mut(rows.len() * width);
        parts.push((rows.clone(), out));
    }
    pool::parallel_for_each(
        parts,
        GRAIN * blocks.len() / (rows * width).max(1) + 1,
        |(rows, out)| {
            for (own, out) in out.chunks_exact_mut(rows.len() * group).enumerate() {
                let of_row = |row: usize| {
                    queries[row * rules.stride + own * group..][..group].chunks_exact(head)
                };
                kernel::arrange(rows.clone().flat_map(of_row), head, together, out);
            }
        },
    );
    arranged
}

#[cfg(test)]
mod tests;
