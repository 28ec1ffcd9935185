//! The forward pass of a Llama-style decoder over any set of new tokens: a prompt, one token, a tree.
//!
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023 (grouped queries),
//! Miao et al. 2024 (SpecInfer, section 4: tree attention). Layout and names as in Hugging Face transformers.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope_thd;

use crate::cache::Cache;
use crate::linear::{Linear, Precision};
use crate::weights::Weights;
use crate::{Config, Error};

/// The tokens of one pass.
pub(crate) struct Batch<'a> {
    pub tokens: &'a [u32],
    /// Of each token, counted from the context's beginning.
    pub positions: &'a [usize],
    /// The first slot they go to in the cache; slots before it hold what they may attend to.
    pub start: usize,
    /// `[tokens, start + tokens]`, 0 where a token sees a slot and −∞ elsewhere; `None` if each sees all.
    pub mask: Option<Tensor>,
    /// Logits are wanted from this token on.
    pub first_output: usize,
}

#[derive(Debug)]
struct Layer {
    attention_norm: Tensor,
    /// Queries, keys and values stacked.
    query_key_value: Linear,
    output: Linear,
    mlp_norm: Tensor,
    /// Gate and up stacked.
    gate_up: Linear,
    down: Linear,
}

/// Weights and shape; the state of a text is in the [`Cache`].
#[derive(Debug)]
pub(crate) struct Decoder {
    pub config: Config,
    embedding: Linear,
    layers: Vec<Layer>,
    norm: Tensor,
    /// `None` if it is the embedding.
    head: Option<Linear>,
    frequencies: Vec<f64>,
    device: Device,
}

impl Decoder {
    pub fn load(config: &Config, mut weights: Weights, precision: Precision) -> crate::Result<Self> {
        let Config { vocabulary, hidden, intermediate, head, .. } = *config;
        let (queries, keys) = (config.heads * head, config.key_value_heads * head);
        // An untied embedding is only ever read by rows: there is nothing to gain from fewer bits.
        let embedding = weights.take("model.embed_tokens.weight", &[vocabulary, hidden])?;
        let embedding = Linear::new(embedding, if config.tied { precision } else { Precision::F32 })?;
        let mut layers = Vec::new();
        for i in 0..config.layers {
            let name = |part: &str| format!("model.layers.{i}.{part}.weight");
            let query_key_value = [
                (name("self_attn.q_proj"), queries),
                (name("self_attn.k_proj"), keys),
                (name("self_attn.v_proj"), keys),
            ];
            let gate_up = [(name("mlp.gate_proj"), intermediate), (name("mlp.up_proj"), intermediate)];
            layers.push(Layer {
                attention_norm: weights.take(&name("input_layernorm"), &[hidden])?,
                query_key_value: Linear::new(weights.take_stacked(&query_key_value, hidden)?, precision)?,
                output: Linear::new(weights.take(&name("self_attn.o_proj"), &[hidden, queries])?, precision)?,
                mlp_norm: weights.take(&name("post_attention_layernorm"), &[hidden])?,
                gate_up: Linear::new(weights.take_stacked(&gate_up, hidden)?, precision)?,
                down: Linear::new(weights.take(&name("mlp.down_proj"), &[hidden, intermediate])?, precision)?,
            });
        }
        let norm = weights.take("model.norm.weight", &[hidden])?;
        let head_weights = match config.tied {
            true => None,
            false => Some(Linear::new(weights.take("lm_head.weight", &[vocabulary, hidden])?, precision)?),
        };
        // Copies and constants that some exporters store.
        weights.finish(|name| {
            (config.tied && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq")
        })?;
        let frequencies =
            (0..head / 2).map(|i| config.rope_theta.powf(-2.0 * i as f64 / head as f64)).collect();
        let config = config.clone();
        Ok(Self { config, embedding, layers, norm, head: head_weights, frequencies, device: Device::Cpu })
    }

    pub fn new_cache(&self) -> Result<Cache> {
        Cache::new(self.layers.len(), self.config.key_value_heads, self.config.head, &self.device)
    }

    /// Cosines and sines `[positions, head / 2]`. Computed anew for the few positions of a pass, so that a long
    /// context costs no table.
    fn rotation(&self, positions: &[usize]) -> Result<(Tensor, Tensor)> {
        let angles = || positions.iter().flat_map(|&p| self.frequencies.iter().map(move |f| p as f64 * f));
        let shape = (positions.len(), self.frequencies.len());
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, shape, &self.device);
        Ok((
            tensor(angles().map(|a| a.cos() as f32).collect())?,
            tensor(angles().map(|a| a.sin() as f32).collect())?,
        ))
    }

    /// Computes a batch, leaves its keys and values in the cache and returns the logits `[wanted, vocabulary]`.
    pub fn forward(&self, batch: &Batch, cache: &mut Cache) -> Result<Tensor> {
        let Config { heads, key_value_heads, head, .. } = self.config;
        let (n, group) = (batch.tokens.len(), heads / key_value_heads);
        let epsilon = self.config.norm_epsilon as f32;
        cache.reserve(batch.start + n)?;
        let (cos, sin) = self.rotation(batch.positions)?;
        // [1, n, some heads, head], each part contiguous.
        let part = |x: &Tensor, from: usize, heads: usize| {
            x.narrow(1, from * head, heads * head)?.contiguous()?.reshape((1, n, heads, head))
        };
        let by_head = |x: Tensor| x.squeeze(0)?.transpose(0, 1)?.contiguous();

        let mut x = self.embedding.rows(&Tensor::new(batch.tokens, &self.device)?)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let mixed = layer.query_key_value.forward(&rms_norm(&x, &layer.attention_norm, epsilon)?)?;
            let queries = rope_thd(&part(&mixed, 0, heads)?, &cos, &sin)?;
            let keys = by_head(rope_thd(&part(&mixed, heads, key_value_heads)?, &cos, &sin)?)?;
            let values = by_head(part(&mixed, heads + key_value_heads, key_value_heads)?)?;
            let (keys, values) = cache.append(i, &keys, &values, batch.start)?;

            // Queries that share a key head form the rows of one product: [key heads, group * n, head].
            let queries = queries.reshape((n, key_value_heads, group, head))?.permute((1, 2, 0, 3))?;
            let queries = (queries.reshape((key_value_heads, group * n, head))? * (head as f64).powf(-0.5))?;
            let mut scores = queries.matmul(&keys.t()?)?;
            if let Some(mask) = &batch.mask {
                let slots = mask.dim(1)?;
                scores = scores.reshape((heads, n, slots))?.broadcast_add(mask)?;
                scores = scores.reshape((key_value_heads, group * n, slots))?;
            }
            let attended = softmax_last_dim(&scores)?.matmul(&values)?;
            let attended = attended.reshape((key_value_heads, group, n, head))?.permute((2, 0, 1, 3))?;
            x = (x + layer.output.forward(&attended.reshape((n, heads * head))?)?)?;

            let gate_up = layer.gate_up.forward(&rms_norm(&x, &layer.mlp_norm, epsilon)?)?;
            let width = self.config.intermediate;
            let gated = (gate_up.narrow(1, 0, width)?.silu()? * gate_up.narrow(1, width, width)?)?;
            x = (x + layer.down.forward(&gated)?)?;
        }
        let wanted = x.narrow(0, batch.first_output, n - batch.first_output)?;
        let wanted = rms_norm(&wanted.contiguous()?, &self.norm, epsilon)?;
        self.head.as_ref().unwrap_or(&self.embedding).forward(&wanted)
    }
}

impl From<Error> for polydraft_engine::Error {
    fn from(error: Error) -> Self {
        Self::Model { model: "candle".to_owned(), source: Box::new(error) }
    }
}
