//! Loads per-layer embeddings.

use std::sync::Arc;

use super::load::{Loader, all_rows};
use super::per_layer::{PerLayer, PerLayerBlock};
use crate::config::{Config, PerLayer as Shape};
use crate::error::Result;
use crate::linear::Linear;
use crate::precision::MatrixUse;
use crate::weights::TensorRows;

impl Loader<'_> {
    /// Loads the table and the projection of the inputs of all layers, for a tokenizer of `tokens`
    /// tokens.
    pub(super) fn per_layer(&mut self, shape: Shape, tokens: usize) -> Result<PerLayer> {
        let Config { hidden, layers, names, .. } = *self.config;
        let Shape { width, vocabulary } = shape;
        let names = &names.per_layer;
        let table = format!("{}.weight", names.table);
        if tokens > vocabulary {
            let expected = format!("a row for each of the tokenizer's {tokens} tokens");
            return Err(self.weights.tensor_error(&table, expected, format!("{vocabulary} rows")));
        }
        let rows = TensorRows::first_rows(table, vocabulary, tokens);
        Ok(PerLayer {
            table: Arc::new(self.for_use(MatrixUse::LargeTable, &[rows], layers * width)?),
            projection: self.linear(
                &[(names.projection.to_owned(), layers * width)],
                hidden,
                false,
            )?,
            norm: self.norm(names.norm, width)?,
            width,
        })
    }

    /// Loads the block that adds a layer's per-layer input; `None` for models without such inputs.
    pub(super) fn per_layer_block(&mut self, number: usize) -> Result<Option<PerLayerBlock>> {
        let Config { hidden, names, per_layer, .. } = *self.config;
        let Some(Shape { width, .. }) = per_layer else { return Ok(None) };
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let mut linear = |part: &str, rows, columns| -> Result<Linear> {
            let matrix = self.stacked(&[all_rows(&name(part), rows)], columns)?;
            Ok(Linear { matrix, bias: None, inputs: None })
        };
        let gate = linear(names.per_layer.gate, width, hidden)?;
        let projection = linear(names.per_layer.back, hidden, width)?;
        let norm = self.norm(&name(names.per_layer.after), hidden)?;
        Ok(Some(PerLayerBlock { gate, projection, norm }))
    }
}
