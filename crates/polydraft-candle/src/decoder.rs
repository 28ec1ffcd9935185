//! The forward pass of a decoder over any set of new tokens: a prompt, one token, a tree.
//!
//! One pass for every family; what differs between them is in [`Config`] and was settled when the weights were loaded.
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023 (grouped queries),
//! Miao et al. 2024 (SpecInfer, section 4: tree attention); for the rest see `family/`. Layout and names as in Hugging
//! Face transformers.

mod load;
mod norm;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::rope_thd;

use crate::cache::Cache;
use crate::config::{Activation, Frequencies};
use crate::linear::{Linear, Matrix};
use crate::{Config, Error};
use norm::{Norm, Norms};

/// The tokens of one pass.
pub(crate) struct Batch<'a> {
    pub tokens: &'a [u32],
    /// Of each token, counted from the context's beginning.
    pub positions: &'a [usize],
    /// The first slot they go to in the cache; slots before it hold what they may attend to.
    pub start: usize,
    /// `[tokens, start + tokens]`, 0 where a token sees a slot and −∞ elsewhere; `None` if each sees all.
    pub mask: Option<Tensor>,
    /// The same for layers with a window.
    pub window_mask: Option<Tensor>,
    /// Logits are wanted from this token on.
    pub first_output: usize,
}

#[derive(Debug)]
struct Layer {
    attention_norms: Norms,
    /// Queries, keys and values stacked.
    query_key_value: Linear,
    /// Of each head's queries and keys.
    head_norms: Option<[Norm; 2]>,
    output: Linear,
    windowed: bool,
    mlp_norms: Norms,
    /// Gate and up stacked, where there is a gate.
    mlp_in: Linear,
    mlp_out: Linear,
}

/// How tokens are told apart by their place.
#[derive(Debug)]
enum Place {
    Rotary(Frequencies),
    /// Rows by position.
    Learned(Matrix, usize),
}

/// Weights and shape; the state of a text is in the [`Cache`].
#[derive(Debug)]
pub(crate) struct Decoder {
    pub config: Config,
    embedding: Matrix,
    /// Around the layers, where tokens are embedded in another width.
    projections: Option<[Matrix; 2]>,
    place: Place,
    layers: Vec<Layer>,
    norm: Option<Norm>,
    /// `None` if it is the embedding.
    head: Option<Matrix>,
    device: Device,
    dtype: DType,
}

/// Cosines and sines `[positions, head / 2]`.
type Rotation = (Tensor, Tensor);

impl Decoder {
    pub fn new_cache(&self) -> Result<Cache> {
        let Config { key_value_heads, head, .. } = self.config;
        Cache::new(self.layers.len(), key_value_heads, head, self.dtype, &self.device)
    }

    /// A mask as [`Batch`] takes it.
    pub fn mask(&self, values: Vec<f32>, shape: (usize, usize)) -> Result<Tensor> {
        Tensor::from_vec(values, shape, &self.device)?.to_dtype(self.dtype)
    }

    /// Computes a batch, leaves its keys and values in the cache and returns the logits `[wanted, vocabulary]`, in f32.
    pub fn forward(&self, batch: &Batch, cache: &mut Cache) -> Result<Tensor> {
        let n = batch.tokens.len();
        cache.reserve(batch.start + n)?;
        let rotation = self.rotation(batch.positions)?;
        let mut x = self.embed(batch)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mask = if layer.windowed { &batch.window_mask } else { &batch.mask };
            x = layer.attention_norms.around(x, |x| {
                self.attend(layer, i, x, rotation.as_ref(), mask.as_ref(), batch.start, cache)
            })?;
            x = layer.mlp_norms.around(x, |x| self.feed_forward(layer, x))?;
        }
        let mut x = x.narrow(0, batch.first_output, n - batch.first_output)?.contiguous()?;
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        if let Some([_, out]) = &self.projections {
            x = out.forward(&x)?;
        }
        let logits = self.head.as_ref().unwrap_or(&self.embedding).forward(&x)?.to_dtype(DType::F32)?;
        capped(logits, self.config.logit_softcap)
    }

    /// `[tokens, hidden]`
    fn embed(&self, batch: &Batch) -> Result<Tensor> {
        let mut x = self.embedding.rows(batch.tokens, &self.device)?.to_dtype(self.dtype)?;
        if self.config.embedding_scale != 1.0 {
            x = (x * self.config.embedding_scale)?;
        }
        if let Some([into, _]) = &self.projections {
            x = into.forward(&x)?;
        }
        if let Place::Learned(rows, offset) = &self.place {
            let ids: Vec<u32> = batch.positions.iter().map(|p| (p + offset) as u32).collect();
            x = (x + rows.rows(&ids, &self.device)?.to_dtype(self.dtype)?)?;
        }
        Ok(x)
    }

    /// Computed anew for the few positions of a pass, so that a long context costs no table.
    fn rotation(&self, positions: &[usize]) -> Result<Option<Rotation>> {
        let Place::Rotary(Frequencies { values, amplitude }) = &self.place else { return Ok(None) };
        let angles = || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
        let tensor = |values: Vec<f32>| {
            Tensor::from_vec(values, (positions.len(), ()), &self.device)?.to_dtype(self.dtype)
        };
        Ok(Some((
            tensor(angles().map(|a| (amplitude * a.cos()) as f32).collect())?,
            tensor(angles().map(|a| (amplitude * a.sin()) as f32).collect())?,
        )))
    }

    #[expect(clippy::too_many_arguments, reason = "what an attention is made of")]
    fn attend(
        &self,
        layer: &Layer,
        number: usize,
        x: &Tensor,
        rotation: Option<&Rotation>,
        mask: Option<&Tensor>,
        start: usize,
        cache: &Cache,
    ) -> Result<Tensor> {
        let Config { heads, key_value_heads, head, .. } = self.config;
        let (n, group) = (x.dim(0)?, heads / key_value_heads);
        let mixed = layer.query_key_value.forward(x)?;
        // [1, n, some heads, head], contiguous.
        let part = |from: usize, heads: usize| {
            mixed.narrow(1, from * head, heads * head)?.contiguous()?.reshape((1, n, heads, head))
        };
        let placed = |x: Tensor, norm: usize| {
            let x = match &layer.head_norms {
                None => x,
                Some(norms) => norms[norm].forward(&x)?,
            };
            match rotation {
                None => Ok(x),
                Some((cos, sin)) => rope_thd(&x, cos, sin),
            }
        };
        let by_head = |x: Tensor| x.squeeze(0)?.transpose(0, 1)?.contiguous();
        let queries = placed(part(0, heads)?, 0)?;
        let keys = by_head(placed(part(heads, key_value_heads)?, 1)?)?;
        let values = by_head(part(heads + key_value_heads, key_value_heads)?)?;
        let (keys, values) = cache.append(number, &keys, &values, start)?;

        // Queries that share a key head form the rows of one product: [key heads, group * n, head].
        let queries = queries.reshape((n, key_value_heads, group, head))?.permute((1, 2, 0, 3))?;
        let queries = (queries.reshape((key_value_heads, group * n, head))? * self.config.attention.scale)?;
        let mut scores = capped(queries.matmul(&keys.t()?)?, self.config.attention.softcap)?;
        if let Some(mask) = mask {
            let slots = mask.dim(1)?;
            scores = scores.reshape((heads, n, slots))?.broadcast_add(mask)?;
            scores = scores.reshape((key_value_heads, group * n, slots))?;
        }
        let attended = softmax_last_dim(&scores)?.matmul(&values)?;
        let attended = attended.reshape((key_value_heads, group, n, head))?.permute((2, 0, 1, 3))?;
        layer.output.forward(&attended.reshape((n, heads * head))?)
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let inner = layer.mlp_in.forward(x)?;
        let activation = self.config.feed_forward.activation;
        if !self.config.feed_forward.gated {
            return layer.mlp_out.forward(&activation.forward(&inner)?);
        }
        let width = self.config.intermediate;
        let gate = activation.forward(&inner.narrow(1, 0, width)?)?;
        layer.mlp_out.forward(&(gate * inner.narrow(1, width, width)?)?)
    }

    /// Bytes that the matrices take.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.query_key_value, &l.output, &l.mlp_in, &l.mlp_out]);
        let outer = self.head.iter().chain(self.projections.iter().flatten()).chain([&self.embedding]);
        layers.map(|l| &l.matrix).chain(outer).map(Matrix::bytes).sum()
    }

    /// Bytes of weights that a pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        // Of an embedding that is not the head too, one row.
        self.weight_bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }
}

/// c · tanh(x / c), if there is a cap.
fn capped(x: Tensor, cap: Option<f64>) -> Result<Tensor> {
    match cap {
        None => Ok(x),
        Some(cap) => (x / cap)?.tanh()? * cap,
    }
}

impl Activation {
    fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::Relu => x.relu(),
        }
    }
}

impl From<Error> for polydraft_engine::Error {
    fn from(error: Error) -> Self {
        Self::Model { model: "candle".to_owned(), source: Box::new(error) }
    }
}
