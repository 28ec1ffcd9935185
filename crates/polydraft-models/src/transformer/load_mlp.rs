//! Loads the feed-forward block of a layer.

use std::sync::Arc;

use polydraft_kernels::Norm;

use super::dense::Dense;
use super::dense_and_experts::DenseAndExperts;
use super::experts::{Experts, Latent, Shared};
use super::load::{Loader, single_row};
use super::mlp::Mlp;
use crate::config::{Config, Experts as Shape, SharedExpert as SharedShape};
use crate::error::Result;
use crate::linear::Linear;
use crate::names::{ExpertNames, Layout};
use crate::weights::TensorRows;

impl Loader<'_> {
    /// Loads the feed-forward block of layer `number`.
    pub(super) fn mlp(&mut self, number: usize) -> Result<Mlp> {
        match self.config.experts_of(number).cloned() {
            None => self.dense_block(number).map(Mlp::Dense),
            Some(shape) if !shape.parallel => {
                let experts = self.experts(number, &shape)?;
                Ok(Mlp::Experts(Box::new(experts)))
            }
            Some(shape) => {
                Ok(Mlp::DenseAndExperts(Box::new(self.dense_and_experts(number, &shape)?)))
            }
        }
    }

    /// Loads the dense block of layer `number`.
    fn dense_block(&mut self, number: usize) -> Result<Dense> {
        let Config { names, biases, .. } = *self.config;
        let (names, biased) = ((names.mlp_in, names.mlp_out), biases.feed_forward);
        self.dense(number, names, self.config.intermediate_of(number), biased)
    }

    fn dense_and_experts(&mut self, number: usize, shape: &Shape) -> Result<DenseAndExperts> {
        let Config { hidden, names, norm_epsilon, .. } = *self.config;
        let [dense_norm, pre, post] = names.experts.norms.map(|part| self.name(number, part));
        let scale = self.name(number, names.experts.router_scale);
        let mut weight = self.weights.vector(&scale, hidden)?;
        let factor = (hidden as f32).powf(-0.5);
        weight.iter_mut().for_each(|weight| *weight *= factor);
        Ok(DenseAndExperts {
            dense: self.dense_block(number)?,
            dense_norm: self.norm(&dense_norm, hidden)?,
            router_norm: Norm::Rms { weight, epsilon: norm_epsilon as f32 },
            norms: [self.norm(&pre, hidden)?, self.norm(&post, hidden)?],
            experts: self.experts(number, shape)?,
        })
    }

    fn name(&self, number: usize, part: &str) -> String {
        format!("{}.{number}.{part}", self.config.names.layers)
    }

    fn dense(
        &mut self,
        number: usize,
        (gate_up, down): (&[&str], &str),
        inner: usize,
        biased: bool,
    ) -> Result<Dense> {
        let hidden = self.config.hidden;
        // Gate and up may be one tensor.
        let halves = if self.config.feed_forward.gated { 2 } else { 1 };
        let rows = inner * halves / gate_up.len().max(1);
        let gate_up: Vec<_> = gate_up.iter().map(|part| (self.name(number, part), rows)).collect();
        let down = [(self.name(number, down), hidden)];
        Ok(Dense {
            gate_up: self.linear(&gate_up, hidden, biased)?,
            down: self.linear(&down, inner, biased)?,
        })
    }

    fn experts(&mut self, number: usize, shape: &Shape) -> Result<Experts> {
        let Config { hidden, .. } = *self.config;
        let names = self.expert_names(number);
        let router = self.name(number, names.router);
        let router = self.unquantised_linear(&router, shape.count, shape.biased)?;
        let correction = match shape.corrected {
            false => None,
            true => {
                let name = self.name(number, names.correction);
                // ERNIE's has a row for each group of experts, of which there is one.
                let is_row = self.weights.shape(&name) == Some(vec![1, shape.count]);
                let dims = if is_row { vec![1, shape.count] } else { vec![shape.count] };
                Some(self.weights.numbers(&name, &dims)?)
            }
        };
        let scales = match shape.scaled {
            false => None,
            true => {
                let name = self.name(number, names.scales);
                Some(self.weights.vector(&name, shape.count)?)
            }
        };
        let latent = match shape.latent {
            None => None,
            Some(narrow) => {
                let [down, up] = names.latent.map(|part| self.name(number, part));
                let down = self.linear(&[(down, narrow)], hidden, false)?;
                let up = self.linear(&[(up, hidden)], narrow, false)?;
                Some(Latent { down, up })
            }
        };
        let (inner, width) = (shape.intermediate, shape.latent.unwrap_or(hidden));
        let halves = if self.config.feed_forward.gated { 2 } else { 1 };
        let rows = halves * inner / names.mlp_in.len().max(1);
        let gate_up: Vec<String> =
            names.mlp_in.iter().map(|part| self.name(number, part)).collect();
        let down = self.name(number, names.mlp_out);
        let mut blocks = Vec::with_capacity(shape.count);
        let mut biases = self.expert_biases(shape, &gate_up, &down)?;
        for expert in 0..shape.count {
            let rows_of = |name: &str, rows, columns| {
                expert_rows(name, [shape.count, rows, columns], expert, names.layout)
            };
            let mut parts: Vec<TensorRows> =
                gate_up.iter().map(|name| rows_of(name, rows, width)).collect();
            if let (Layout::Columns, [both]) = (names.layout, &parts[..]) {
                parts = [0, 1].map(|from| both.clone().every_second(from)).into();
            }
            let [in_bias, out_bias] = match &mut biases {
                None => [None, None],
                Some([in_biases, out_biases]) => {
                    [in_biases, out_biases].map(|all| Some(single_row(all.remove(0))))
                }
            };
            let matrix = self.stacked(&parts, width)?;
            let gate_up = Linear { matrix, bias: in_bias, inputs: None };
            let matrix = self.stacked(&[rows_of(&down, width, inner)], inner)?;
            blocks.push(Dense { gate_up, down: Linear { matrix, bias: out_bias, inputs: None } });
        }
        let shared = match shape.shared {
            None => None,
            Some(SharedShape { intermediate, gated }) => {
                let shared = (names.shared_in, names.shared_out);
                let block = self.dense(number, shared, intermediate, false)?;
                let gate = match gated {
                    false => None,
                    true => {
                        let gate = self.name(number, names.shared_gate);
                        Some(self.unquantised_linear(&gate, 1, false)?)
                    }
                };
                Some(Shared { block, gate })
            }
        };
        Ok(Experts { shape: shape.clone(), router, correction, scales, latent, blocks, shared })
    }

    /// Names of a layer's experts. Qwen3.5's experts are published in two tensors, except in FP8,
    /// where each expert has its own.
    fn expert_names(&self, number: usize) -> ExpertNames {
        let names = self.config.names.experts;
        let is_there = |names: &ExpertNames| {
            names.mlp_in.iter().any(|part| self.weights.has(&self.name(number, part)))
        };
        names.stacked().filter(is_there).unwrap_or(names)
    }

    /// Loads a small linear layer in full precision: routers and gates are never quantised.
    fn unquantised_linear(&mut self, name: &str, rows: usize, biased: bool) -> Result<Arc<Linear>> {
        let hidden = self.config.hidden;
        let tensor = format!("{name}.weight");
        let part = match rows == 1 && self.weights.is_vector(&tensor) {
            true => TensorRows::vector(tensor),
            false => TensorRows::first_rows(tensor, rows, rows),
        };
        let matrix = self.unquantised_matrix(&[part], hidden)?;
        let bias = match biased {
            false => None,
            true => Some(single_row(self.weights.vector(&format!("{name}.bias"), rows)?)),
        };
        Ok(Arc::new(Linear { matrix, bias, inputs: None }))
    }

    /// Loads the biases of both linear layers of every expert.
    fn expert_biases(
        &mut self,
        shape: &Shape,
        gate_up: &[String],
        down: &str,
    ) -> Result<Option<[Vec<Vec<f32>>; 2]>> {
        if !shape.biased {
            return Ok(None);
        }
        let Config { hidden, names, .. } = *self.config;
        let layout = names.experts.layout;
        let name = |part: &str| match layout {
            Layout::Rows => format!("{part}.bias"),
            _ => format!("{part}_bias"),
        };
        let width = 2 * shape.intermediate / gate_up.len().max(1);
        let mut in_biases = vec![Vec::new(); shape.count];
        for part in gate_up {
            let all = self.weights.numbers(&name(part), &[shape.count, width])?;
            for (bias, row) in in_biases.iter_mut().zip(all.chunks_exact(width)) {
                match layout {
                    Layout::Columns => {
                        let halves = [0, 1].map(|from| row[from..].iter().step_by(2).copied());
                        bias.extend(halves.into_iter().flatten());
                    }
                    _ => bias.extend_from_slice(row),
                }
            }
        }
        let all = self.weights.numbers(&name(down), &[shape.count, hidden])?;
        Ok(Some([in_biases, all.chunks_exact(hidden).map(<[f32]>::to_vec).collect()]))
    }
}

/// Rows of one expert's matrix, which is a tensor of its own or part of one tensor for all experts.
fn expert_rows(
    name: &str,
    [count, rows, columns]: [usize; 3],
    expert: usize,
    layout: Layout,
) -> TensorRows {
    if name.contains('#') {
        let name = format!("{}.weight", name.replace('#', &expert.to_string()));
        return TensorRows::first_rows(name, rows, rows);
    }
    match layout {
        Layout::Rows => TensorRows::matrix(format!("{name}.weight"), [count, rows], expert),
        Layout::RowsBareName => TensorRows::matrix(name.to_owned(), [count, rows], expert),
        Layout::Columns | Layout::ColumnsInHalves => {
            TensorRows::transposed(name.to_owned(), vec![count, columns], expert * columns, rows)
        }
    }
}
