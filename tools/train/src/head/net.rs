//! An EAGLE-3 head as it is trained: unrolled over the steps of a draft, with gradients.
//!
//! Problem: at inference the second step of a draft begins with what the head left, not with the
//! target's states; a head that never saw its own states in training fails there.
//! Source: Li et al. 2025 (EAGLE-3), "training-time test". The forward pass of a step is that of
//! polydraft-models's head, which decodes with a cache, trees and no gradients; a test holds the
//! two against each other.
//! Method: step t at place i reads token i + 1 + t, at position i + t, and the state that step t −
//! 1 left there. It sees what step 0 made of places 0..=i, from the target's states, and what steps
//! 1..=t made of place i.

use std::collections::HashMap;

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor, Var};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};

use super::ops::{Angles, SightSoftmax, SiluGate, Turn};
use crate::model::stored_tensor;
use crate::ops::RmsNorm;

/// The shape of a head, with the field names of its `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub rope_theta: f64,
    pub rms_norm_eps: f32,
    /// Inputs of which layers of the target are read.
    pub eagle_aux_hidden_state_layer_ids: Vec<usize>,
}

/// The parts of a head that are learned.
pub struct Net {
    pub shape: Shape,
    /// Every parameter under the name that it is published with.
    pub parameters: Vec<(String, Var)>,
}

/// What one step found.
pub struct Step {
    /// For which places: the first so many of those asked for.
    pub rows: usize,
    /// What logits are made of, `[rows, hidden]`.
    pub normed: Tensor,
}

impl Net {
    /// Takes the parameters from `stored` where given. Else they are drawn, such that the head
    /// begins with the last of the target's states that it reads.
    pub fn new(
        shape: Shape,
        stored: Option<&HashMap<String, Tensor>>,
        rng: &mut ChaCha12Rng,
    ) -> Result<Self> {
        let (d, heads, head) = (shape.hidden_size, shape.num_attention_heads, shape.head_dim);
        let (kv, inner) = (shape.num_key_value_heads * head, shape.intermediate_size);
        let count = shape.eagle_aux_hidden_state_layer_ids.len();
        let mut parameters = Vec::new();
        for (name, dims) in [
            ("fc.weight", vec![d, count * d]),
            ("midlayer.input_layernorm.weight", vec![d]),
            ("midlayer.hidden_norm.weight", vec![d]),
            ("midlayer.self_attn.q_proj.weight", vec![heads * head, 2 * d]),
            ("midlayer.self_attn.k_proj.weight", vec![kv, 2 * d]),
            ("midlayer.self_attn.v_proj.weight", vec![kv, 2 * d]),
            ("midlayer.self_attn.o_proj.weight", vec![d, heads * head]),
            ("midlayer.post_attention_layernorm.weight", vec![d]),
            ("midlayer.mlp.gate_proj.weight", vec![inner, d]),
            ("midlayer.mlp.up_proj.weight", vec![inner, d]),
            ("midlayer.mlp.down_proj.weight", vec![d, inner]),
            ("norm.weight", vec![d]),
        ] {
            let tensor = match stored {
                Some(all) => stored_tensor(all, name, &dims)?,
                None => initial(name, &dims, rng)?,
            };
            parameters.push((name.to_owned(), Var::from_tensor(&tensor)?));
        }
        Ok(Self { shape, parameters })
    }

    /// Begins with the target's own last norm: the output matrix is made for what comes from it.
    pub fn begin_with(&self, norm: Vec<f32>) -> Result<()> {
        let width = norm.len();
        Ok(self.weight("norm.weight")?.set(&Tensor::from_vec(norm, width, &Device::Cpu)?)?)
    }

    fn weight(&self, name: &str) -> Result<&Var> {
        let found = self.parameters.iter().find(|(own, _)| own == name);
        found.map(|(_, var)| var).with_context(|| format!("no parameter {name}"))
    }

    fn product(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        Ok(x.matmul(&self.weight(name)?.t()?)?)
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let norm = RmsNorm { epsilon: self.shape.rms_norm_eps };
        Ok(x.apply_op2(self.weight(name)?.as_tensor(), norm)?)
    }

    /// Unrolls `steps` steps at `places`, which ascend, of a text: with the target's states of all
    /// its tokens but the last, `[tokens - 1, read]`, and its tokens' embeddings, `[tokens,
    /// hidden]`.
    pub fn unroll(
        &self,
        states: &Tensor,
        embedded: &Tensor,
        places: &[usize],
        steps: usize,
    ) -> Result<Vec<Step>> {
        let Shape { head_dim: head, rope_theta: theta, .. } = self.shape;
        let (all, tokens) = (states.dim(0)?, embedded.dim(0)?);
        let turn = |x: &Tensor, positions: &[usize]| {
            x.apply_op1(Turn { angles: Angles::new(positions, head, theta), inverse: false })
        };
        let embedded = self.norm(embedded, "midlayer.input_layernorm.weight")?;
        let state = self.product(states, "fc.weight")?;
        let joined = Tensor::cat(
            &[&embedded.narrow(0, 1, all)?, &self.norm(&state, "midlayer.hidden_norm.weight")?],
            1,
        )?;
        let every: Vec<usize> = (0..all).collect();
        let keys = turn(&self.product(&joined, "midlayer.self_attn.k_proj.weight")?, &every)?;
        let values = self.product(&joined, "midlayer.self_attn.v_proj.weight")?;

        let select = |x: &Tensor, ids: &[usize]| {
            let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            x.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)
        };
        let (mut state, mut joined) = (select(&state, places)?, select(&joined, places)?);
        let mut own: Vec<[Tensor; 2]> = Vec::new();
        let mut found = Vec::with_capacity(steps);
        for step in 0..steps {
            let rows = places.partition_point(|place| place + 1 + step < tokens);
            if rows == 0 {
                break;
            }
            let positions: Vec<usize> = places[..rows].iter().map(|place| place + step).collect();
            if step > 0 {
                state = state.narrow(0, 0, rows)?;
                let read: Vec<usize> = positions.iter().map(|position| position + 1).collect();
                let normed = self.norm(&state.contiguous()?, "midlayer.hidden_norm.weight")?;
                joined = Tensor::cat(&[&select(&embedded, &read)?, &normed], 1)?;
                let key =
                    turn(&self.product(&joined, "midlayer.self_attn.k_proj.weight")?, &positions)?;
                let value = self.product(&joined, "midlayer.self_attn.v_proj.weight")?;
                own.push([key, value]);
            } else {
                state = state.narrow(0, 0, rows)?;
                joined = joined.narrow(0, 0, rows)?;
            }
            let queries =
                self.product(&joined.contiguous()?, "midlayer.self_attn.q_proj.weight")?;
            let queries = turn(&queries, &positions)?;
            let attended = self.attend(&queries, &keys, &values, &own, &places[..rows])?;
            let x = (&state + self.product(&attended, "midlayer.self_attn.o_proj.weight")?)?;
            let inner = self.norm(&x, "midlayer.post_attention_layernorm.weight")?;
            let gate = self.product(&inner, "midlayer.mlp.gate_proj.weight")?;
            let inner =
                gate.apply_op2(&self.product(&inner, "midlayer.mlp.up_proj.weight")?, SiluGate)?;
            state = (x + self.product(&inner, "midlayer.mlp.down_proj.weight")?)?;
            found.push(Step { rows, normed: self.norm(&state, "norm.weight")? });
        }
        Ok(found)
    }

    /// Queries `[rows, heads · head]` at `places`; keys and values of step 0 `[all, key heads ·
    /// head]`, and of each later step `[at least rows, key heads · head]`.
    fn attend(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        own: &[[Tensor; 2]],
        places: &[usize],
    ) -> Result<Tensor> {
        let Shape { num_attention_heads: heads, num_key_value_heads: kv, head_dim: head, .. } =
            self.shape;
        let (rows, all, group) = (places.len(), keys.dim(0)?, heads / kv);
        // The queries that share a key head are stacked: [kv, group, rows, head].
        let queries =
            queries.reshape((rows, kv, group, head))?.permute((1, 2, 0, 3))?.contiguous()?;
        let by_head =
            |x: &Tensor, n: usize| x.reshape((n, kv, head))?.transpose(0, 1)?.contiguous();
        let (keys, values) = (by_head(keys, all)?, by_head(values, all)?);
        let stacked = queries.reshape((kv, group * rows, head))?;
        let mut scores = vec![stacked.matmul(&keys.t()?)?];
        let mut later = Vec::with_capacity(own.len());
        for [key, value] in own {
            let part =
                |x: &Tensor| by_head(&x.narrow(0, 0, rows)?.contiguous()?, rows)?.unsqueeze(1);
            let score = queries.broadcast_mul(&part(key)?)?.sum_keepdim(3)?;
            scores.push(score.reshape((kv, group * rows, 1))?);
            later.push(part(value)?);
        }
        let seen = places.iter().map(|place| place + 1).collect();
        let softmax = SightSoftmax { scale: (head as f32).powf(-0.5), seen, own: own.len() };
        let weights = Tensor::cat(&scores, 2)?.apply_op1(softmax)?;
        let mut found = weights.narrow(2, 0, all)?.contiguous()?.matmul(&values)?;
        found = found.reshape((kv, group, rows, head))?;
        for (i, value) in later.iter().enumerate() {
            let weight =
                weights.narrow(2, all + i, 1)?.contiguous()?.reshape((kv, group, rows, 1))?;
            found = (found + weight.broadcast_mul(value)?)?;
        }
        Ok(found.permute((2, 0, 1, 3))?.contiguous()?.reshape((rows, heads * head))?)
    }
}

fn initial(name: &str, dims: &[usize], rng: &mut ChaCha12Rng) -> Result<Tensor> {
    let &[rows, columns] = dims else {
        return Ok(Tensor::ones(dims, DType::F32, &Device::Cpu)?);
    };
    let deviation = match name {
        "fc.weight" => 0.1 / (columns as f32).sqrt(),
        _ if name.contains("o_proj") || name.contains("down_proj") => 0.2 / (columns as f32).sqrt(),
        _ => 1.0 / (columns as f32).sqrt(),
    };
    let mut normal = || {
        let (u, v): (f32, f32) = (rng.random(), rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f32::consts::TAU * v).cos() * deviation
    };
    let mut values: Vec<f32> = (0..rows * columns).map(|_| normal()).collect();
    if name == "fc.weight" {
        for row in 0..rows {
            values[row * columns + columns - rows + row] += 1.0;
        }
    }
    Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
}
