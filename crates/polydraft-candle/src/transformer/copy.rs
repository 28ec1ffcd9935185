//! The same model once more, in fewer bits: a draft of the target's own weights. Where scales are searched for, a text is read
//! first that shows which errors count ([`importance`](crate::importance)).

use std::sync::Arc;

use super::pass::{Part, Sight};
use super::{Layer, Transformer};
use crate::importance::{Importance, TOKENS};
use crate::linear::Linear;
use crate::{Precision, Result};

/// Tokens whose logits are made when a text is read: enough to know the inputs of the matrix that makes them.
const LOGITS: usize = 32;

impl Transformer {
    /// As [`rounded`](Self::rounded), with errors that count as the inputs are large in a text, if the copy can make use of that.
    pub fn rounded_for(&mut self, precision: Precision, tokens: &[u32]) -> Result<Self> {
        let tokens = &tokens[..tokens.len().min(TOKENS).min(self.config.context)];
        if !precision.is_searched() || !self.device.is_cpu() || tokens.is_empty() {
            return self.rounded(precision);
        }
        self.listen(|| Some(Importance::default()));
        let read = self.read(tokens);
        let copy = read.and_then(|()| self.rounded(precision));
        self.listen(|| None);
        copy
    }

    /// What is noted of the inputs of matrices from now on.
    fn listen(&mut self, inputs: impl Fn() -> Option<Importance>) {
        for layer in &mut self.layers {
            for linear in
                [&mut layer.query_key_value, &mut layer.output, &mut layer.mlp_in, &mut layer.mlp_out]
            {
                linear.inputs = inputs();
            }
        }
        self.head_inputs = inputs();
    }

    fn read(&self, tokens: &[u32]) -> Result<()> {
        let mut cache = self.new_cache()?;
        let sights = (0..tokens.len()).map(|place| Sight { context: place, path: vec![place] }).collect();
        let wanted = tokens.len().min(LOGITS);
        self.forward(&mut [Part { cache: &mut cache, start: 0, tokens: tokens.to_vec(), sights, wanted }])?;
        Ok(())
    }

    /// Every matrix that is multiplied with rounded anew, from the numbers that are held here; all else is shared: the
    /// embedding, norms, biases.
    pub fn rounded(&self, precision: Precision) -> Result<Self> {
        let device = &self.device;
        let linear = |of: &Linear| -> Result<Linear> {
            let weights = of.inputs.as_ref().and_then(Importance::weights);
            let matrix = of.matrix.rounded(precision, device, weights.as_deref())?;
            Ok(Linear { matrix, bias: of.bias.clone(), inputs: None })
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
            Some([into, out]) => {
                Some([into.rounded(precision, device, None)?, out.rounded(precision, device, None)?])
            }
        };
        let weights = self.head_inputs.as_ref().and_then(Importance::weights);
        let head = self.head().rounded(precision, device, weights.as_deref())?;
        Ok(Self {
            config: self.config.clone(),
            embedding: Arc::clone(&self.embedding),
            projections,
            place: self.place.clone(),
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            norm: self.norm.clone(),
            head: Some(Arc::new(head)),
            head_inputs: None,
            device: self.device.clone(),
            dtype: self.dtype,
            watched: Vec::new(),
            held: self.held,
        })
    }
}
