//! Gated delta rule layer: the projections, convolution, norms and gates around [`DeltaRule`],
//! which computes the recurrence over queries, keys, values, strengths and decays.
//!
//! Source: Yang, Kautz, Hatamizadeh 2025 (Gated Delta Networks); layout as in Qwen3-Next: queries,
//! keys and values go through one short convolution and SiLU, queries and keys are normed to length
//! one, outputs are normed by head and gated.

use std::sync::Arc;

use polydraft_kernels::{Activation, DeltaRule, Norm, Rows};

use super::experts::sigmoid;
use super::pass::SequenceTokens;
use super::recurrent::{Convolution, softplus, store_inputs};
use crate::error::Result;
use crate::linear::Linear;

/// Gated delta rule layer.
#[derive(Debug)]
pub(crate) struct Delta {
    pub rule: DeltaRule,
    /// Projections to queries, keys, values and the output's gate, stacked.
    pub input: Linear,
    pub output: Linear,
    pub parameters: Arc<Parameters>,
}

/// Parameters that are never quantised.
#[derive(Debug)]
pub(crate) struct Parameters {
    /// Projections to strengths, then decays: `[2 · value_heads, hidden]`.
    pub gates: Linear,
    /// Convolution of queries, keys and values.
    pub convolution: Convolution,
    /// Decay rate of each value head: the decay is exp(rate · softplus(x + shift)).
    pub rates: Vec<f32>,
    /// Added to each value head's decay input.
    pub shifts: Vec<f32>,
    /// Norm of a head's values.
    pub norm: Norm,
}

/// Added to the squared length of a query or key.
const EPSILON: f32 = 1e-6;

impl Delta {
    /// Computes the tokens of all sequences; `layer` counts the recurrent layers only.
    pub fn forward(&self, layer: usize, x: &Rows, batch: &mut [SequenceTokens]) -> Result<Rows> {
        let (rule, parameters) = (&self.rule, &*self.parameters);
        let mixed = self.input.forward(x)?;
        let gates = parameters.gates.forward(x)?;
        let read = mixed.columns(0, rule.mixed_width());
        let read = parameters.convolution.forward(layer, read.numbers(), rule.mixed_width(), batch);
        let mut rows = Activation::Silu.forward(&read, rule.mixed_width(), false).into_numbers();

        let mut inputs = Vec::with_capacity(x.count() * rule.width());
        let gates = gates.numbers().chunks_exact(2 * rule.value_heads);
        for (row, gates) in rows.chunks_exact_mut(rule.mixed_width()).zip(gates) {
            self.norm_keys(row);
            inputs.extend_from_slice(row);
            let (strengths, decays) = gates.split_at(rule.value_heads);
            let scales = parameters.rates.iter().zip(&parameters.shifts);
            let decay =
                |(x, (rate, shift)): (&f32, (&f32, &f32))| (rate * softplus(x + shift)).exp();
            inputs.extend(decays.iter().zip(scales).map(decay));
            inputs.extend(strengths.iter().map(|x| sigmoid(*x)));
        }
        store_inputs(layer, &inputs, rule.width(), batch);
        let mut walks: Vec<_> =
            batch.iter_mut().filter_map(|sequence| sequence.cache.walk(layer)).collect();
        let mut found = rule.forward(&mut walks);
        parameters.norm.apply(found.numbers_mut())?;
        let gate = mixed.columns(rule.mixed_width(), found.width());
        let gate = Activation::Silu.forward(&gate, found.width(), false);
        found.numbers_mut().iter_mut().zip(gate.numbers()).for_each(|(x, gate)| *x *= gate);
        self.output.forward(&found)
    }

    /// Scales every query and key of a token to length one, and queries further by the attention
    /// scale.
    fn norm_keys(&self, row: &mut [f32]) {
        let DeltaRule { key_heads, key, .. } = self.rule;
        let scale = (key as f32).sqrt().recip();
        for (number, head) in row[..2 * key_heads * key].chunks_exact_mut(key).enumerate() {
            let squares: f32 = head.iter().map(|x| x * x).sum();
            let scale = if number < key_heads { scale } else { 1.0 };
            let factor = scale / (squares + EPSILON).sqrt();
            head.iter_mut().for_each(|x| *x *= factor);
        }
    }
}
