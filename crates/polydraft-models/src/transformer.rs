//! The forward pass of a decoder over any new tokens of any texts: prompts, single tokens, trees.
//!
//! One pass for every family; what differs between them is in [`Config`] and was settled when the
//! weights were loaded. Each matrix is gone through once for the tokens of all texts; only
//! attention goes text by text.
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023
//! (grouped queries), Miao et al. 2024 (SpecInfer, section 4: tree attention); for the rest see
//! `family/`. Layout and names as in Hugging Face transformers.

mod activation;
mod copy;
mod device;
pub(crate) mod exp;
mod host;
pub(crate) mod load;
pub(crate) mod norm;
pub(crate) mod pass;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use polydraft_engine::Feature;

use crate::cache::{Cache, CacheType, Form};
use crate::config::{FeedForward, Frequencies};
use crate::importance::Importance;
use crate::linear::{Linear, Matrix};
use crate::rows::{Rows, apart};
use crate::{Config, Error};
pub use host::AttentionProbe;
use norm::{Norm, Norms};
use pass::{Part, positions, tokens, wanted};

#[derive(Debug)]
pub(crate) struct Layer {
    pub attention_norms: Norms,
    /// Queries, keys and values stacked.
    query_key_value: Linear,
    /// Of each head's queries and keys.
    head_norms: Option<[Norm; 2]>,
    output: Linear,
    windowed: bool,
    pub mlp_norms: Norms,
    /// Gate and up stacked, where there is a gate.
    mlp_in: Linear,
    mlp_out: Linear,
}

/// How tokens are told apart by their place.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// The second in layers with a window, if another.
    Rotary(Frequencies, Option<Frequencies>),
    /// Rows by position.
    Learned(Arc<Matrix>, usize),
}

/// Weights and shape; the state of a text is in its [`Cache`].
#[derive(Debug)]
pub(crate) struct Transformer {
    pub config: Config,
    /// Shared with copies in fewer bits.
    embedding: Arc<Matrix>,
    /// Around the layers, where tokens are embedded in another width.
    projections: Option<[Matrix; 2]>,
    place: Place,
    pub layers: Vec<Layer>,
    norm: Option<Norm>,
    /// `None` if it is the embedding.
    head: Option<Arc<Matrix>>,
    /// What the matrix that makes logits is multiplied with, while somebody wants to know.
    head_inputs: Option<Importance>,
    pub device: Device,
    pub dtype: DType,
    /// What is kept of every token besides keys and values.
    watched: Vec<Feature>,
    /// How keys and values are held on a processor.
    pub held: CacheType,
}

/// What attention needs besides the tokens' numbers, made once for all layers.
pub(crate) enum Ways {
    /// On a processor.
    Host(Rotations<[Vec<f32>; 2]>),
    /// On a card; with the masks of each part.
    Device(Rotations<[Tensor; 2]>, Vec<device::Masks>),
}

/// Cosines and sines `[tokens, head / 2]`.
pub(crate) struct Rotations<T> {
    all: Option<T>,
    /// Those of layers with a window, if others.
    windowed: Option<T>,
}

impl<T> Rotations<T> {
    fn of(&self, windowed: bool) -> Option<&T> {
        self.windowed.as_ref().filter(|_| windowed).or(self.all.as_ref())
    }
}

impl Transformer {
    /// Keeps these hidden states of every token, in this order.
    pub fn watch(&mut self, features: &[Feature]) {
        self.watched = features.to_vec();
    }

    /// How many numbers are watched of a token.
    pub fn watched(&self) -> usize {
        self.watched.len() * self.config.hidden
    }

    /// Bytes that the keys, the values and what is watched of one token take.
    pub fn token_bytes(&self) -> u64 {
        self.config.cache_bytes(self.held.bytes()) + (self.watched() * size_of::<f32>()) as u64
    }

    /// The matrix whose rows tokens are looked up in, `[vocabulary, embedding]`.
    pub fn embedding(&self) -> &Arc<Matrix> {
        &self.embedding
    }

    /// The matrix that makes logits, `[vocabulary, embedding]`.
    pub fn head(&self) -> &Arc<Matrix> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Makes logits with another matrix.
    pub fn set_head(&mut self, head: Arc<Matrix>) {
        self.head = Some(head);
    }

    /// Puts a norm behind the layers, or none.
    pub fn set_norm(&mut self, norm: Option<Norm>) {
        self.norm = norm;
    }

    pub fn new_cache(&self) -> Result<Cache> {
        let Config { key_value_heads, head, .. } = self.config;
        let watched = self.watched();
        let form = Form {
            layers: self.layers.len(),
            heads: key_value_heads,
            head,
            watched,
            held: self.held,
        };
        Cache::new(form, self.dtype, &self.device)
    }

    /// Computes the tokens of all parts, leaves their keys and values in the caches and returns the
    /// logits of those that want them, `[wanted, vocabulary]` in the parts' order, in f32; none if
    /// none does.
    pub fn forward(&self, parts: &mut [Part]) -> Result<Vec<f32>> {
        for part in &mut *parts {
            part.cache.reserve(part.start + part.tokens.len())?;
        }
        let positions = positions(parts);
        let ways = self.ways(parts, &positions)?;
        let mut x = self.embed(parts, &positions)?;
        for (i, layer) in self.layers.iter().enumerate() {
            self.note(Feature::After(i), &x, parts)?;
            x = layer.attention_norms.around(x, |x| self.attend(i, x, &ways, parts))?;
            x = layer.mlp_norms.around(x, |x| self.feed_forward(layer, x))?;
        }
        self.note(Feature::After(self.layers.len()), &x, parts)?;
        if self.watched.contains(&Feature::Output) {
            self.note(Feature::Output, &self.normed(x.clone())?, parts)?;
        }
        let Some(x) = wanted(x, parts)? else { return Ok(Vec::new()) };
        let mut x = self.normed(x)?;
        if let Some([_, out]) = &self.projections {
            x = out.forward(&x)?;
        }
        if let Some(inputs) = &self.head_inputs {
            inputs.note(&x)?;
        }
        self.head().forward(&x)?.capped(self.config.logit_softcap)?.into_numbers()
    }

    /// The weights of the last norm, where it has these alone.
    pub fn last_norm(&self) -> Result<Option<Vec<f32>>> {
        match &self.norm {
            Some(Norm::Rms { weight, .. }) => Ok(Some(weight.numbers()?.into_owned())),
            _ => Ok(None),
        }
    }

    /// Behind the last norm, if there is one.
    pub fn normed(&self, x: Rows) -> Result<Rows> {
        match &self.norm {
            None => Ok(x),
            Some(norm) => norm.forward(&x),
        }
    }

    /// Leaves a hidden state `[tokens, hidden]` in the caches, if it is watched.
    fn note(&self, feature: Feature, x: &Rows, parts: &mut [Part]) -> Result<()> {
        let Some(place) = self.watched.iter().position(|watched| *watched == feature) else {
            return Ok(());
        };
        let width = self.config.hidden;
        let states = x.numbers()?;
        let mut states = states.chunks_exact(width);
        for part in parts {
            for (slot, state) in (part.start..part.end()).zip(&mut states) {
                part.cache.watch(slot, place * width, state);
            }
        }
        Ok(())
    }

    /// `[tokens, hidden]`
    fn embed(&self, parts: &[Part], positions: &[usize]) -> Result<Rows> {
        let mut x = self.embedding.rows(&tokens(parts), &self.device, self.dtype)?;
        x = x.scaled(self.config.embedding_scale)?;
        if let Some([into, _]) = &self.projections {
            x = into.forward(&x)?;
        }
        if let Place::Learned(rows, offset) = &self.place {
            let ids: Vec<u32> = positions.iter().map(|p| (p + offset) as u32).collect();
            x = x.add(&rows.rows(&ids, &self.device, self.dtype)?)?;
        }
        Ok(x)
    }

    /// Angles are computed anew for the few positions of a pass, so that a long context costs no
    /// table.
    pub fn ways(&self, parts: &[Part], positions: &[usize]) -> Result<Ways> {
        let turned = |Frequencies { values, amplitude }: &Frequencies| {
            let angles =
                || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
            let cos: Vec<f32> = angles().map(|a| (amplitude * a.cos()) as f32).collect();
            [cos, angles().map(|a| (amplitude * a.sin()) as f32).collect()]
        };
        let (all, windowed) = match &self.place {
            Place::Learned(..) => (None, None),
            Place::Rotary(all, windowed) => (Some(turned(all)), windowed.as_ref().map(turned)),
        };
        if self.device.is_cpu() {
            return Ok(Ways::Host(Rotations { all, windowed }));
        }
        let tensor = |values: Vec<f32>| {
            Tensor::from_vec(values, (positions.len(), ()), &self.device)?.to_dtype(self.dtype)
        };
        let tensors = |rotation: Option<[Vec<f32>; 2]>| match rotation {
            None => Ok::<_, candle_core::Error>(None),
            Some([cos, sin]) => Ok(Some([tensor(cos)?, tensor(sin)?])),
        };
        let rotations = Rotations { all: tensors(all)?, windowed: tensors(windowed)? };
        let window = self.config.attention.window;
        let masks = parts.iter().map(|part| device::masks(part, window, &self.device, self.dtype));
        Ok(Ways::Device(rotations, masks.collect::<Result<_>>()?))
    }

    pub fn attend(&self, number: usize, x: &Rows, ways: &Ways, parts: &mut [Part]) -> Result<Rows> {
        let layer = &self.layers[number];
        let mixed = layer.query_key_value.forward(x)?;
        let found = match (mixed, ways) {
            (Rows::Host { numbers, .. }, Ways::Host(rotations)) => {
                let width = self.config.heads * self.config.head;
                let found =
                    host::layer(self, number, numbers, rotations.of(layer.windowed), parts)?;
                Rows::Host { numbers: found, width }
            }
            (Rows::Card(mixed), Ways::Device(rotations, masks)) => Rows::Card(device::layer(
                self,
                number,
                &mixed,
                rotations.of(layer.windowed),
                masks,
                parts,
            )?),
            _ => return apart("attention"),
        };
        layer.output.forward(&found)
    }

    pub fn feed_forward(&self, layer: &Layer, x: &Rows) -> Result<Rows> {
        let FeedForward { activation, gated } = self.config.feed_forward;
        let inner = layer.mlp_in.forward(x)?;
        layer.mlp_out.forward(&activation.forward(inner, self.config.intermediate, gated)?)
    }

    /// Bytes that the matrices take.
    pub fn weight_bytes(&self) -> usize {
        let layers =
            self.layers.iter().flat_map(|l| [&l.query_key_value, &l.output, &l.mlp_in, &l.mlp_out]);
        let outer = self.head.iter().chain([&self.embedding]).map(Arc::as_ref);
        let outer = outer.chain(self.projections.iter().flatten());
        layers.map(|l| &l.matrix).chain(outer).map(Matrix::bytes).sum()
    }

    /// Bytes of weights that a pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        // Of an embedding that is not the head too, one row.
        self.weight_bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }
}

impl From<Error> for polydraft_engine::Error {
    fn from(error: Error) -> Self {
        Self::Model { model: "candle".to_owned(), source: Box::new(error) }
    }
}
