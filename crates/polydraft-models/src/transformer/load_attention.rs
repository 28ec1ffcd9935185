//! Loads the attention of a layer.

use polydraft_kernels::Norm;

use super::heads::Heads;
use super::latent::Latent;
use super::layer::Attention;
use super::load::{Loader, all_rows, single_row};
use super::load_recurrent::by_heads;
use crate::config::{Config, LatentShape as Shape, QkNorm};
use crate::error::Result;
use crate::linear::{Linear, Matrix};
use crate::weights::TensorRows;

/// Epsilon of the norms of compressed vectors, whatever that of the other norms is. It differs in
/// GLM-4.7-Flash, whose norms have 1e-5. Source: transformers 5.24, as DeepSeek's own code.
const LATENT_EPSILON: f32 = 1e-6;

impl Loader<'_> {
    /// Loads the attention of layer `number`, whose inputs have `columns` numbers.
    pub(super) fn attention(&mut self, number: usize, columns: usize) -> Result<Attention> {
        if let Some(shape) = self.config.recurrent_of(number).cloned() {
            return self.recurrent(number, &shape);
        }
        match self.config.attention.latent {
            None => Ok(Attention::Heads(Box::new(self.heads(number, columns)?))),
            Some(shape) => Ok(Attention::Latent(Box::new(self.latent(number, &shape)?))),
        }
    }

    fn heads(&mut self, number: usize, columns: usize) -> Result<Heads> {
        let Config { hidden, heads, names, biases, ref attention, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let shape = self.config.head_shape(number);
        let (head, borrows) = (shape.head_dim, self.config.shares_kv_cache(number));
        let (queries, keys) = (heads * head, shape.key_value_heads * head);
        let parts: Vec<(String, usize)> = self
            .config
            .qkv_matrices(number)
            .into_iter()
            .map(|(part, rows)| (name(part), rows))
            .collect();
        let widths = match attention.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some([head, head]),
            QkNorm::AcrossHeads => Some([queries, keys]),
        };
        let mut norms = [None, None, None];
        for (number, width) in widths.into_iter().flatten().enumerate() {
            if number == 0 || !borrows {
                norms[number] = Some(self.norm(&name(names.qk_norms[number]), width)?);
            }
        }
        if attention.value_norms && !borrows {
            let epsilon = self.config.norm_epsilon as f32;
            norms[2] = Some(Norm::Rms { weight: vec![1.0; head], epsilon });
        }
        let sinks = match attention.sinks {
            false => None,
            true => Some(self.weights.vector(&name(names.sinks), heads)?),
        };
        let query_key_value = match attention.gate {
            None => self.linear(&parts, columns, biases.query_key_value)?,
            Some(gate) => match gate.own_rows(heads, head) {
                0 => self.gated(number, columns)?,
                rows => self.beside_gate(&parts, (name(names.attention_gate), rows), columns)?,
            },
        };
        Ok(Heads {
            shape,
            query_key_value,
            norms,
            borrows,
            output: self.linear(
                &[(name(names.attention_output), hidden)],
                queries,
                biases.output,
            )?,
            windowed: self.config.is_windowed(number),
            rotated: attention.unrotated.get(number) != Some(&true),
            sinks,
            gate: attention.gate,
        })
    }

    /// Loads queries, keys and values, and a gate, which has no bias.
    fn beside_gate(
        &mut self,
        parts: &[(String, usize)],
        (gate, rows): (String, usize),
        columns: usize,
    ) -> Result<Linear> {
        let mut all: Vec<TensorRows> =
            parts.iter().map(|(name, rows)| all_rows(name, *rows)).collect();
        all.push(all_rows(&gate, rows));
        let matrix = self.stacked(&all, columns)?;
        let bias = match self.config.biases.query_key_value {
            false => None,
            true => {
                let mut bias = Vec::new();
                for (name, rows) in parts {
                    bias.append(&mut self.weights.vector(&format!("{name}.bias"), *rows)?);
                }
                bias.resize(bias.len() + rows, 0.0);
                Some(single_row(bias))
            }
        };
        Ok(Linear { matrix, bias, inputs: None })
    }

    /// Loads queries, keys, values and gates, where queries and gates are one tensor.
    fn gated(&mut self, number: usize, columns: usize) -> Result<Linear> {
        let Config { head_dim: head, heads, key_value_heads, names, biases, .. } = *self.config;
        let all: Vec<String> = names
            .query_key_value
            .iter()
            .map(|name| format!("{}.{number}.{name}", names.layers))
            .collect();
        let keys = key_value_heads * head;
        let mut parts = by_heads(&all[0], heads, &[head, head]);
        let gates = parts.split_off(heads);
        parts.extend(all[1..].iter().map(|name| all_rows(name, keys)));
        parts.extend(gates);
        let matrix = self.stacked(&parts, columns)?;
        let bias = match biases.query_key_value {
            false => None,
            true => {
                let both = self.weights.vector(&format!("{}.bias", all[0]), 2 * heads * head)?;
                let half = |from: usize| {
                    let of_heads = both.chunks_exact(2 * head);
                    of_heads.flat_map(move |rows| &rows[from..from + head]).copied()
                };
                let mut bias: Vec<f32> = half(0).collect();
                for name in &all[1..] {
                    bias.append(&mut self.weights.vector(&format!("{name}.bias"), keys)?);
                }
                bias.extend(half(head));
                Some(single_row(bias))
            }
        };
        Ok(Linear { matrix, bias, inputs: None })
    }

    fn latent(&mut self, number: usize, shape: &Shape) -> Result<Latent> {
        let Config { hidden, heads, names, biases, .. } = *self.config;
        let Shape { query_rank, rank, plain, rotated, value } = *shape;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let (latent, queries) = (&names.latent, heads * (plain + rotated));
        let biased = biases.query_key_value;
        let query_down = match query_rank {
            None => None,
            Some(rank) => {
                let down = self.linear(&[(name(latent.query_down), rank)], hidden, biased)?;
                Some((down, self.latent_norm(&name(latent.query_norm), rank)?))
            }
        };
        let (query, columns) = match query_rank {
            None => (latent.query, hidden),
            Some(rank) => (latent.query_up, rank),
        };
        let [keys, values] = self.latent_heads(number, shape)?;
        Ok(Latent {
            query_down,
            query: self.linear(&[(name(query), queries)], columns, false)?,
            down: self.linear(&[(name(latent.down), shape.cached())], hidden, biased)?,
            norm: self.latent_norm(&name(latent.norm), rank)?,
            keys,
            values,
            output: self.linear(
                &[(name(names.attention_output), hidden)],
                heads * value,
                biases.output,
            )?,
        })
    }

    /// Loads a norm of compressed queries, keys or values.
    fn latent_norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        let weight = self.weights.vector(&format!("{name}.weight"), width)?;
        Ok(Norm::Rms { weight, epsilon: LATENT_EPSILON })
    }

    /// Loads Kᵀ and V of every head.
    fn latent_heads(&mut self, number: usize, shape: &Shape) -> Result<[Vec<Matrix>; 2]> {
        let Config { heads, names, .. } = *self.config;
        let Shape { rank, plain, value, .. } = *shape;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let [apart, values] = names.latent.split_up.map(name);
        let (mut all_keys, mut all_values) = (Vec::new(), Vec::new());
        let is_apart = !names.latent.split_up[0].is_empty() && self.weights.has(&apart);
        for head in 0..heads {
            let [keys, values] = match is_apart {
                true => [
                    TensorRows::matrix(apart.clone(), [heads, rank], head),
                    TensorRows::matrix(values.clone(), [heads, value], head),
                ],
                false => {
                    let up = all_rows(&name(names.latent.up), heads * (plain + value));
                    let first = head * (plain + value);
                    [
                        TensorRows::transposed(up.name.clone(), up.dims.clone(), first, rank),
                        TensorRows { first: first + plain, count: value, ..up },
                    ]
                }
            };
            all_keys.push(self.stacked(&[keys], plain)?);
            all_values.push(self.stacked(&[values], rank)?);
        }
        Ok([all_keys, all_values])
    }
}
