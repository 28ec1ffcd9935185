//! Attention on a processor, of all texts of a pass at once.
//!
//! Problem: each token attends to its own text, which lies in pages, and in a tree to its ancestors
//! among its fellows. As tensor operations that is a dozen per text and layer, with masks and
//! copies; and a product of another shape sums in another order.
//! Method: ours. One loop over some rows, a key head and a stretch of the text. It goes through the
//! stretch's pages once for the scores and once for the values; what a row does not see is skipped,
//! not masked. What the stretches gave is put together by their weights (Milakov and Gimelshein
//! 2018), in the order of the text. A row's sums go in that order too, number by number, and
//! stretches are the same for every row: so they are the same to the last bit whatever else is in
//! the pass, in the tree or in the chunk, and wherever slots were moved. What is computed for a
//! token depends on the text up to it only.
//! Complexity: `rows · slots · heads · head` multiply-adds, twice; every key and value is read from
//! memory once for [`ROWS`] rows. With one row the memory is the limit (17 GB/s on one thread of an
//! EPYC with AVX-512, which reads 25 to 30), with several arithmetic (37 multiply-adds a nanosecond
//! of 46; `benches/attention.rs`).

mod join;
mod kernel;
mod probe;

use std::cell::RefCell;
use std::ops::Range;

use candle_core::{Result, bail};
use pulp::Arch;

use super::Transformer;
use super::pass::{Part, Sight};
use crate::Config;
use crate::cache::pages::PAGE;
use crate::cache::{Cache, Pages};
use crate::packed::fetch::Coming;
use crate::packed::pool;
use join::Join;
use kernel::{Scratch, Task, Total};
pub use probe::AttentionProbe;

/// Rows of one text that go through the pages together.
const ROWS: usize = 8;
/// Where the first stretches of a text begin: threads share a short text too.
const FIRST: [usize; 4] = [0, 64, 128, 256];
/// Places of every later one: few enough for their scores to stay in a core's cache.
const STRETCH: usize = 512;
/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 14;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// How queries meet keys in one layer.
#[derive(Debug, Clone, Copy)]
struct Rules {
    layer: usize,
    /// Of queries.
    heads: usize,
    /// Numbers from one row's queries to the next one's.
    stride: usize,
    window: Option<usize>,
    softcap: Option<f32>,
}

/// The pages of a part.
fn pages<'p>(part: &'p Part) -> Result<&'p Pages> {
    match &*part.cache {
        Cache::Pages(pages) => Ok(pages),
        Cache::Tensors(_) => on_a_card(),
    }
}

fn on_a_card<T>() -> Result<T> {
    bail!("attention: expected a cache in memory, got one on a card")
}

/// The values `[rows, heads · head]` that the queries of all parts find, of queries, keys and
/// values side by side; keys and values are left in the caches. `rotation` is of each row.
pub(super) fn layer(
    transformer: &Transformer,
    number: usize,
    mut mixed: Vec<f32>,
    rotation: Option<&[Vec<f32>; 2]>,
    parts: &mut [Part],
) -> Result<Vec<f32>> {
    let Config { heads, key_value_heads, head, ref attention, .. } = transformer.config;
    let layer = &transformer.layers[number];
    let (scale, stride) = (attention.scale as f32, (heads + 2 * key_value_heads) * head);
    let mut rows = mixed.chunks_exact_mut(stride).enumerate();
    for part in &mut *parts {
        let slots = part.start..part.end();
        let Cache::Pages(pages) = &mut *part.cache else { return on_a_card() };
        for (slot, (row, numbers)) in slots.zip(&mut rows) {
            let (queries, rest) = numbers.split_at_mut(heads * head);
            let (keys, values) = rest.split_at_mut(key_value_heads * head);
            if let Some([of_queries, of_keys]) = &layer.head_norms {
                of_queries.on_host(queries)?;
                of_keys.on_host(keys)?;
            }
            if let Some([cos, sin]) = rotation {
                let own = row * head / 2..(row + 1) * head / 2;
                rotate(queries, &cos[own.clone()], &sin[own.clone()]);
                rotate(keys, &cos[own.clone()], &sin[own]);
            }
            if scale != 1.0 {
                queries.iter_mut().for_each(|value| *value *= scale);
            }
            pages.write(number, slot, keys, values);
        }
    }
    let window = attention.window.filter(|_| layer.windowed);
    let softcap = attention.softcap.map(|cap| cap as f32);
    attend(parts, &mixed, Rules { layer: number, heads, stride, window, softcap })
}

/// Rotates every head by the cosines and sines `[head / 2]` of its place.
fn rotate(heads: &mut [f32], cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(2 * cos.len().max(1)) {
        let (first, second) = head.split_at_mut(cos.len());
        for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
        }
    }
}

/// Rows of one part, and which rows of the pass they are.
struct Block<'a> {
    pages: &'a Pages,
    sights: &'a [Sight],
    rows: Range<usize>,
    /// The numbers of the stretches of text that they see.
    stretches: Range<usize>,
}

/// Where a stretch of the text begins.
fn beginning(stretch: usize) -> usize {
    FIRST.get(stretch).copied().unwrap_or_else(|| (stretch + 1 - FIRST.len()) * STRETCH)
}

/// The number of the stretch that a place is in.
fn stretch_at(place: usize) -> usize {
    match place < STRETCH {
        true => FIRST.partition_point(|first| *first <= place) - 1,
        false => FIRST.len() - 1 + place / STRETCH,
    }
}

/// The numbers of the stretches of text that some rows see.
fn stretches(sights: &[Sight], window: Option<usize>) -> Range<usize> {
    let first = sights.iter().map(|sight| sight.first(window)).min().unwrap_or(0);
    let last = sights.iter().map(Sight::position).max().unwrap_or(0);
    stretch_at(first)..stretch_at(last) + 1
}

/// The values `[rows, heads · head]` that the queries, scaled, find in their texts.
fn attend(parts: &[Part], queries: &[f32], rules: Rules) -> Result<Vec<f32>> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let form = pages(first)?.form();
    let (width, threads) = (rules.heads * form.head, rayon::current_num_threads());
    let work: usize = parts.iter().map(|part| part.tokens.len() * part.end() * width).sum();
    let parallel = threads > 1 && work > GRAIN;
    // Fewer rows at once where threads would have nothing to do.
    let mut rows = ROWS;
    let tasks = |rows| {
        let of = |part: &Part| part.tokens.len().div_ceil(rows) * (stretch_at(part.end()) + 1);
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
    // Behind each other: of each block, of each stretch, of each key head, of each row the heads
    // that share the key head.
    let (group, shared) = (width / form.heads, rules.heads / form.heads);
    let rows: usize = blocks.iter().map(|block| block.stretches.len() * block.rows.len()).sum();
    let mut found = vec![0f32; rows * width];
    let mut totals = vec![Total::NOTHING; rows * rules.heads];
    let count: usize = blocks.iter().map(|block| block.stretches.len()).sum();
    let mut tasks: Vec<Task> = Vec::with_capacity(count * form.heads);
    let (mut rest, mut rest_of_totals) = (&mut found[..], &mut totals[..]);
    let arranged = arranged(&blocks, queries, rules, [form.heads, form.head]);
    for Block { pages, sights, rows, stretches } in &blocks {
        let queries = &arranged[rows.start * width..rows.end * width];
        for stretch in stretches.clone() {
            for (head, queries) in queries.chunks_exact(rows.len() * group).enumerate() {
                let (out, totals);
                (out, rest) = rest.split_at_mut(rows.len() * group);
                (totals, rest_of_totals) = rest_of_totals.split_at_mut(rows.len() * shared);
                let places = beginning(stretch)..beginning(stretch + 1);
                if let Some(before) = tasks.last_mut() {
                    [before.then, _] = pages.coming(places.start / PAGE, rules.layer, head);
                }
                let then = Coming::NOTHING;
                tasks.push(Task { pages, head, sights, places, queries, out, totals, rules, then });
            }
        }
    }
    let arch = Arch::new();
    let least = GRAIN / (work / tasks.len().max(1)).max(1) + 1;
    pool::each(tasks, least, |task| {
        SCRATCH.with_borrow_mut(|scratch| arch.dispatch(kernel::Attend { task, scratch }));
    });
    let alone = |block: &Block| block.sights.len() == 1 && block.stretches.len() == 1;
    if blocks.iter().all(alone) {
        return Ok(found);
    }
    let mut by_row = vec![0f32; row * width];
    let (mut joins, mut rest) =
        (Vec::with_capacity(blocks.len()), (&mut by_row[..], &found[..], &totals[..]));
    for block in &blocks {
        let (rows, stretches) = (block.rows.len(), block.stretches.len());
        let (out, found, totals);
        (out, rest.0) = rest.0.split_at_mut(rows * width);
        (found, rest.1) = rest.1.split_at(stretches * rows * width);
        (totals, rest.2) = rest.2.split_at(stretches * rows * rules.heads);
        joins.push(Join { found, totals, shared, head: form.head, out, heads: rules.heads });
    }
    pool::each(joins, GRAIN * blocks.len() / rows.max(1) / width + 1, |join| arch.dispatch(join));
    Ok(by_row)
}

/// Of each block, of each key head its queries as the loops want them.
fn arranged(
    blocks: &[Block],
    queries: &[f32],
    rules: Rules,
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
    pool::each(parts, GRAIN * blocks.len() / (rows * width).max(1) + 1, |(rows, out)| {
        for (own, out) in out.chunks_exact_mut(rows.len() * group).enumerate() {
            let of_row = |row: usize| {
                queries[row * rules.stride + own * group..][..group].chunks_exact(head)
            };
            kernel::arrange(rows.clone().flat_map(of_row), head, together, out);
        }
    });
    arranged
}

#[cfg(test)]
mod tests;
