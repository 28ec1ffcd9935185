//! The attention of a layer, from tensors on disk.

use super::heads::Heads;
use super::latent::Latent;
use super::layer::Attention;
use super::load::{Loader, whole};
use crate::config::{Config, HeadNorms, Latent as Shape};
use crate::error::Result;
use crate::linear::Matrix;
use crate::weights::Part;

impl Loader<'_> {
    /// One with inputs of so many columns.
    pub(super) fn attention(&mut self, number: usize, columns: usize) -> Result<Attention> {
        match self.config.attention.latent {
            None => Ok(Attention::Heads(Box::new(self.heads(number, columns)?))),
            Some(shape) => Ok(Attention::Latent(Box::new(self.latent(number, &shape)?))),
        }
    }

    fn heads(&mut self, number: usize, columns: usize) -> Result<Heads> {
        let Config { hidden, head, heads, key_value_heads, names, biases, ref attention, .. } =
            *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let (queries, keys) = (heads * head, key_value_heads * head);
        let parts: Vec<(String, usize)> = match names.query_key_value {
            [all] => vec![(name(all), queries + 2 * keys)],
            each => each.iter().map(|part| name(part)).zip([queries, keys, keys]).collect(),
        };
        let widths = match attention.head_norms {
            HeadNorms::None => None,
            HeadNorms::Each => Some([head, head]),
            HeadNorms::Whole => Some([queries, keys]),
        };
        let norms = match widths {
            None => None,
            Some([query, key]) => {
                let [of_queries, of_keys] = names.head_norms.map(name);
                Some([self.norm(&of_queries, query)?, self.norm(&of_keys, key)?])
            }
        };
        let sinks = match attention.sinks {
            false => None,
            true => Some(self.weights.vector(&name(names.sinks), heads)?),
        };
        Ok(Heads {
            query_key_value: self.linear(&parts, columns, biases.query_key_value)?,
            norms,
            output: self.linear(&[(name(names.output), hidden)], queries, biases.output)?,
            windowed: self.config.is_windowed(number),
            rotated: attention.unrotated.get(number) != Some(&true),
            sinks,
        })
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
                Some((down, self.norm(&name(latent.query_norm), rank)?))
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
            norm: self.norm(&name(latent.norm), rank)?,
            keys,
            values,
            output: self.linear(&[(name(names.output), hidden)], heads * value, biases.output)?,
        })
    }

    /// Of every head Kᵀ and V.
    fn latent_heads(&mut self, number: usize, shape: &Shape) -> Result<[Vec<Matrix>; 2]> {
        let Config { heads, names, .. } = *self.config;
        let Shape { rank, plain, value, .. } = *shape;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let [apart, values] = names.latent.apart.map(name);
        let (mut all_keys, mut all_values) = (Vec::new(), Vec::new());
        let is_apart = !names.latent.apart[0].is_empty() && self.weights.has(&apart);
        for head in 0..heads {
            let [keys, values] = match is_apart {
                true => [
                    Part::matrix(apart.clone(), [heads, rank], head),
                    Part::matrix(values.clone(), [heads, value], head),
                ],
                false => {
                    let up = whole(&name(names.latent.up), heads * (plain + value));
                    let first = head * (plain + value);
                    [
                        Part::turned(up.name.clone(), up.dims.clone(), first, rank),
                        Part { first: first + plain, wanted: value, ..up },
                    ]
                }
            };
            all_keys.push(self.stacked(&[keys], plain)?);
            all_values.push(self.stacked(&[values], rank)?);
        }
        Ok([all_keys, all_values])
    }
}
