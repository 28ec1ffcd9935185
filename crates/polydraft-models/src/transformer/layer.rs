//! One decoder layer.

use polydraft_kernels::{Norm, Part as Sequence, Rows, Rules, attend, rotate};

use super::norms::Norms;
use super::pass::Part;
use super::rotations::Rotations;
use crate::config::{Config, FeedForward};
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct Layer {
    /// Which of the model's it is.
    pub number: usize,
    pub attention_norms: Norms,
    /// Queries, keys and values stacked.
    pub query_key_value: Linear,
    /// Of each head's queries and keys.
    pub head_norms: Option<[Norm; 2]>,
    pub output: Linear,
    pub windowed: bool,
    pub mlp_norms: Norms,
    /// Gate and up stacked, where there is a gate.
    pub mlp_in: Linear,
    pub mlp_out: Linear,
}

impl Layer {
    /// Attention of the tokens of all parts to their sequences; their entries go into the
    /// KV caches.
    pub fn attend(
        &self,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let Config { heads, head, ref attention, .. } = *config;
        let mut mixed = self.query_key_value.forward(x)?;
        self.write(config, &mut mixed, rotations, parts)?;
        let Some(layout) = parts.first().map(|part| part.cache.layout()) else {
            return self.output.forward(&Rows::new(Vec::new(), heads * head));
        };
        let rules = Rules {
            layer: self.number,
            layout,
            heads,
            stride: mixed.width(),
            window: attention.window.filter(|_| self.windowed),
            softcap: attention.softcap.map(|cap| cap as f32),
        };
        let mut sequences = Vec::with_capacity(parts.len());
        for part in &*parts {
            let (pages, masks) = (part.cache.pages(), &part.masks[..]);
            sequences.push(Sequence { pages, masks, end: part.end() });
        }
        let found = attend(&sequences, mixed.numbers(), rules);
        self.output.forward(&Rows::new(found, heads * head))
    }

    /// Writes the entries of all parts into the KV caches, and makes queries ready; all of
    /// them side by side.
    fn write(
        &self,
        config: &Config,
        mixed: &mut Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<()> {
        let Config { heads, key_value_heads, head, ref attention, .. } = *config;
        let (scale, stride) = (attention.scale as f32, mixed.width());
        let rotation = rotations.of(self.windowed);
        let mut rows = mixed.numbers_mut().chunks_exact_mut(stride.max(1)).enumerate();
        for part in &mut *parts {
            let slots = part.start..part.end();
            for (slot, (row, numbers)) in slots.zip(&mut rows) {
                let (queries, rest) = numbers.split_at_mut(heads * head);
                let (keys, values) = rest.split_at_mut(key_value_heads * head);
                if let Some([of_queries, of_keys]) = &self.head_norms {
                    of_queries.apply(queries)?;
                    of_keys.apply(keys)?;
                }
                if let Some([cos, sin]) = rotation {
                    let own = row * head / 2..(row + 1) * head / 2;
                    rotate(queries, &cos[own.clone()], &sin[own.clone()]);
                    rotate(keys, &cos[own.clone()], &sin[own]);
                }
                if scale != 1.0 {
                    queries.iter_mut().for_each(|value| *value *= scale);
                }
                part.cache.write(self.number, slot, keys, values);
            }
        }
        Ok(())
    }

    pub fn feed_forward(&self, config: &Config, x: &Rows) -> Result<Rows> {
        let FeedForward { activation, gated } = config.feed_forward;
        let inner = self.mlp_in.forward(x)?;
        self.mlp_out.forward(&activation.forward(&inner, config.intermediate, gated))
    }

    /// The whole layer.
    pub fn forward(
        &self,
        config: &Config,
        x: Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let x = self.attention_norms.around(x, |x| self.attend(config, x, rotations, parts))?;
        self.mlp_norms.around(x, |x| self.feed_forward(config, x))
    }

    /// All that is multiplied with, by name.
    pub fn products(&self) -> [(&'static str, &Linear); 4] {
        [
            ("query_key_value", &self.query_key_value),
            ("output", &self.output),
            ("mlp_in", &self.mlp_in),
            ("mlp_out", &self.mlp_out),
        ]
    }
}
