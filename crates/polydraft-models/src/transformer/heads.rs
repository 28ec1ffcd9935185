//! Attention with separate keys and values for each head, or for groups of heads (MHA, GQA, MQA).

use std::ops::Range;
use std::sync::OnceLock;

use polydraft_kernels::{
    AttentionParams, Mask, Norm, PAGE_SLOTS, Page, PageLayout, Rows, SequenceInput as Sequence,
    attend, parallel_for_each,
};

use super::experts::sigmoid;
use super::pass::SequenceTokens;
use super::rotations::{Angles, Rotations};
use crate::cache::CacheIndex;
use crate::config::{Config, GateFunction, HeadShape, OutputGate};
use crate::error::Result;
use crate::linear::Linear;

/// Attention heads of one layer.
#[derive(Debug)]
pub(crate) struct Heads {
    pub shape: HeadShape,
    /// Query, key, value and gate projections, stacked; without those that the layer lacks.
    pub query_key_value: Linear,
    /// Norms of queries, keys and values.
    pub norms: [Option<Norm>; 3],
    /// Whether the layer attends to the KV cache of another layer.
    pub borrows: bool,
    pub output: Linear,
    /// Whether attention is limited to a sliding window.
    pub windowed: bool,
    /// Whether queries and keys are rotated.
    pub rotated: bool,
    /// Attention sinks: a logit per head.
    pub sinks: Option<Vec<f32>>,
    /// Gate that the output is multiplied by.
    pub gate: Option<OutputGate>,
}

impl Heads {
    /// Attends from the tokens of all sequences to their KV caches, after writing the tokens' own
    /// entries there. `cache_index` locates the layer's entries.
    pub fn forward(
        &self,
        cache_index: CacheIndex,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        batch: &mut [SequenceTokens],
    ) -> Result<Rows> {
        let Config { heads, ref attention, .. } = *config;
        let head = self.shape.head_dim;
        let mut mixed = self.query_key_value.forward(x)?;
        let angles = rotations.angles(self.windowed).filter(|_| self.rotated);
        self.write(cache_index, config, &mut mixed, angles, batch)?;
        let Some(sequence) = batch.first() else {
            return self.output.forward(&Rows::new(Vec::new(), heads * head));
        };
        let caches = (
            &sequences(batch, cache_index.shape)[..],
            sequence.cache.page_layout(cache_index.shape),
        );
        self.attend(cache_index, config, &mixed, caches, attention.window.filter(|_| self.windowed))
    }

    /// Attention output of the queries in `mixed`, which has a row for each mask.
    pub fn attend(
        &self,
        cache_index: CacheIndex,
        config: &Config,
        mixed: &Rows,
        (sequences, layout): (&[Sequence], PageLayout),
        window: Option<usize>,
    ) -> Result<Rows> {
        let Config { heads, ref attention, .. } = *config;
        let head = self.shape.head_dim;
        let rules = AttentionParams {
            layer: cache_index.layer,
            layout,
            heads,
            stride: mixed.width(),
            window,
            softcap: attention.softcap.map(|cap| cap as f32),
            sinks: self.sinks.as_deref(),
        };
        let mut found = attend(sequences, mixed.numbers(), rules);
        if let Some(gate) = self.gate {
            let (function, width) = (gate_function(gate.function), gate.width(head));
            let projected = mixed.numbers().chunks_exact(mixed.width());
            for (row, projected) in found.chunks_exact_mut(heads * head).zip(projected) {
                let gates = &projected[projected.len() - row.len() / width..];
                for (numbers, gate) in row.chunks_exact_mut(width).zip(gates) {
                    let factor = function(*gate);
                    numbers.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
        self.output.forward(&Rows::new(found, heads * head))
    }

    /// Norms, rotates and scales the queries in `mixed`, and writes the keys and values of all
    /// sequences into their KV caches. Threads share the pages: most of the time goes to waiting
    /// for cache lines, and a single thread took a tenth of a pass over 32 sequences.
    pub fn write(
        &self,
        cache_index: CacheIndex,
        config: &Config,
        mixed: &mut Rows,
        angles: Option<&Angles>,
        batch: &mut [SequenceTokens],
    ) -> Result<()> {
        let stride = mixed.width();
        let (mut row, mut rest) = (0, mixed.numbers_mut());
        let mut all = Vec::new();
        for sequence in batch {
            let (start, slots, masks) =
                (sequence.start, sequence.start..sequence.end(), &sequence.masks[..]);
            let mut add = |page, slots: Range<usize>| {
                let rows = rest.split_off_mut(..slots.len() * stride).unwrap_or_default();
                let masks = &masks[slots.start - start..slots.end - start];
                all.push(Entries { page, slot: slots.start % PAGE_SLOTS, masks, rows, row });
                row += slots.len();
            };
            match self.borrows {
                true => add(None, slots),
                false => sequence
                    .cache
                    .pages_mut(cache_index.shape, slots)
                    .for_each(|(page, slots)| add(Some(page), slots)),
            }
        }
        let failed = OnceLock::new();
        parallel_for_each(all, MIN_PAGES_PER_THREAD, |entries| {
            if let Err(error) = self.write_page(cache_index.layer, config, angles, entries) {
                // The first error is returned.
                let _ = failed.set(error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Prepares the queries of one page's tokens and writes their keys and values.
    fn write_page(
        &self,
        layer: usize,
        config: &Config,
        angles: Option<&Angles>,
        entries: Entries,
    ) -> Result<()> {
        let Config { heads, ref attention, .. } = *config;
        let HeadShape { key_value_heads, head_dim: head, values_are_keys } = self.shape;
        let [of_queries, of_keys, of_values] = &self.norms;
        let Entries { mut page, slot, masks, rows, row } = entries;
        let mut value_copy = Vec::new();
        let rows = rows.chunks_exact_mut((rows.len() / masks.len().max(1)).max(1)).zip(row..);
        for ((slot, mask), (numbers, row)) in (slot..).zip(masks).zip(rows) {
            let (queries, rest) = numbers.split_at_mut(heads * head);
            let prepare = |numbers: &mut [f32], norm: &Option<Norm>| {
                let rotate = |numbers: &mut [f32]| {
                    if let Some(angles) = angles {
                        angles.rotate(row, numbers, head);
                    }
                };
                if attention.rotated_first {
                    rotate(numbers);
                    return apply(norm, numbers);
                }
                apply(norm, numbers)?;
                rotate(numbers);
                Ok(())
            };
            prepare(queries, of_queries)?;
            let scale = match attention.query_scaling {
                None => attention.scale as f32,
                Some(growth) => attention.scale as f32 * growth.factor_at(mask.position()),
            };
            if scale != 1.0 {
                queries.iter_mut().for_each(|value| *value *= scale);
            }
            let Some(page) = &mut page else { continue };
            let (keys, rest) = rest.split_at_mut(key_value_heads * head);
            let values = match values_are_keys {
                false => &mut rest[..key_value_heads * head],
                true => {
                    value_copy.clear();
                    value_copy.extend_from_slice(keys);
                    &mut value_copy[..]
                }
            };
            apply(of_values, values)?;
            prepare(keys, of_keys)?;
            page.write(layer, slot, keys, values);
        }
        Ok(())
    }
}

/// Minimum number of pages per thread.
const MIN_PAGES_PER_THREAD: usize = 2;

/// Tokens of one sequence whose entries lie in one page of its KV cache.
struct Entries<'a> {
    /// `None` where the layer writes nothing.
    page: Option<&'a mut Page>,
    /// Slot of the first token in the page.
    slot: usize,
    masks: &'a [Mask],
    /// Projected rows of the tokens, `[tokens, stride]`.
    rows: &'a mut [f32],
    /// Row of the first token in the pass.
    row: usize,
}

/// Function from projected numbers to gates.
fn gate_function(function: GateFunction) -> fn(f32) -> f32 {
    match function {
        GateFunction::Sigmoid => sigmoid,
        GateFunction::Softplus => |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

fn apply(norm: &Option<Norm>, numbers: &mut [f32]) -> Result<()> {
    norm.as_ref().map_or(Ok(()), |norm| Ok(norm.apply(numbers)?))
}

/// Pages and masks that the tokens of each sequence attend to, in layers of one shape.
pub(super) fn sequences<'a>(batch: &'a [SequenceTokens], shape: usize) -> Vec<Sequence<'a>> {
    let attended = |sequence: &'a SequenceTokens| Sequence {
        pages: sequence.cache.pages(shape),
        masks: &sequence.masks[..],
        end: sequence.end(),
    };
    batch.iter().map(attended).collect()
}
