//! Attention with a key and a value for each of its heads, or for groups of them.

use polydraft_kernels::{Norm, Part as Sequence, Rows, Rules, attend};

use super::experts::sigmoid;
use super::pass::Part;
use super::rotations::{Angles, Rotations};
use crate::config::Config;
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct Heads {
    /// Queries, keys and values stacked, and what gates the output, if it is gated.
    pub query_key_value: Linear,
    /// Of queries and keys.
    pub norms: Option<[Norm; 2]>,
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
    /// caches. `layer` is which of the model's it is.
    pub fn forward(
        &self,
        layer: usize,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let Config { heads, head, ref attention, .. } = *config;
        let mut mixed = self.query_key_value.forward(x)?;
        let angles = rotations.of(self.windowed).filter(|_| self.rotated);
        self.write(layer, config, &mut mixed, angles, parts)?;
        let rules = Rules {
            layer,
            layout: match parts.first() {
                Some(part) => part.cache.layout(),
                None => return self.output.forward(&Rows::new(Vec::new(), heads * head)),
            },
            heads,
            stride: mixed.width(),
            window: attention.window.filter(|_| self.windowed),
            softcap: attention.softcap.map(|cap| cap as f32),
            sinks: self.sinks.as_deref(),
        };
        let mut found = attend(&sequences(parts), mixed.numbers(), rules);
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
    /// side by side.
    fn write(
        &self,
        layer: usize,
        config: &Config,
        mixed: &mut Rows,
        angles: Option<&Angles>,
        parts: &mut [Part],
    ) -> Result<()> {
        let Config { heads, key_value_heads, head, ref attention, .. } = *config;
        let (scale, stride) = (attention.scale as f32, mixed.width());
        let mut rows = mixed.numbers_mut().chunks_exact_mut(stride.max(1)).enumerate();
        for part in &mut *parts {
            let slots = (part.start..part.end()).zip(&part.masks);
            for ((slot, mask), (row, numbers)) in slots.zip(&mut rows) {
                let (queries, rest) = numbers.split_at_mut(heads * head);
                let (keys, rest) = rest.split_at_mut(key_value_heads * head);
                let values = &rest[..key_value_heads * head];
                if let Some([of_queries, of_keys]) = &self.norms {
                    of_queries.apply(queries)?;
                    of_keys.apply(keys)?;
                }
                if let Some(angles) = angles {
                    angles.turn(row, queries, head);
                    angles.turn(row, keys, head);
                }
                let scale = match attention.stretch {
                    None => scale,
                    Some(stretch) => scale * stretch.at(mask.position()),
                };
                if scale != 1.0 {
                    queries.iter_mut().for_each(|value| *value *= scale);
                }
                part.cache.write(layer, slot, keys, values);
            }
        }
        Ok(())
    }
}

/// What the tokens of all parts attend to.
pub(super) fn sequences<'a>(parts: &'a [Part]) -> Vec<Sequence<'a>> {
    let of = |part: &'a Part| Sequence {
        pages: part.cache.pages(),
        masks: &part.masks[..],
        end: part.end(),
    };
    parts.iter().map(of).collect()
}
