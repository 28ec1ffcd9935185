//! A layer of a state space: see [`StateSpace`] for what it computes of values, decays and what
//! neighbouring heads share; here is how they are made, and what becomes of the output.
//!
//! Source: Dao, Gu 2024 (Mamba-2), as Granite 4 and Nemotron-H have it: values and what is shared
//! go through one short convolution and SiLU; a step of each head decides how much of its value
//! enters and how much of the state stays; outputs are gated, then normed by groups of heads.

use std::sync::Arc;

use polydraft_kernels::{Activation, Norm, Rows, StateSpace};

use super::pass::Part;
use super::recurrent::{Convolution, softplus, take_inputs};
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct StateSpaceLayer {
    pub rule: StateSpace,
    /// What gates the output, what the convolution reads, and steps, stacked.
    pub into: Linear,
    pub output: Linear,
    pub rest: Arc<Rest>,
}

/// What is never quantised.
#[derive(Debug)]
pub(crate) struct Rest {
    pub convolution: Convolution,
    /// Of every head what its steps are multiplied by in a decay, and what is added to them before;
    /// then what its values are multiplied by on their way past the state.
    pub rates: Vec<f32>,
    pub shifts: Vec<f32>,
    pub past: Vec<f32>,
    /// What steps are kept between.
    pub steps: [f32; 2],
    /// Of a group's outputs, without weights, which differ by group.
    pub norm: Norm,
    pub weights: Vec<f32>,
}

impl StateSpaceLayer {
    /// Of the tokens of all parts; `layer` is which of the recurrent ones it is.
    pub fn forward(&self, layer: usize, x: &Rows, parts: &mut [Part]) -> Result<Rows> {
        let (rule, rest) = (&self.rule, &*self.rest);
        let (inner, mixed) = (rule.inner(), rule.mixed());
        let all = self.into.forward(x)?;
        let read = all.columns(inner, mixed);
        let read = rest.convolution.forward(layer, read.numbers(), mixed, parts);
        let rows = Activation::Silu.forward(&read, mixed, false);

        let mut inputs = Vec::with_capacity(x.count() * rule.width());
        let steps = all.columns(inner + mixed, rule.heads);
        let [least, most] = rest.steps;
        let tokens = rows.numbers().chunks_exact(mixed);
        for (row, steps) in tokens.clone().zip(steps.numbers().chunks_exact(rule.heads)) {
            let shifted = steps.iter().zip(&rest.shifts).map(|(step, shift)| step + shift);
            let steps: Vec<f32> = shifted.map(|x| softplus(x).clamp(least, most)).collect();
            let (values, shared) = row.split_at(inner);
            for (values, step) in values.chunks_exact(rule.value).zip(&steps) {
                inputs.extend(values.iter().map(|value| value * step));
            }
            inputs.extend_from_slice(shared);
            inputs.extend(steps.iter().zip(&rest.rates).map(|(step, rate)| (rate * step).exp()));
        }
        take_inputs(layer, &inputs, rule.width(), parts);
        let mut walks: Vec<_> =
            parts.iter_mut().filter_map(|part| part.cache.walk(layer)).collect();
        let mut found = rule.forward(&mut walks);

        let gates = Activation::Silu.forward(&all.columns(0, inner), inner, false);
        let gates = gates.numbers().chunks_exact(inner);
        for ((row, values), gates) in
            found.numbers_mut().chunks_exact_mut(inner).zip(tokens).zip(gates)
        {
            let heads = row.chunks_exact_mut(rule.value).zip(values.chunks_exact(rule.value));
            for ((head, values), past) in heads.zip(&rest.past) {
                head.iter_mut().zip(values).for_each(|(x, value)| *x += past * value);
            }
            row.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
        }
        rest.norm.apply(found.numbers_mut())?;
        for row in found.numbers_mut().chunks_exact_mut(inner) {
            row.iter_mut().zip(&rest.weights).for_each(|(x, weight)| *x *= weight);
        }
        self.output.forward(&found)
    }
}
