//! What the benchmark of attention sees: a text of made-up keys and values.

use candle_core::{DType, Device, Result};

use super::super::pass::{Part, Sight};
use super::{Rules, attend};
use crate::cache::{Cache, CacheType, Form};

/// A text of made-up keys and values, for `cargo bench -p polydraft-models --bench attention`. No
/// part of the interface.
#[doc(hidden)]
#[derive(Debug)]
pub struct AttentionProbe {
    cache: Cache,
    rules: Rules,
    form: Form,
    tokens: usize,
}

impl AttentionProbe {
    /// Of so many layers with `heads` query heads of `head` numbers that share `key_heads` key
    /// heads; room for `rows` tokens behind the text's.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        [layers, heads, key_heads, head]: [usize; 4],
        [tokens, rows]: [usize; 2],
        held: CacheType,
    ) -> Result<Self> {
        let form = Form { layers, heads: key_heads, head, watched: 0, held };
        let mut cache = Cache::new(form, DType::F32, &Device::Cpu)?;
        cache.reserve(tokens + rows)?;
        if let Cache::Pages(pages) = &mut cache {
            for slot in 0..tokens + rows {
                for layer in 0..layers {
                    let number = |i: usize| {
                        ((slot * 31 + layer * 17 + i * 7) as u32 as f32 * 0.618).fract() - 0.5
                    };
                    let numbers: Vec<f32> = (0..2 * key_heads * head).map(number).collect();
                    let (key, value) = numbers.split_at(key_heads * head);
                    pages.write(layer, slot, key, value);
                }
            }
        }
        let rules = Rules { layer: 0, heads, stride: heads * head, window: None, softcap: None };
        Ok(Self { cache, rules, form, tokens })
    }

    /// Bytes of the text's keys and values.
    pub fn bytes(&self) -> usize {
        2 * self.tokens
            * self.form.layers
            * self.form.heads
            * self.form.head
            * self.form.held.bytes()
    }

    /// What a path of tokens behind the text finds in one layer, `[rows, heads · head]`, for their
    /// queries.
    ///
    /// # Errors
    /// None where there is room for the rows.
    pub fn attend(&mut self, layer: usize, queries: &[f32]) -> Result<Vec<f32>> {
        let (start, rows) = (self.tokens, queries.len() / self.rules.stride);
        let sight = |row| Sight { context: start, path: (start..=start + row).collect() };
        let sights = (0..rows).map(sight).collect();
        let part = Part { cache: &mut self.cache, start, tokens: vec![0; rows], sights, wanted: 0 };
        attend(&[part], queries, Rules { layer, ..self.rules })
    }
}
