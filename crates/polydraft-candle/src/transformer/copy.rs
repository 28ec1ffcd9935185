//! The same model once more, in fewer bits: a draft of the target's own weights.

use std::sync::Arc;

use super::{Layer, Transformer};
use crate::linear::Linear;
use crate::{Precision, Result};

impl Transformer {
    /// Every matrix that is multiplied with rounded anew, from the numbers that are held here; all else is shared: the
    /// embedding, norms, biases.
    pub fn rounded(&self, precision: Precision) -> Result<Self> {
        let device = &self.device;
        let linear = |of: &Linear| -> Result<Linear> {
            Ok(Linear { matrix: of.matrix.rounded(precision, device)?, bias: of.bias.clone() })
        };
        let layer = |of: &Layer| -> Result<Layer> {
            Ok(Layer {
                attention_norms: of.attention_norms.clone(),
                query_key_value: linear(&of.query_key_value)?,
                head_norms: of.head_norms.clone(),
                output: linear(&of.output)?,
                windowed: of.windowed,
                mlp_norms: of.mlp_norms.clone(),
                mlp_in: linear(&of.mlp_in)?,
                mlp_out: linear(&of.mlp_out)?,
            })
        };
        let projections = match &self.projections {
            None => None,
            Some([into, out]) => Some([into.rounded(precision, device)?, out.rounded(precision, device)?]),
        };
        Ok(Self {
            config: self.config.clone(),
            embedding: Arc::clone(&self.embedding),
            projections,
            place: self.place.clone(),
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            head: Some(Arc::new(self.head.as_ref().unwrap_or(&self.embedding).rounded(precision, device)?)),
            device: self.device.clone(),
            dtype: self.dtype,
            watched: Vec::new(),
            held: self.held,
        })
    }
}
