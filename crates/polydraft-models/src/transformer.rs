//! The forward pass of a decoder over any new tokens of any sequences: prompts, single tokens,
//! trees.
//!
//! One pass for every family; what differs between them is in [`Config`] and was settled when the
//! weights were loaded. Each matrix is read once for the tokens of all sequences; only attention
//! goes sequence by sequence.
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023
//! (grouped queries), Miao et al. 2024 (SpecInfer, section 4: tree attention); for the rest see
//! `family/`. Layout and names as in Hugging Face transformers.

mod beside;
mod copy;
mod delta;
mod dense;
mod experts;
mod heads;
mod latent;
pub(crate) mod layer;
pub(crate) mod load;
mod load_attention;
mod load_mlp;
mod load_per_layer;
mod load_recurrent;
mod make;
mod mlp;
pub(crate) mod norms;
pub(crate) mod pass;
mod per_layer;
mod recurrent;
pub(crate) mod rotations;
mod short_convolution;
mod state_space;

use std::sync::Arc;

use polydraft_engine::HiddenState;
use polydraft_kernels::{CacheType, Layout, Norm, Rows};

use crate::cache::{Cache, Form, StateForm};
use crate::config::{Config, Frequencies, Mixer, Rope};
use crate::error::Result;
use crate::importance::Importance;
use crate::linear::Matrix;
use layer::Layer;
use pass::{Part, begin, end, narrow, positions, tokens, wanted};
use per_layer::PerLayer;
use rotations::Rotations;

/// Tokens between two states of recurrent layers that are kept: a piece of a prompt.
const LEAST_SPACING: usize = 256;

/// How positions enter.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// The second in layers with a window, if another.
    Rotary(Frequencies, Option<Frequencies>),
    /// Rows by position.
    Learned(Arc<Matrix>, usize),
}

impl Place {
    /// By this rotation, and by that of layers with a window.
    pub fn rotary(config: &Config, rope: &Rope) -> Self {
        let windowed = config.attention.window_rope.as_ref();
        Self::Rotary(
            rope.frequencies(config.heads_when(false).head),
            windowed.map(|rope| rope.frequencies(config.head)),
        )
    }
}

/// Weights and shape; the state of a sequence is in its [`Cache`].
#[derive(Debug)]
pub(crate) struct Transformer {
    pub config: Config,
    /// Shared with quantised self-drafts.
    embedding: Arc<Matrix>,
    /// Around the layers, where tokens are embedded in another width.
    projections: Option<[Matrix; 2]>,
    /// Makes inputs of the layers' own, if they have such.
    per_layer: Option<PerLayer>,
    place: Place,
    pub layers: Vec<Layer>,
    norm: Option<Norm>,
    /// `None` if it is the embedding.
    head: Option<Arc<Matrix>>,
    /// The inputs of the matrix that makes logits, while they are recorded.
    head_inputs: Option<Importance>,
    /// The hidden states that are captured of every token.
    watched: Vec<HiddenState>,
    /// The type of the KV cache.
    pub held: CacheType,
}

impl Transformer {
    /// Captures these hidden states of every token, in this order.
    pub fn capture_hidden_states(&mut self, features: &[HiddenState]) {
        self.watched = features.to_vec();
    }

    /// How many numbers are captured of a token.
    pub fn watched(&self) -> usize {
        self.watched.len() * self.config.hidden
    }

    /// Bytes that the KV cache and the captured hidden states of one token take.
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

    /// Puts a norm after the layers, or none.
    pub fn set_norm(&mut self, norm: Option<Norm>) {
        self.norm = norm;
    }

    pub fn new_cache(&self) -> Cache {
        let mut layouts: Vec<Layout> = Vec::new();
        for [heads, head] in self.layers.iter().filter_map(|layer| layer.cached(&self.config)) {
            match layouts.iter_mut().find(|of| [of.heads, of.head] == [heads, head]) {
                Some(layout) => layout.layers += 1,
                None => layouts.push(Layout { layers: 1, heads, head, held: self.held }),
            }
        }
        let recurrent = self.layers.iter().filter(|layer| layer.is_recurrent()).count();
        let recurrent = self.state_form(recurrent);
        Cache::new(Form { layouts, watched: self.watched(), recurrent })
    }

    /// What so many recurrent layers keep of a sequence.
    fn state_form(&self, layers: usize) -> Option<StateForm> {
        let recurrent = self.config.recurrent.as_ref().filter(|_| layers > 0)?;
        let (inputs, memory) = match &recurrent.mixer {
            Mixer::Delta(rule) => (rule.width(), rule.state()),
            Mixer::StateSpace { rule, .. } => (rule.width(), rule.memory()),
            Mixer::Convolution { .. } => (0, 0),
        };
        let channels = recurrent.channels(self.config.hidden);
        let spacing = self.config.state_bytes().div_ceil(self.token_bytes().max(1));
        let spacing = LEAST_SPACING.max(usize::try_from(spacing).unwrap_or(usize::MAX));
        Some(StateForm { layers, channels, window: recurrent.kernel - 1, inputs, memory, spacing })
    }

    /// Computes the tokens of all parts, writes their entries into the KV caches and
    /// returns the logits of those that want them, `[wanted, vocabulary]` in the parts' order, in
    /// `room` where it is large enough; none if none does.
    pub fn forward(&self, parts: &mut [Part], room: Vec<f32>) -> Result<Vec<f32>> {
        begin(parts)?;
        let positions = positions(parts);
        let mut rotations = self.rotations(&positions);
        let mut x = self.embed(parts, &positions)?;
        let mut inputs = match &self.per_layer {
            None => None,
            Some(per_layer) => Some((per_layer, per_layer.forward(&tokens(parts), &x)?)),
        };
        for (i, layer) in self.layers.iter().enumerate() {
            if i == self.read_only()
                && let Some(rows) = narrow(parts)
            {
                if rows.is_empty() {
                    break;
                }
                x = x.select(&rows);
                inputs = inputs.map(|(per_layer, all)| (per_layer, all.select(&rows)));
                rotations = self.rotations(&pass::positions(parts));
            }
            self.note(HiddenState::After(i), &x, parts);
            x = layer.forward(&self.config, x, &rotations, parts)?;
            let input = inputs.as_ref().map(|(per_layer, all)| per_layer.of_layer(all, i));
            x = layer.end(&self.config, x, input.as_ref())?;
        }
        end(parts);
        self.note(HiddenState::After(self.layers.len()), &x, parts);
        if self.watched.contains(&HiddenState::Output) {
            self.note(HiddenState::Output, &self.normed(x.clone())?, parts);
        }
        let Some(x) = wanted(x, parts) else { return Ok(Vec::new()) };
        let mut x = self.normed(x)?;
        if let Some([_, out]) = &self.projections {
            x = out.forward(&x)?;
        }
        if let Some(inputs) = &self.head_inputs {
            inputs.note(&x);
        }
        let Config { logit_scale, logit_softcap, .. } = self.config;
        let logits = self.head().forward_in(&x, room)?;
        Ok(logits.scaled(logit_scale).capped(logit_softcap).into_numbers())
    }

    /// The first layer from which on nothing is left for later tokens, so that only tokens
    /// whose logits are wanted go through it and those above it: no key, no value, no state that is
    /// captured or recorded.
    fn read_only(&self) -> usize {
        let is_noted = !self.watched.is_empty() || self.head_inputs.is_some();
        let borrowing = if is_noted { 0 } else { self.config.attention.borrowing };
        self.layers.len().saturating_sub(borrowing)
    }

    /// The weights of the last norm, where it has these alone.
    pub fn last_norm(&self) -> Option<&[f32]> {
        match &self.norm {
            Some(Norm::Rms { weight, .. }) => Some(weight),
            _ => None,
        }
    }

    /// After the last norm, if there is one.
    pub fn normed(&self, x: Rows) -> Result<Rows> {
        match &self.norm {
            None => Ok(x),
            Some(norm) => Ok(norm.forward(&x)?),
        }
    }

    /// Leaves a hidden state `[tokens, hidden]` in the caches, if it is captured.
    fn note(&self, feature: HiddenState, x: &Rows, parts: &mut [Part]) {
        let Some(place) = self.watched.iter().position(|watched| *watched == feature) else {
            return;
        };
        let width = self.config.hidden;
        let mut states = x.numbers().chunks_exact(width);
        for part in parts {
            for (slot, state) in (part.start..part.end()).zip(&mut states) {
                part.cache.capture_hidden_states(slot, place * width, state);
            }
        }
    }

    /// `[tokens, hidden]`
    fn embed(&self, parts: &[Part], positions: &[usize]) -> Result<Rows> {
        let mut x = self.embedding.rows(&tokens(parts))?.scaled(self.config.embedding_scale);
        if let Some([into, _]) = &self.projections {
            x = into.forward(&x)?;
        }
        if let Place::Learned(rows, offset) = &self.place {
            let ids: Vec<u32> = positions.iter().map(|p| (p + offset) as u32).collect();
            x = x.plus(&rows.rows(&ids)?)?;
        }
        Ok(x)
    }

    /// What attention needs besides the tokens' numbers, made once for all layers.
    pub fn rotations(&self, positions: &[usize]) -> Rotations {
        match &self.place {
            Place::Learned(..) => Rotations::NONE,
            Place::Rotary(all, windowed) => Rotations::new(positions, all, windowed.as_ref()),
        }
    }

    /// Bytes that the matrices take.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices).map(|(_, matrix)| matrix);
        let outer = self.head.iter().chain([&self.embedding]).map(Arc::as_ref);
        let per_layer = self.per_layer.iter().flat_map(|all| [&*all.table, &all.from.matrix]);
        let outer = outer.chain(self.projections.iter().flatten()).chain(per_layer);
        layers.chain(outer).map(Matrix::bytes).sum()
    }

    /// Bytes of weights that a pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        // Of an embedding that is not the head too, one row; of experts those of one token.
        let embedding = self.head.as_ref().map_or(0, |_| self.embedding.bytes());
        let table = self.per_layer.as_ref().map_or(0, |all| all.table.bytes());
        let idle = self.layers.iter().map(Layer::idle_bytes).sum::<usize>();
        self.weight_bytes() - embedding - table - idle
    }
}
