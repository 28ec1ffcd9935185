//! The feed-forward block of a layer, from tensors on disk.

use std::sync::Arc;

use polydraft_kernels::Norm;

use super::beside::Beside;
use super::dense::Dense;
use super::experts::{Experts, Latent, Shared};
use super::load::{Loader, row};
use super::mlp::Mlp;
use crate::config::{Config, Experts as Shape, Shared as SharedShape};
use crate::error::Result;
use crate::linear::Linear;
use crate::names::{ExpertNames, Layout};
use crate::weights::Part;

impl Loader<'_> {
    pub(super) fn mlp(&mut self, number: usize) -> Result<Mlp> {
        match self.config.experts_of(number).cloned() {
            None => self.block_of(number).map(Mlp::Dense),
            Some(shape) if !shape.beside => {
                let experts = self.experts(number, &shape)?;
                Ok(Mlp::Experts(Box::new(experts)))
            }
            Some(shape) => Ok(Mlp::Beside(Box::new(self.beside(number, &shape)?))),
        }
    }

    /// That of all tokens.
    fn block_of(&mut self, number: usize) -> Result<Dense> {
        let Config { names, biases, .. } = *self.config;
        let (names, biased) = ((names.mlp_in, names.mlp_out), biases.feed_forward);
        self.dense(number, names, self.config.intermediate_of(number), biased)
    }

    fn beside(&mut self, number: usize, shape: &Shape) -> Result<Beside> {
        let Config { hidden, names, norm_epsilon, .. } = *self.config;
        let [dense_norm, before, behind] = names.experts.norms.map(|part| self.name(number, part));
        let scale = self.name(number, names.experts.router_scale);
        let mut weight = self.weights.vector(&scale, hidden)?;
        let factor = (hidden as f32).powf(-0.5);
        weight.iter_mut().for_each(|weight| *weight *= factor);
        Ok(Beside {
            dense: self.block_of(number)?,
            dense_norm: self.norm(&dense_norm, hidden)?,
            router_norm: Norm::Rms { weight, epsilon: norm_epsilon as f32 },
            norms: [self.norm(&before, hidden)?, self.norm(&behind, hidden)?],
            experts: self.experts(number, shape)?,
        })
    }

    fn name(&self, number: usize, part: &str) -> String {
        format!("{}.{number}.{part}", self.config.names.layers)
    }

    fn dense(
        &mut self,
        number: usize,
        (into, out): (&[&str], &str),
        inner: usize,
        biased: bool,
    ) -> Result<Dense> {
        let hidden = self.config.hidden;
        // Gate and up may be one.
        let sides = if self.config.feed_forward.gated { 2 } else { 1 };
        let rows = inner * sides / into.len().max(1);
        let into: Vec<_> = into.iter().map(|part| (self.name(number, part), rows)).collect();
        let out = [(self.name(number, out), hidden)];
        Ok(Dense {
            into: self.linear(&into, hidden, biased)?,
            out: self.linear(&out, inner, biased)?,
        })
    }

    fn experts(&mut self, number: usize, shape: &Shape) -> Result<Experts> {
        let Config { hidden, .. } = *self.config;
        let names = self.expert_names(number);
        let router = self.name(number, names.router);
        let router = self.in_full(&router, shape.count, shape.biased)?;
        let correction = match shape.corrected {
            false => None,
            true => {
                let name = self.name(number, names.correction);
                Some(self.weights.vector(&name, shape.count)?)
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
        let sides = if self.config.feed_forward.gated { 2 } else { 1 };
        let rows = sides * inner / names.mlp_in.len().max(1);
        let into: Vec<String> = names.mlp_in.iter().map(|part| self.name(number, part)).collect();
        let out = self.name(number, names.mlp_out);
        let mut each = Vec::with_capacity(shape.count);
        let mut biases = self.biases_of(shape, &into, &out)?;
        for expert in 0..shape.count {
            let part = |name: &str, rows, columns| {
                part(name, [shape.count, rows, columns], expert, names.layout)
            };
            let mut parts: Vec<Part> = into.iter().map(|name| part(name, rows, width)).collect();
            if let (Layout::Columns, [both]) = (names.layout, &parts[..]) {
                parts = [0, 1].map(|from| both.clone().every_other(from)).into();
            }
            let [of_in, of_out] = match &mut biases {
                None => [None, None],
                Some([of_in, of_out]) => [of_in, of_out].map(|all| Some(row(all.remove(0)))),
            };
            let matrix = self.stacked(&parts, width)?;
            let into = Linear { matrix, bias: of_in, inputs: None };
            let matrix = self.stacked(&[part(&out, width, inner)], inner)?;
            each.push(Dense { into, out: Linear { matrix, bias: of_out, inputs: None } });
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
                        Some(self.in_full(&gate, 1, false)?)
                    }
                };
                Some(Shared { block, gate })
            }
        };
        Ok(Experts { shape: shape.clone(), router, correction, scales, latent, each, shared })
    }

    /// What a layer's experts are called. Qwen3.5's are published in two tensors, but for FP8,
    /// where each has its own.
    fn expert_names(&self, number: usize) -> ExpertNames {
        let names = self.config.names.experts;
        let is_there = |names: &ExpertNames| {
            names.mlp_in.iter().any(|part| self.weights.has(&self.name(number, part)))
        };
        names.stacked().filter(is_there).unwrap_or(names)
    }

    /// A small product that decides for many: never quantised.
    fn in_full(&mut self, name: &str, rows: usize, biased: bool) -> Result<Arc<Linear>> {
        let hidden = self.config.hidden;
        let tensor = format!("{name}.weight");
        let part = match rows == 1 && self.weights.is_vector(&tensor) {
            true => Part::vector(tensor),
            false => Part::of(tensor, rows, rows),
        };
        let matrix = self.looked_up(&[part], hidden)?;
        let bias = match biased {
            false => None,
            true => Some(row(self.weights.vector(&format!("{name}.bias"), rows)?)),
        };
        Ok(Arc::new(Linear { matrix, bias, inputs: None }))
    }

    /// Of every expert the biases of its two products.
    fn biases_of(
        &mut self,
        shape: &Shape,
        into: &[String],
        out: &str,
    ) -> Result<Option<[Vec<Vec<f32>>; 2]>> {
        if !shape.biased {
            return Ok(None);
        }
        let Config { hidden, names, .. } = *self.config;
        let layout = names.experts.layout;
        let name = |of: &str| match layout {
            Layout::Rows => format!("{of}.bias"),
            Layout::Bare | Layout::Columns => format!("{of}_bias"),
        };
        let width = 2 * shape.intermediate / into.len().max(1);
        let mut of_in = vec![Vec::new(); shape.count];
        for part in into {
            let all = self.weights.numbers(&name(part), &[shape.count, width])?;
            for (bias, own) in of_in.iter_mut().zip(all.chunks_exact(width)) {
                match layout {
                    Layout::Rows | Layout::Bare => bias.extend_from_slice(own),
                    Layout::Columns => {
                        let halves = [0, 1].map(|from| own[from..].iter().step_by(2).copied());
                        bias.extend(halves.into_iter().flatten());
                    }
                }
            }
        }
        let all = self.weights.numbers(&name(out), &[shape.count, hidden])?;
        Ok(Some([of_in, all.chunks_exact(hidden).map(<[f32]>::to_vec).collect()]))
    }
}

/// A matrix of an expert: of a tensor of its own, or of one that has those of all.
fn part(name: &str, [count, rows, columns]: [usize; 3], expert: usize, layout: Layout) -> Part {
    if name.contains('#') {
        let name = format!("{}.weight", name.replace('#', &expert.to_string()));
        return Part::of(name, rows, rows);
    }
    match layout {
        Layout::Rows => Part::matrix(format!("{name}.weight"), [count, rows], expert),
        Layout::Bare => Part::matrix(name.to_owned(), [count, rows], expert),
        Layout::Columns => {
            Part::turned(name.to_owned(), vec![count, columns], expert * columns, rows)
        }
    }
}
