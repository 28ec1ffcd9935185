//! The forward pass of a decoder over any new tokens of any texts: prompts, single tokens, trees.
//!
//! One pass for every family; what differs between them is in [`Config`] and was settled when the weights were loaded.
//! Each matrix is gone through once for the tokens of all texts; only attention goes text by text.
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023 (grouped queries),
//! Miao et al. 2024 (SpecInfer, section 4: tree attention); for the rest see `family/`. Layout and names as in Hugging
//! Face transformers.

mod copy;
mod device;
pub(crate) mod exp;
mod gate;
mod host;
pub(crate) mod load;
pub(crate) mod norm;
pub(crate) mod pass;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::rope_thd;
use polydraft_engine::Feature;

use crate::cache::{Cache, CacheType, Form};
use crate::config::{Activation, Frequencies};
use crate::linear::{Linear, Matrix};
use crate::{Config, Error};
use norm::{Norm, Norms};
use pass::Part;

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
        let form = Form { layers: self.layers.len(), heads: key_value_heads, head, watched, held: self.held };
        Cache::new(form, self.dtype, &self.device)
    }

    /// Computes the tokens of all parts, leaves their keys and values in the caches and returns the logits of those that
    /// want them, `[wanted, vocabulary]` in the parts' order, in f32; `None` if none does.
    pub fn forward(&self, parts: &mut [Part]) -> Result<Option<Tensor>> {
        for part in &mut *parts {
            part.cache.reserve(part.start + part.tokens.len())?;
        }
        let positions: Vec<usize> =
            parts.iter().flat_map(|part| part.sights.iter().map(|sight| sight.position())).collect();
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
        let mut wanted: Vec<u32> = Vec::new();
        let mut end = 0;
        for part in &*parts {
            end += part.tokens.len();
            wanted.extend((end - part.wanted..end).map(|row| row as u32));
        }
        if wanted.is_empty() {
            return Ok(None);
        }
        if wanted.len() < positions.len() {
            x = x.index_select(&Tensor::new(wanted, &self.device)?, 0)?;
        }
        x = self.normed(x)?;
        if let Some([_, out]) = &self.projections {
            x = out.forward(&x)?;
        }
        let logits = self.head().forward(&x)?.to_dtype(DType::F32)?;
        capped(logits, self.config.logit_softcap).map(Some)
    }

    /// The weights of the last norm, where it has these alone.
    pub fn last_norm(&self) -> Result<Option<Vec<f32>>> {
        match &self.norm {
            Some(Norm::Rms { weight, .. }) => weight.to_dtype(DType::F32)?.to_vec1().map(Some),
            _ => Ok(None),
        }
    }

    /// Behind the last norm, if there is one.
    pub fn normed(&self, x: Tensor) -> Result<Tensor> {
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }

    /// Leaves a hidden state `[tokens, hidden]` in the caches, if it is watched.
    fn note(&self, feature: Feature, x: &Tensor, parts: &mut [Part]) -> Result<()> {
        let Some(place) = self.watched.iter().position(|watched| *watched == feature) else { return Ok(()) };
        let width = self.config.hidden;
        let states = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut states = states.chunks_exact(width);
        for part in parts {
            for (slot, state) in (part.start..part.end()).zip(&mut states) {
                part.cache.watch(slot, place * width, state);
            }
        }
        Ok(())
    }

    /// `[tokens, hidden]`
    fn embed(&self, parts: &[Part], positions: &[usize]) -> Result<Tensor> {
        let tokens: Vec<u32> = parts.iter().flat_map(|part| &part.tokens).copied().collect();
        let mut x = self.embedding.rows(&tokens, &self.device)?.to_dtype(self.dtype)?;
        if self.config.embedding_scale != 1.0 {
            x = (x * self.config.embedding_scale)?;
        }
        if let Some([into, _]) = &self.projections {
            x = into.forward(&x)?;
        }
        if let Place::Learned(rows, offset) = &self.place {
            let ids: Vec<u32> = positions.iter().map(|p| (p + offset) as u32).collect();
            x = (x + rows.rows(&ids, &self.device)?.to_dtype(self.dtype)?)?;
        }
        Ok(x)
    }

    /// Angles are computed anew for the few positions of a pass, so that a long context costs no table.
    pub fn ways(&self, parts: &[Part], positions: &[usize]) -> Result<Ways> {
        let turned = |Frequencies { values, amplitude }: &Frequencies| {
            let angles = || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
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

    pub fn attend(&self, number: usize, x: &Tensor, ways: &Ways, parts: &mut [Part]) -> Result<Tensor> {
        let Config { heads, key_value_heads, head, ref attention, .. } = self.config;
        let (layer, n) = (&self.layers[number], x.dim(0)?);
        let mixed = layer.query_key_value.forward(x)?;
        let found = match ways {
            Ways::Host(rotations) => {
                let rotation = rotations.of(layer.windowed);
                let [mut queries, mut keys, values] = match &layer.head_norms {
                    // A tensor operation takes as long as a small layer's products.
                    None => {
                        host::separate(&mixed, [heads, key_value_heads, key_value_heads].map(|n| n * head))?
                    }
                    Some(_) => {
                        let numbers = |x: Tensor| x.flatten_all()?.to_vec1::<f32>();
                        let [queries, keys, values] = self.separate(layer, &mixed)?;
                        [numbers(queries)?, numbers(keys)?, numbers(values)?]
                    }
                };
                let scale = attention.scale as f32;
                host::rotate(&mut queries, heads * head, head, rotation, scale);
                host::rotate(&mut keys, key_value_heads * head, head, rotation, 1.0);
                host::write(parts, number, &keys, &values)?;
                let window = attention.window.filter(|_| layer.windowed);
                let softcap = attention.softcap.map(|cap| cap as f32);
                let rules = host::Rules { layer: number, heads, window, softcap };
                Tensor::from_vec(host::attend(parts, &queries, rules)?, (n, heads * head), &self.device)?
            }
            Ways::Device(rotations, masks) => {
                let placed = |x: Tensor| match rotations.of(layer.windowed) {
                    None => Ok(x),
                    Some([cos, sin]) => rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0),
                };
                let [queries, keys, values] = self.separate(layer, &mixed)?;
                let all = [placed(queries)?, placed(keys)?, values];
                let mut found = Vec::with_capacity(parts.len());
                let mut row = 0;
                for (part, masks) in parts.iter().zip(masks) {
                    let rows = part.tokens.len();
                    let own = |x: &Tensor| x.narrow(0, row, rows);
                    let own = [own(&all[0])?, own(&all[1])?, own(&all[2])?];
                    let mask = masks[usize::from(layer.windowed)].as_ref();
                    found.push(device::attend(part, number, own, mask, &self.config)?);
                    row += rows;
                }
                Tensor::cat(&found, 0)?
            }
        };
        layer.output.forward(&found)
    }

    /// Queries, keys and values `[rows, their heads, head]`, contiguous, behind the norms of heads, from all side by side.
    fn separate(&self, layer: &Layer, mixed: &Tensor) -> Result<[Tensor; 3]> {
        let Config { heads, key_value_heads, head, .. } = self.config;
        let part = |from: usize, heads: usize, norm: Option<usize>| {
            let x = mixed.narrow(1, from * head, heads * head)?.contiguous()?.reshape(((), heads, head))?;
            match norm.and_then(|norm| Some(&layer.head_norms.as_ref()?[norm])) {
                None => Ok::<_, candle_core::Error>(x),
                Some(norm) => norm.forward(&x),
            }
        };
        let keys = part(heads, key_value_heads, Some(1))?;
        Ok([part(0, heads, Some(0))?, keys, part(heads + key_value_heads, key_value_heads, None)?])
    }

    pub fn feed_forward(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let inner = layer.mlp_in.forward(x)?;
        let activation = self.config.feed_forward.activation;
        if !self.config.feed_forward.gated {
            return layer.mlp_out.forward(&activation.forward(&inner)?);
        }
        if self.device.is_cpu() && matches!(activation, Activation::Silu) {
            return layer.mlp_out.forward(&inner.apply_op1_no_bwd(&gate::SiluGate)?);
        }
        let width = self.config.intermediate;
        let gate = activation.forward(&inner.narrow(1, 0, width)?)?;
        layer.mlp_out.forward(&(gate * inner.narrow(1, width, width)?)?)
    }

    /// Bytes that the matrices take.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.query_key_value, &l.output, &l.mlp_in, &l.mlp_out]);
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
