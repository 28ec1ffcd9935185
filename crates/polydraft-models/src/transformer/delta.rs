//! A layer of the gated delta rule: see [`DeltaRule`] for what it computes of queries, keys,
//! values, strengths and decays; here is how they are made, and what becomes of the output.
//!
//! Source: Yang, Kautz, Hatamizadeh 2025 (Gated Delta Networks); layout as in Qwen3-Next: all of
//! queries, keys and values go through one short convolution and SiLU, queries and keys are normed
//! to length one, outputs are normed by head and gated.

use std::sync::Arc;

use polydraft_kernels::{Activation, DeltaRule, Norm, Rows};

use super::experts::sigmoid;
use super::pass::Part;
use super::recurrent::{Convolution, softplus, take_inputs};
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct Delta {
    pub rule: DeltaRule,
    /// Queries, keys, values and what gates the output, stacked.
    pub into: Linear,
    pub output: Linear,
    pub rest: Arc<Rest>,
}

/// What is never quantised.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Strengths, then decays: `[2 · value_heads, hidden]`.
    pub gates: Linear,
    /// Of queries, keys and values.
    pub convolution: Convolution,
    /// What decays are multiplied by, of every head of values, and what is added to them before.
    pub rates: Vec<f32>,
    pub shifts: Vec<f32>,
    /// Of a head's values.
    pub norm: Norm,
}

/// Added to the square of a length.
const EPSILON: f32 = 1e-6;

impl Delta {
    /// Of the tokens of all parts; `layer` is which of the recurrent ones it is.
    pub fn forward(&self, layer: usize, x: &Rows, parts: &mut [Part]) -> Result<Rows> {
        let (rule, rest) = (&self.rule, &*self.rest);
        let mixed = self.into.forward(x)?;
        let gates = rest.gates.forward(x)?;
        let read = mixed.columns(0, rule.mixed());
        let read = rest.convolution.forward(layer, read.numbers(), rule.mixed(), parts);
        let mut rows = Activation::Silu.forward(&read, rule.mixed(), false).into_numbers();

        let mut inputs = Vec::with_capacity(x.count() * rule.width());
        let gates = gates.numbers().chunks_exact(2 * rule.value_heads);
        for (row, gates) in rows.chunks_exact_mut(rule.mixed()).zip(gates) {
            self.norm_keys(row);
            inputs.extend_from_slice(row);
            let (strengths, decays) = gates.split_at(rule.value_heads);
            let scales = rest.rates.iter().zip(&rest.shifts);
            let decay =
                |(x, (rate, shift)): (&f32, (&f32, &f32))| (rate * softplus(x + shift)).exp();
            inputs.extend(decays.iter().zip(scales).map(decay));
            inputs.extend(strengths.iter().map(|x| sigmoid(*x)));
        }
        take_inputs(layer, &inputs, rule.width(), parts);
        let mut walks: Vec<_> =
            parts.iter_mut().filter_map(|part| part.cache.walk(layer)).collect();
        let mut found = rule.forward(&mut walks);
        rest.norm.apply(found.numbers_mut())?;
        let gate = mixed.columns(rule.mixed(), found.width());
        let gate = Activation::Silu.forward(&gate, found.width(), false);
        found.numbers_mut().iter_mut().zip(gate.numbers()).for_each(|(x, gate)| *x *= gate);
        self.output.forward(&found)
    }

    /// Makes every query and key of a token one long, and queries as much shorter as scores are
    /// scaled.
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
