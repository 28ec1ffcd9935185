//! Per-layer inputs, from tensors on disk.

use std::sync::Arc;

use super::load::{Loader, whole};
use super::per_layer::{PerLayer, PerLayerBlock};
use crate::config::{Config, PerLayer as Shape};
use crate::error::Result;
use crate::linear::Linear;
use crate::precision::Use;
use crate::weights::Part;

impl Loader<'_> {
    /// What makes the inputs of all layers, for so many tokens.
    pub(super) fn per_layer(&mut self, shape: Shape, tokens: usize) -> Result<PerLayer> {
        let Config { hidden, layers, names, .. } = *self.config;
        let Shape { width, vocabulary } = shape;
        let names = &names.per_layer;
        let table = format!("{}.weight", names.table);
        if tokens > vocabulary {
            let expected = format!("a row for each of the tokenizer's {tokens} tokens");
            return Err(self.weights.wrong(&table, expected, format!("{vocabulary} rows")));
        }
        let rows = Part::of(table, vocabulary, tokens);
        Ok(PerLayer {
            table: Arc::new(self.used_for(Use::Table, &[rows], layers * width)?),
            from: self.linear(&[(names.from.to_owned(), layers * width)], hidden, false)?,
            norm: self.norm(names.norm, width)?,
            width,
        })
    }

    /// What a layer does with its own input, if there are such.
    pub(super) fn per_layer_block(&mut self, number: usize) -> Result<Option<PerLayerBlock>> {
        let Config { hidden, names, per_layer, .. } = *self.config;
        let Some(Shape { width, .. }) = per_layer else { return Ok(None) };
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let mut linear = |part: &str, rows, columns| -> Result<Linear> {
            let matrix = self.stacked(&[whole(&name(part), rows)], columns)?;
            Ok(Linear { matrix, bias: None, inputs: None })
        };
        let gate = linear(names.per_layer.gate, width, hidden)?;
        let back = linear(names.per_layer.back, hidden, width)?;
        let norm = self.norm(&name(names.per_layer.after), hidden)?;
        Ok(Some(PerLayerBlock { gate, back, norm }))
    }
}
