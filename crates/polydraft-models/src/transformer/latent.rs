//! Multi-head latent attention: the KV cache holds one vector per token.
//!
//! Problem: the KV cache of 16 to 128 heads fills the memory, and all of it is read for each token.
//! Source: DeepSeek-AI 2024 (DeepSeek-V2, section 2.1: multi-head latent attention, and its
//! appendix on absorbing matrices).
//! Method: all keys and values of a token are products of one normed vector c of `rank` numbers,
//! and all keys share one rotated part r. A query's product with a key, q · (Kc), is (Kᵀq) · c. So
//! queries are multiplied by Kᵀ, the cache stores only c and r as one key head that all queries
//! share, and the attention output, a mean of c, is multiplied by V afterwards.
//! Complexity: `rank + rotated` numbers per token are cached, twice: the kernel reads keys and
//! values from separate buffers. The products with Kᵀ and V cost as much as making the keys and
//! values of one token.

use polydraft_kernels::{AttentionParams, Norm, Rows, attend};

use super::heads::sequences;
use super::pass::SequenceTokens;
use super::rotations::Rotations;
use crate::cache::CacheIndex;
use crate::config::{Config, LatentShape as Shape};
use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// Latent attention of one layer.
#[derive(Debug)]
pub(crate) struct Latent {
    /// Down-projection of queries and its norm, for models that compress queries.
    pub query_down: Option<(Linear, Norm)>,
    /// Query projection, `[heads · (plain + rotated), ..]`.
    pub query: Linear,
    /// Projection to c and r, `[rank + rotated, hidden]`.
    pub down: Linear,
    /// Norm of c.
    pub norm: Norm,
    /// Kᵀ of every head, `[rank, plain]`.
    pub keys: Vec<Matrix>,
    /// V of every head, `[value, rank]`.
    pub values: Vec<Matrix>,
    pub output: Linear,
}

impl Latent {
    /// Computes the attention of the tokens of all sequences.
    pub fn forward(
        &self,
        cache_index: CacheIndex,
        config: &Config,
        shape: &Shape,
        x: &Rows,
        rotations: &Rotations,
        batch: &mut [SequenceTokens],
    ) -> Result<Rows> {
        let Shape { rank, plain, rotated, .. } = *shape;
        let (heads, head, width) = (config.heads, plain + rotated, shape.cached());
        let mut queries = match &self.query_down {
            None => self.query.forward(x)?,
            Some((down, norm)) => self.query.forward(&norm.forward(&down.forward(x)?)?)?,
        };
        let mut vectors = self.down.forward(x)?;
        self.write(cache_index, shape, &mut vectors, rotations, batch)?;

        // Queries of all heads of every token: Kᵀq, then the rotated part.
        let count = queries.count();
        let mut absorbed = vec![0f32; count * heads * width];
        for (number, keys) in self.keys.iter().enumerate() {
            let q = keys.forward(&queries.columns(number * head, plain))?;
            for (row, q) in q.numbers().chunks_exact(rank).enumerate() {
                absorbed[(row * heads + number) * width..][..rank].copy_from_slice(q);
            }
        }
        let factor = |position| match config.attention.query_scaling {
            None => config.attention.scale as f32,
            Some(growth) => config.attention.scale as f32 * growth.factor_at(position),
        };
        let positions = batch.iter().flat_map(|sequence| &sequence.masks);
        let factors: Vec<f32> = positions.map(|mask| factor(mask.position())).collect();
        let rows = absorbed.chunks_exact_mut(heads * width);
        let numbers = queries.numbers_mut().chunks_exact_mut(heads * head);
        for (row, ((out, queries), scale)) in rows.zip(numbers).zip(factors).enumerate() {
            for (out, query) in out.chunks_exact_mut(width).zip(queries.chunks_exact_mut(head)) {
                if let Some(angles) = rotations.angles(false) {
                    angles.rotate(row, &mut query[plain..], rotated);
                }
                out[rank..].copy_from_slice(&query[plain..]);
                out.iter_mut().for_each(|number| *number *= scale);
            }
        }
        let Some(layout) =
            batch.first().map(|sequence| sequence.cache.page_layout(cache_index.shape))
        else {
            return self.output.forward(&Rows::new(Vec::new(), heads * shape.value));
        };
        let rules = AttentionParams {
            layer: cache_index.layer,
            layout,
            heads,
            stride: heads * width,
            window: None,
            softcap: None,
            sinks: None,
        };
        let found = Rows::new(
            attend(&sequences(batch, cache_index.shape), &absorbed, rules),
            heads * width,
        );
        let mut values = Vec::with_capacity(heads);
        for (number, matrix) in self.values.iter().enumerate() {
            values.push(matrix.forward(&found.columns(number * width, rank))?);
        }
        self.output.forward(&Rows::concat_columns(&values)?)
    }

    /// Norms and rotates the vectors of all tokens, and writes them into the KV caches.
    fn write(
        &self,
        cache_index: CacheIndex,
        shape: &Shape,
        vectors: &mut Rows,
        rotations: &Rotations,
        batch: &mut [SequenceTokens],
    ) -> Result<()> {
        let width = shape.cached();
        let mut rows = vectors.numbers_mut().chunks_exact_mut(width).enumerate();
        for sequence in &mut *batch {
            for (slot, (row, vector)) in (sequence.start..sequence.end()).zip(&mut rows) {
                self.norm.apply(&mut vector[..shape.rank])?;
                if let Some(angles) = rotations.angles(false) {
                    angles.rotate(row, &mut vector[shape.rank..], shape.rotated);
                }
                sequence.cache.write(cache_index, slot, vector, vector);
            }
        }
        Ok(())
    }
}
