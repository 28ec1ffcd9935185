//! Attention whose KV cache is one vector a token.
//!
//! Problem: the KV cache of 16 to 128 heads fills the memory, and all of it is read for each
//! token.
//! Source: DeepSeek-AI 2024 (DeepSeek-V2, section 2.1: multi-head latent attention, and what its
//! appendix says of matrices that absorb others).
//! Method: all keys of a token, and its values, are products of one normed vector c of `rank`
//! numbers, and all keys share one part r that is turned. A query's product with a key, q · (Kc),
//! is (Kᵀq) · c: so queries are multiplied by Kᵀ, the cache has c and r alone, as one key head that
//! all queries share, and what attention gives, a mean of c, is multiplied by V afterwards.
//! Complexity: of a token `rank + rotated` numbers are cached, twice: the kernel reads keys and
//! values from places of their own. The products with Kᵀ and V are those that would make one
//! token's key and value.

use polydraft_kernels::{Norm, Rows, Rules, attend};

use super::heads::sequences;
use super::pass::Part;
use super::rotations::Rotations;
use crate::cache::CachePlace;
use crate::config::{Config, Latent as Shape};
use crate::error::Result;
use crate::linear::{Linear, Matrix};

#[derive(Debug)]
pub(crate) struct Latent {
    /// The vector that queries are made of, and its norm.
    pub query_down: Option<(Linear, Norm)>,
    /// `[heads · (plain + rotated), ..]`
    pub query: Linear,
    /// `[rank + rotated, hidden]`
    pub down: Linear,
    pub norm: Norm,
    /// Kᵀ of every head, `[rank, plain]`.
    pub keys: Vec<Matrix>,
    /// V of every head, `[value, rank]`.
    pub values: Vec<Matrix>,
    pub output: Linear,
}

impl Latent {
    pub fn forward(
        &self,
        place: CachePlace,
        config: &Config,
        shape: &Shape,
        x: &Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let Shape { rank, plain, rotated, .. } = *shape;
        let (heads, head, width) = (config.heads, plain + rotated, shape.cached());
        let mut queries = match &self.query_down {
            None => self.query.forward(x)?,
            Some((down, norm)) => self.query.forward(&norm.forward(&down.forward(x)?)?)?,
        };
        let mut vectors = self.down.forward(x)?;
        self.write(place, shape, &mut vectors, rotations, parts)?;

        // Of every token all heads' queries, each Kᵀq beside what is turned.
        let count = queries.count();
        let mut absorbed = vec![0f32; count * heads * width];
        for (number, keys) in self.keys.iter().enumerate() {
            let q = keys.forward(&queries.columns(number * head, plain))?;
            for (row, q) in q.numbers().chunks_exact(rank).enumerate() {
                absorbed[(row * heads + number) * width..][..rank].copy_from_slice(q);
            }
        }
        let scale = config.attention.scale as f32;
        let rows = absorbed.chunks_exact_mut(heads * width);
        let numbers = queries.numbers_mut().chunks_exact_mut(heads * head);
        for (row, (out, queries)) in rows.zip(numbers).enumerate() {
            for (out, query) in out.chunks_exact_mut(width).zip(queries.chunks_exact_mut(head)) {
                if let Some(angles) = rotations.of(false) {
                    angles.turn(row, &mut query[plain..], rotated);
                }
                out[rank..].copy_from_slice(&query[plain..]);
                out.iter_mut().for_each(|number| *number *= scale);
            }
        }
        let Some(layout) = parts.first().map(|part| part.cache.layout(place.shape)) else {
            return self.output.forward(&Rows::new(Vec::new(), heads * shape.value));
        };
        let rules = Rules {
            layer: place.layer,
            layout,
            heads,
            stride: heads * width,
            window: None,
            softcap: None,
            sinks: None,
        };
        let found =
            Rows::new(attend(&sequences(parts, place.shape), &absorbed, rules), heads * width);
        let mut values = Vec::with_capacity(heads);
        for (number, matrix) in self.values.iter().enumerate() {
            values.push(matrix.forward(&found.columns(number * width, rank))?);
        }
        self.output.forward(&Rows::beside(&values)?)
    }

    /// Norms and turns the vectors of all tokens, and writes them into the KV caches.
    fn write(
        &self,
        place: CachePlace,
        shape: &Shape,
        vectors: &mut Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<()> {
        let width = shape.cached();
        let mut rows = vectors.numbers_mut().chunks_exact_mut(width).enumerate();
        for part in &mut *parts {
            for (slot, (row, vector)) in (part.start..part.end()).zip(&mut rows) {
                self.norm.apply(&mut vector[..shape.rank])?;
                if let Some(angles) = rotations.of(false) {
                    angles.turn(row, &mut vector[shape.rank..], shape.rotated);
                }
                part.cache.write(place, slot, vector, vector);
            }
        }
        Ok(())
    }
}
