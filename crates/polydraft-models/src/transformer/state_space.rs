//! State-space layer: the projections, convolution, steps and gates around [`StateSpace`], which
//! computes the recurrence over values, decays and the vectors that neighbouring heads share.
//!
//! Source: Dao, Gu 2024 (Mamba-2), as in Granite 4 and Nemotron-H: values and shared vectors go
//! through one short convolution and SiLU; the step of each head sets how much of its value enters
//! and how much of the state remains; outputs are gated, then normed by groups of heads.

use std::sync::Arc;

use polydraft_kernels::{Activation, Norm, Rows, StateSpace};

use super::pass::SequenceTokens;
use super::recurrent::{Convolution, softplus, store_inputs};
use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(crate) struct StateSpaceLayer {
    pub rule: StateSpace,
    /// Projections to the output's gate, the convolution's input and the steps, stacked.
    pub input: Linear,
    pub output: Linear,
    pub parameters: Arc<Parameters>,
}

/// Parameters that are never quantised.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub convolution: Convolution,
    /// Decay rate of each head: the decay of a step is exp(rate · step).
    pub rates: Vec<f32>,
    /// Bias of each head's step.
    pub shifts: Vec<f32>,
    /// Weight of each head's value in the output, in addition to the state (D in Mamba).
    pub skip: Vec<f32>,
    /// Bounds to which steps are clamped.
    pub steps: [f32; 2],
    /// Norm of a group's outputs, without weights.
    pub norm: Norm,
    /// Weights of the norm, which differ by group.
    pub weights: Vec<f32>,
}

impl StateSpaceLayer {
    /// Computes the tokens of all sequences; `layer` counts the recurrent layers only.
    pub fn forward(&self, layer: usize, x: &Rows, batch: &mut [SequenceTokens]) -> Result<Rows> {
        let (rule, parameters) = (&self.rule, &*self.parameters);
        let (inner, mixed) = (rule.inner(), rule.mixed_width());
        let all = self.input.forward(x)?;
        let read = all.columns(inner, mixed);
        let read = parameters.convolution.forward(layer, read.numbers(), mixed, batch);
        let rows = Activation::Silu.forward(&read, mixed, false);

        let mut inputs = Vec::with_capacity(x.count() * rule.width());
        let steps = all.columns(inner + mixed, rule.heads);
        let [least, most] = parameters.steps;
        let tokens = rows.numbers().chunks_exact(mixed);
        for (row, steps) in tokens.clone().zip(steps.numbers().chunks_exact(rule.heads)) {
            let shifted = steps.iter().zip(&parameters.shifts).map(|(step, shift)| step + shift);
            let steps: Vec<f32> = shifted.map(|x| softplus(x).clamp(least, most)).collect();
            let (values, shared) = row.split_at(inner);
            for (values, step) in values.chunks_exact(rule.value).zip(&steps) {
                inputs.extend(values.iter().map(|value| value * step));
            }
            inputs.extend_from_slice(shared);
            inputs.extend(
                steps.iter().zip(&parameters.rates).map(|(step, rate)| (rate * step).exp()),
            );
        }
        store_inputs(layer, &inputs, rule.width(), batch);
        let mut walks: Vec<_> =
            batch.iter_mut().filter_map(|sequence| sequence.cache.walk(layer)).collect();
        let mut outputs = rule.forward(&mut walks);

        let gates = Activation::Silu.forward(&all.columns(0, inner), inner, false);
        let gates = gates.numbers().chunks_exact(inner);
        for ((row, values), gates) in
            outputs.numbers_mut().chunks_exact_mut(inner).zip(tokens).zip(gates)
        {
            let heads = row.chunks_exact_mut(rule.value).zip(values.chunks_exact(rule.value));
            for ((head, values), skip) in heads.zip(&parameters.skip) {
                head.iter_mut().zip(values).for_each(|(x, value)| *x += skip * value);
            }
            row.iter_mut().zip(gates).for_each(|(x, gate)| *x *= gate);
        }
        parameters.norm.apply(outputs.numbers_mut())?;
        for row in outputs.numbers_mut().chunks_exact_mut(inner) {
            row.iter_mut().zip(&parameters.weights).for_each(|(x, weight)| *x *= weight);
        }
        self.output.forward(&outputs)
    }
}
