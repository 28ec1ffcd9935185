//! Attention with a key and a value for each of its heads, or for groups of them.

use std::ops::Range;
use std::sync::OnceLock;

use polydraft_kernels::{
    Layout, Mask, Norm, PAGE, Page, Part as Sequence, Rows, Rules, attend, each,
};

use super::experts::sigmoid;
use super::pass::Part;
use super::rotations::{Angles, Rotations};
use crate::cache::CachePlace;
use crate::config::{Config, HeadShape};
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct Heads {
    pub shape: HeadShape,
    /// Queries, keys and values stacked, and what gates the output, if it is gated; of those what
    /// it has.
    pub query_key_value: Linear,
    /// Of queries, of keys and of values.
    pub norms: [Option<Norm>; 3],
    /// Whether it attends to the KV cache of another layer.
    pub borrows: bool,
    pub output: Linear,
    pub windowed: bool,
    /// Whether it knows positions.
    pub rotated: bool,
    pub sinks: Option<Vec<f32>>,
    /// Whether what is found is multiplied by sigmoids.
    pub gated: bool,
}

impl Heads {
    /// Attention of the tokens of all parts to their sequences; their entries go into the KV
    /// caches. `place` is where they are.
    pub fn forward(
        &self,
        place: CachePlace,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let Config { heads, ref attention, .. } = *config;
        let head = self.shape.head;
        let mut mixed = self.query_key_value.forward(x)?;
        let angles = rotations.of(self.windowed).filter(|_| self.rotated);
        self.write(place, config, &mut mixed, angles, parts)?;
        let Some(part) = parts.first() else {
            return self.output.forward(&Rows::new(Vec::new(), heads * head));
        };
        let seen = (&sequences(parts, place.shape)[..], part.cache.layout(place.shape));
        self.look(place, config, &mixed, seen, attention.window.filter(|_| self.windowed))
    }

    /// What queries among `mixed`, a row for each mask, find in the KV caches.
    pub fn look(
        &self,
        place: CachePlace,
        config: &Config,
        mixed: &Rows,
        (sequences, layout): (&[Sequence], Layout),
        window: Option<usize>,
    ) -> Result<Rows> {
        let Config { heads, ref attention, .. } = *config;
        let head = self.shape.head;
        let rules = Rules {
            layer: place.layer,
            layout,
            heads,
            stride: mixed.width(),
            window,
            softcap: attention.softcap.map(|cap| cap as f32),
            sinks: self.sinks.as_deref(),
        };
        let mut found = attend(sequences, mixed.numbers(), rules);
        if self.gated {
            let gates = mixed.numbers().chunks_exact(mixed.width());
            for (row, gates) in found.chunks_exact_mut(heads * head).zip(gates) {
                let gates = &gates[gates.len() - row.len()..];
                row.iter_mut().zip(gates).for_each(|(x, gate)| *x *= sigmoid(*gate));
            }
        }
        self.output.forward(&Rows::new(found, heads * head))
    }

    /// Writes the entries of all parts into the KV caches, and makes queries ready; all of them
    /// side by side. Threads share the pages: most of it is waiting for their lines, and one thread
    /// took a tenth of a pass over 32 sequences for it.
    pub fn write(
        &self,
        place: CachePlace,
        config: &Config,
        mixed: &mut Rows,
        angles: Option<&Angles>,
        parts: &mut [Part],
    ) -> Result<()> {
        let stride = mixed.width();
        let (mut row, mut rest) = (0, mixed.numbers_mut());
        let mut all = Vec::new();
        for part in parts {
            let (start, slots, masks) = (part.start, part.start..part.end(), &part.masks[..]);
            let mut add = |page, slots: Range<usize>| {
                let rows = rest.split_off_mut(..slots.len() * stride).unwrap_or_default();
                let masks = &masks[slots.start - start..slots.end - start];
                all.push(Entries { page, slot: slots.start % PAGE, masks, rows, row });
                row += slots.len();
            };
            match self.borrows {
                true => add(None, slots),
                false => part
                    .cache
                    .pages_mut(place.shape, slots)
                    .for_each(|(page, slots)| add(Some(page), slots)),
            }
        }
        let failed = OnceLock::new();
        each(all, APART, |entries| {
            if let Err(error) = self.enter(place.layer, config, angles, entries) {
                // The first error is returned.
                let _ = failed.set(error);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Those of one page.
    fn enter(
        &self,
        layer: usize,
        config: &Config,
        angles: Option<&Angles>,
        entries: Entries,
    ) -> Result<()> {
        let Config { heads, ref attention, .. } = *config;
        let HeadShape { key_value_heads, head, values_are_keys } = self.shape;
        let [of_queries, of_keys, of_values] = &self.norms;
        let Entries { mut page, slot, masks, rows, row } = entries;
        let mut own_values = Vec::new();
        let rows = rows.chunks_exact_mut((rows.len() / masks.len().max(1)).max(1)).zip(row..);
        for ((slot, mask), (numbers, row)) in (slot..).zip(masks).zip(rows) {
            let (queries, rest) = numbers.split_at_mut(heads * head);
            apply(of_queries, queries)?;
            if let Some(angles) = angles {
                angles.turn(row, queries, head);
            }
            let scale = match attention.stretch {
                None => attention.scale as f32,
                Some(stretch) => attention.scale as f32 * stretch.at(mask.position()),
            };
            if scale != 1.0 {
                queries.iter_mut().for_each(|value| *value *= scale);
            }
            let Some(page) = &mut page else { continue };
            let (keys, rest) = rest.split_at_mut(key_value_heads * head);
            let values = match values_are_keys {
                false => &mut rest[..key_value_heads * head],
                true => {
                    own_values.clear();
                    own_values.extend_from_slice(keys);
                    &mut own_values[..]
                }
            };
            apply(of_keys, keys)?;
            apply(of_values, values)?;
            if let Some(angles) = angles {
                angles.turn(row, keys, head);
            }
            page.write(layer, slot, keys, values);
        }
        Ok(())
    }
}

/// Pages that are worth another thread.
const APART: usize = 2;

/// Tokens of one sequence, and the page of its KV cache that their entries lie in.
struct Entries<'a> {
    /// None where the layer writes nothing.
    page: Option<&'a mut Page>,
    /// The first one's in the page.
    slot: usize,
    masks: &'a [Mask],
    /// What the layer's product made of them.
    rows: &'a mut [f32],
    /// The first one's number in the pass.
    row: usize,
}

fn apply(norm: &Option<Norm>, numbers: &mut [f32]) -> Result<()> {
    norm.as_ref().map_or(Ok(()), |norm| Ok(norm.apply(numbers)?))
}

/// What the tokens of all parts attend to, in layers of a shape.
pub(super) fn sequences<'a>(parts: &'a [Part], shape: usize) -> Vec<Sequence<'a>> {
    let of = |part: &'a Part| Sequence {
        pages: part.cache.pages(shape),
        masks: &part.masks[..],
        end: part.end(),
    };
    parts.iter().map(of).collect()
}
