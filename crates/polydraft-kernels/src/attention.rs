//! Attention of all sequences of a pass over a paged KV cache.
//!
//! Problem: a token attends to its own sequence, which is stored in pages, and in a tree only to
//! its ancestors. With tensor operations that takes a dozen operations per sequence and layer, with
//! masks and copies, and the order of summation depends on the shapes.
//!
//! Method: our own. Positions of a sequence are divided into fixed segments (`segments`), and the
//! tokens of a sequence into blocks of at most [`MAX_ROWS`] rows. One task (`kernel`) computes a
//! block of rows, a key head and a segment:
//! 1. Scores of all visible slots, in one pass over the segment's keys. Slots that a token does not
//!    see are skipped.
//! 2. Softmax weights, relative to the segment's maximum score.
//! 3. The weighted mean of the values, in one pass over the segment's values.
//!
//! Then the means of all segments are joined by their weights (`join`; Milakov and Gimelshein
//! 2018).
//!
//! All sums run over the positions in the order of the sequence, and segments are the same for
//! every token. So a token's output depends only on its sequence up to it: it is bitwise the same
//! for any batch, tree and chunking of the prompt, and wherever the slots are in the cache.
//!
//! Complexity: 2 · rows · slots · heads · head size multiply-adds. Every key and value is read from
//! memory once per [`MAX_ROWS`] rows. With one row, memory is the limit (17 GB/s on one thread of
//! an EPYC with AVX-512, which reads 25 to 30); with several, arithmetic is (37 multiply-adds per
//! nanosecond of 46; `benches/attention.rs`).

mod join;
mod kernel;
mod lines;
mod mask;
mod page;
mod params;
mod rotate;
mod segments;
mod view;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use pulp::Arch;

use crate::fetch::PrefetchSlice;
use crate::pool;
use join::Join;
use kernel::{Scratch, SoftmaxSum, Task};
pub use lines::{CacheType, PAGE_SLOTS};
pub use mask::Mask;
pub use page::{Page, PageLayout};
pub use params::AttentionParams;
pub use rotate::{rotate, rotate_neighbours};
use segments::{segment_at, segment_start, segments};

/// Maximum number of rows of one sequence in a task.
const MAX_ROWS: usize = 8;
/// Minimum number of multiply-adds per thread.
const MIN_WORK: usize = 1 << 14;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Tokens of one sequence in a pass, with its KV cache.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// Pages of the KV cache.
    pub pages: &'a [Arc<Page>],
    /// Mask of each token.
    pub masks: &'a [Mask],
    /// Number of slots up to the last token's.
    pub end: usize,
}

/// A block of rows of one sequence.
struct Block<'a> {
    pages: &'a [Arc<Page>],
    masks: &'a [Mask],
    /// Rows in the pass.
    rows: Range<usize>,
    /// Segments that at least one of the rows sees.
    segments: Range<usize>,
}

/// Computes attention: returns `[rows, heads · head size]`, one row per token of all sequences.
/// `queries` must already be scaled.
///
/// # Panics
/// Masks with slots that the pages do not have; fewer queries than masks.
pub fn attend(sequences: &[SequenceInput], queries: &[f32], params: AttentionParams) -> Vec<f32> {
    let layout = params.layout;
    let (width, threads) = (params.heads * layout.head_size, rayon::current_num_threads());
    let work: usize =
        sequences.iter().map(|sequence| sequence.masks.len() * sequence.end * width).sum();
    let parallel = threads > 1 && work > MIN_WORK;
    // Use smaller blocks if there would be too few tasks for the threads.
    let mut block_rows = MAX_ROWS;
    let task_count = |rows| {
        let tasks = |sequence: &SequenceInput| {
            sequence.masks.len().div_ceil(rows) * (segment_at(sequence.end) + 1)
        };
        sequences.iter().map(tasks).sum::<usize>() * layout.heads
    };
    while parallel && block_rows > 1 && task_count(block_rows) < 4 * threads {
        block_rows /= 2;
    }

    let mut blocks = Vec::new();
    let mut row = 0;
    for sequence in sequences {
        for masks in sequence.masks.chunks(block_rows) {
            let segments = segments(masks, params.window);
            let rows = row..row + masks.len();
            blocks.push(Block { pages: sequence.pages, masks, rows, segments });
            row += masks.len();
        }
    }
    // Outputs of tasks, nested by block, segment, key head, row, and query head of the group that
    // shares the key head.
    let (group_width, group) = (width / layout.heads, params.heads / layout.heads);
    let rows: usize = blocks.iter().map(|block| block.segments.len() * block.rows.len()).sum();
    let mut means = vec![0f32; rows * width];
    let mut sums = vec![SoftmaxSum::EMPTY; rows * params.heads];
    let count: usize = blocks.iter().map(|block| block.segments.len()).sum();
    let mut tasks: Vec<Task> = Vec::with_capacity(count * layout.heads);
    let (mut means_rest, mut sums_rest) = (&mut means[..], &mut sums[..]);
    let arranged = arrange_queries(&blocks, queries, params, [layout.heads, layout.head_size]);
    for Block { pages, masks, rows, segments } in &blocks {
        let queries = &arranged[rows.start * width..rows.end * width];
        for segment in segments.clone() {
            for (head, queries) in queries.chunks_exact(rows.len() * group_width).enumerate() {
                let (out, sums);
                (out, means_rest) = means_rest.split_at_mut(rows.len() * group_width);
                (sums, sums_rest) = sums_rest.split_at_mut(rows.len() * group);
                let positions = segment_start(segment)..segment_start(segment + 1);
                if let Some(previous) = tasks.last_mut() {
                    let page = pages.get(positions.start / PAGE_SLOTS);
                    let keys = page.map(|page| page.prefetch(params.layer, head)[0]);
                    previous.next = keys.unwrap_or(PrefetchSlice::EMPTY);
                }
                let next = PrefetchSlice::EMPTY;
                tasks.push(Task {
                    pages,
                    head,
                    masks,
                    positions,
                    queries,
                    out,
                    sums,
                    params,
                    next,
                });
            }
        }
    }
    let arch = Arch::new();
    let min_tasks = MIN_WORK / (work / tasks.len().max(1)).max(1) + 1;
    pool::parallel_for_each(tasks, min_tasks, |task| {
        SCRATCH.with_borrow_mut(|scratch| arch.dispatch(kernel::Attend { task, scratch }));
    });
    // One row and one segment per block: the outputs are already in their final order.
    let is_joined = |block: &Block| block.masks.len() == 1 && block.segments.len() == 1;
    if params.sinks.is_none() && blocks.iter().all(is_joined) {
        return means;
    }
    let mut by_row = vec![0f32; row * width];
    let (mut joins, mut rest) =
        (Vec::with_capacity(blocks.len()), (&mut by_row[..], &means[..], &sums[..]));
    for block in &blocks {
        let (rows, segments) = (block.rows.len(), block.segments.len());
        let (out, means, sums);
        (out, rest.0) = rest.0.split_at_mut(rows * width);
        (means, rest.1) = rest.1.split_at(segments * rows * width);
        (sums, rest.2) = rest.2.split_at(segments * rows * params.heads);
        let (head_size, heads, sinks) = (layout.head_size, params.heads, params.sinks);
        joins.push(Join { means, sums, group, head_size, out, heads, sinks });
    }
    let min_joins = MIN_WORK * blocks.len() / rows.max(1) / width + 1;
    pool::parallel_for_each(joins, min_joins, |join| arch.dispatch(join));
    by_row
}

/// Returns the queries of each block and key head in the order of [`kernel::arrange`].
fn arrange_queries(
    blocks: &[Block],
    queries: &[f32],
    params: AttentionParams,
    [heads, head_size]: [usize; 2],
) -> Vec<f32> {
    let (width, max_queries) = (params.heads * head_size, Arch::new().dispatch(kernel::MaxQueries));
    let rows = blocks.last().map_or(0, |block| block.rows.end);
    let (mut arranged, group_width) = (vec![0f32; rows * width], width / heads);
    let (mut parts, mut rest) = (Vec::with_capacity(blocks.len()), &mut arranged[..]);
    for Block { rows, .. } in blocks {
        let out;
        (out, rest) = rest.split_at_mut(rows.len() * width);
        parts.push((rows.clone(), out));
    }
    let min_parts = MIN_WORK * blocks.len() / (rows * width).max(1) + 1;
    pool::parallel_for_each(parts, min_parts, |(rows, out)| {
        for (head, out) in out.chunks_exact_mut(rows.len() * group_width).enumerate() {
            let row_queries = |row: usize| {
                queries[row * params.stride + head * group_width..][..group_width]
                    .chunks_exact(head_size)
            };
            kernel::arrange(rows.clone().flat_map(row_queries), head_size, max_queries, out);
        }
    });
    arranged
}

#[cfg(test)]
mod tests;
