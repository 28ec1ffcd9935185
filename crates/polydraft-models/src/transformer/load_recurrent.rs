//! Loads recurrent layers.

use std::sync::Arc;

use polydraft_kernels::{DeltaRule, Norm, StateSpace};

use super::delta::{Delta, Parameters};
use super::layer::Attention;
use super::load::{Loader, all_rows};
use super::recurrent::Convolution;
use super::short_convolution::ShortConvolution;
use super::state_space::{self, StateSpaceLayer};
use crate::config::{Config, Mixer, Recurrent};
use crate::error::Result;
use crate::linear::{Linear, Matrix};
use crate::names::{Rates, RecurrentNames};
use crate::weights::{TensorRows, Weights};

impl Loader<'_> {
    /// Loads the recurrent mixer of layer `number`.
    pub(super) fn recurrent(&mut self, number: usize, shape: &Recurrent) -> Result<Attention> {
        Ok(match &shape.mixer {
            Mixer::Delta(rule) => {
                Attention::Delta(Box::new(self.delta(number, *rule, shape.kernel)?))
            }
            Mixer::Convolution { biased } => Attention::Convolution(Box::new(
                self.short_convolution(number, shape.kernel, *biased)?,
            )),
            Mixer::StateSpace { rule, steps, biased, convolution_biased } => {
                let convolution = self.convolution(
                    number,
                    [shape.kernel, rule.mixed_width()],
                    *convolution_biased,
                )?;
                let layer = self.state_space(number, *rule, *steps, convolution, *biased)?;
                Attention::StateSpace(Box::new(layer))
            }
        })
    }

    fn short_convolution(
        &mut self,
        number: usize,
        kernel: usize,
        biased: bool,
    ) -> Result<ShortConvolution> {
        let Config { hidden, names, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let RecurrentNames { into, output, .. } = names.recurrent;
        Ok(ShortConvolution {
            input: self.linear(&[(name(into), 3 * hidden)], hidden, biased)?,
            convolution: Arc::new(self.convolution(number, [kernel, hidden], biased)?),
            output: self.linear(&[(name(output), hidden)], hidden, biased)?,
        })
    }

    fn state_space(
        &mut self,
        number: usize,
        rule: StateSpace,
        steps: [f32; 2],
        convolution: Convolution,
        biased: bool,
    ) -> Result<StateSpaceLayer> {
        let Config { hidden, names, norm_epsilon, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let RecurrentNames { into, output, shift, skip, norm, .. } = names.recurrent;
        let (inner, group_width) = (rule.inner(), rule.inner() / rule.groups);
        let rows = inner + rule.mixed_width() + rule.heads;
        let parameters = state_space::Parameters {
            convolution,
            rates: self.rates(number, rule.heads)?,
            shifts: self.weights.vector(&name(shift), rule.heads)?,
            skip: self.flat(&name(skip), [rule.heads, 1])?,
            steps,
            norm: Norm::Rms { weight: vec![1.0; group_width], epsilon: norm_epsilon as f32 },
            weights: self.flat(&format!("{}.weight", name(norm)), [rule.groups, group_width])?,
        };
        Ok(StateSpaceLayer {
            rule,
            input: self.linear(&[(name(into), rows)], hidden, biased)?,
            output: self.linear(&[(name(output), hidden)], inner, biased)?,
            parameters: Arc::new(parameters),
        })
    }

    /// Loads the decay rate of every head.
    fn rates(&mut self, number: usize, heads: usize) -> Result<Vec<f32>> {
        let names = self.config.names;
        let name = format!("{}.{number}.{}", names.layers, names.recurrent.rate);
        let mut rates = self.flat(&name, [heads, 1])?;
        if names.recurrent.rates == Rates::Logarithms {
            rates.iter_mut().for_each(|rate| *rate = -rate.exp());
        }
        Ok(rates)
    }

    /// Loads the numbers of a small tensor, which is a vector in directories and in some GGUF
    /// files, and a matrix in others.
    fn flat(&mut self, name: &str, [rows, columns]: [usize; 2]) -> Result<Vec<f32>> {
        match self.weights {
            Weights::Gguf(_) if !self.weights.is_vector(name) => {
                self.weights.numbers(name, &[rows, columns])
            }
            _ => self.weights.vector(name, rows * columns),
        }
    }

    fn delta(&mut self, number: usize, rule: DeltaRule, kernel: usize) -> Result<Delta> {
        let Config { hidden, names, norm_epsilon, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let DeltaRule { key_heads, value_heads, key, value, .. } = rule;
        let RecurrentNames { into, gate, strength, decay, .. } = names.recurrent;
        let shared = value_heads / key_heads;
        let widths = [key, key, shared * value];
        let parts = match gate.is_empty() {
            // The tensor is grouped by key head; reorder it by block, each with all heads.
            true => by_heads(&name(into), key_heads, &[&widths[..], &[shared * value]].concat()),
            false => {
                vec![
                    all_rows(&name(into), rule.mixed_width()),
                    all_rows(&name(gate), value_heads * value),
                ]
            }
        };
        let matrix = self.stacked(&parts, hidden)?;
        let parts = match decay.is_empty() {
            true => by_heads(&name(strength), key_heads, &[shared, shared]),
            false => {
                vec![all_rows(&name(strength), value_heads), all_rows(&name(decay), value_heads)]
            }
        };
        let gates = self.unquantised_matrix(&parts, hidden)?;
        let norm = format!("{}.weight", name(names.recurrent.norm));
        let weight = self.weights.vector(&norm, value)?;
        let output = [(name(names.recurrent.output), hidden)];
        let parameters = Parameters {
            gates: unbiased(gates),
            convolution: self.convolution(number, [kernel, rule.mixed_width()], false)?,
            rates: self.rates(number, value_heads)?,
            shifts: self.weights.vector(&name(names.recurrent.shift), value_heads)?,
            norm: Norm::Rms { weight, epsilon: norm_epsilon as f32 },
        };
        Ok(Delta {
            rule,
            input: unbiased(matrix),
            output: self.linear(&output, value_heads * value, false)?,
            parameters: Arc::new(parameters),
        })
    }

    fn convolution(
        &mut self,
        number: usize,
        [kernel, channels]: [usize; 2],
        biased: bool,
    ) -> Result<Convolution> {
        let names = self.config.names;
        let name = format!("{}.{number}.{}", names.layers, names.recurrent.convolution);
        let shape: &[usize] = match &self.weights {
            Weights::Directory(_) => &[channels, 1, kernel],
            Weights::Gguf(_) => &[channels, kernel],
        };
        let weights = self.weights.numbers(&format!("{name}.weight"), shape)?;
        // Transposed to `[kernel, channels]`.
        let transposed = |at: usize| weights[at % channels * kernel + at / channels];
        let weights = (0..kernel * channels).map(transposed).collect();
        let bias = match biased {
            false => None,
            true => Some(self.weights.vector(&format!("{name}.bias"), channels)?),
        };
        Ok(Convolution { weights, bias })
    }
}

fn unbiased(matrix: Matrix) -> Linear {
    Linear { matrix, bias: None, inputs: None }
}

/// Rows of a tensor that is grouped by head, each head with blocks of these widths, reordered by
/// block: the first blocks of all heads, then the second blocks, and so on.
pub(super) fn by_heads(name: &str, heads: usize, widths: &[usize]) -> Vec<TensorRows> {
    let head_rows: usize = widths.iter().sum();
    let mut parts = Vec::with_capacity(widths.len() * heads);
    let mut before = 0;
    for width in widths {
        for head in 0..heads {
            let first = head * head_rows + before;
            parts.push(TensorRows { first, count: *width, ..all_rows(name, heads * head_rows) });
        }
        before += width;
    }
    parts
}
