//! Forward pass of a decoder over any new tokens of any sequences: prompts, single tokens, trees.
//!
//! One pass serves every family; the differences between families are in [`Config`] and are
//! resolved when the weights are loaded. Each matrix is read once for the tokens of all sequences;
//! attention is computed separately for each sequence.
//! Source: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Ainslie et al. 2023
//! (grouped queries), Miao et al. 2024 (SpecInfer, section 4: tree attention); for the rest see
//! `family/`. Layout and names as in Hugging Face transformers.

mod delta;
mod dense;
mod dense_and_experts;
mod experts;
mod heads;
mod latent;
pub(crate) mod layer;
pub(crate) mod load;
mod load_attention;
mod load_mlp;
mod load_per_layer;
mod load_recurrent;
mod matrix_mapper;
mod mlp;
pub(crate) mod norms;
pub(crate) mod pass;
mod per_layer;
mod recurrent;
pub(crate) mod rotations;
mod self_draft;
mod short_convolution;
mod state_space;

use std::sync::Arc;

use polydraft_engine::HiddenState;
use polydraft_kernels::{CacheType, Norm, PageLayout, Rows};

use crate::cache::{Cache, CacheLayout, StateShape};
use crate::config::{Config, Frequencies, Mixer, Rope};
use crate::error::Result;
use crate::importance::Importance;
use crate::linear::Matrix;
use layer::Layer;
use pass::{SequenceTokens, begin, drop_unwanted, end, positions, tokens, wanted};
use per_layer::PerLayer;
use rotations::Rotations;

/// Minimum number of tokens between two cached states of the recurrent layers (one prefill chunk).
const MIN_STATE_SPACING: usize = 256;

/// Position encoding of a model.
#[derive(Debug, Clone)]
pub(crate) enum PositionEncoding {
    /// Rotary embedding; the second set of frequencies is used in layers with a sliding window, if
    /// theirs differ.
    Rotary(Frequencies, Option<Frequencies>),
    /// Learned embedding: a matrix with a row per position, and the offset of position 0 in it.
    Learned(Arc<Matrix>, usize),
}

impl PositionEncoding {
    /// Rotary encoding with the frequencies of `rope`, and with those of the configuration's
    /// sliding-window layers.
    pub fn rotary(config: &Config, rope: &Rope) -> Self {
        let windowed = config.attention.window_rope.as_ref();
        Self::Rotary(
            rope.frequencies(config.head_shape_for(false).head_dim),
            windowed.map(|rope| rope.frequencies(config.head_dim)),
        )
    }
}

/// Weights and configuration. The state of a sequence is in its [`Cache`].
#[derive(Debug)]
pub(crate) struct Transformer {
    pub config: Config,
    /// Shared with quantised self-drafts.
    embedding: Arc<Matrix>,
    /// Projections into and out of the layers, for models whose embedding has another width.
    projections: Option<[Matrix; 2]>,
    /// Per-layer embeddings, for models that have them.
    per_layer: Option<PerLayer>,
    positions: PositionEncoding,
    pub layers: Vec<Layer>,
    norm: Option<Norm>,
    /// Output matrix; `None` if it is tied to the embedding.
    head: Option<Arc<Matrix>>,
    /// Statistics of the output matrix's inputs, while they are recorded.
    head_inputs: Option<Importance>,
    /// Hidden states that are captured for every token.
    captured: Vec<HiddenState>,
    /// Number type of the KV cache.
    pub cache_type: CacheType,
}

impl Transformer {
    /// Captures these hidden states for every token from now on, in this order.
    pub fn capture_hidden_states(&mut self, features: &[HiddenState]) {
        self.captured = features.to_vec();
    }

    /// Numbers captured per token.
    pub fn captured_width(&self) -> usize {
        self.captured.len() * self.config.hidden
    }

    /// Bytes per token of the KV cache and the captured hidden states.
    pub fn token_bytes(&self) -> u64 {
        self.config.cache_bytes(self.cache_type.bytes())
            + (self.captured_width() * size_of::<f32>()) as u64
    }

    /// Embedding table, `[vocabulary, embedding]`.
    pub fn embedding(&self) -> &Arc<Matrix> {
        &self.embedding
    }

    /// Output matrix, `[vocabulary, embedding]`: the embedding where the two are tied.
    pub fn lm_head(&self) -> &Arc<Matrix> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Replaces the output matrix.
    pub fn set_lm_head(&mut self, head: Arc<Matrix>) {
        self.head = Some(head);
    }

    /// Replaces the norm after the last layer; `None` removes it.
    pub fn set_norm(&mut self, norm: Option<Norm>) {
        self.norm = norm;
    }

    /// Empty cache of a sequence.
    pub fn new_cache(&self) -> Cache {
        let mut layouts: Vec<PageLayout> = Vec::new();
        for [heads, head] in self.layers.iter().filter_map(|layer| layer.cached(&self.config)) {
            match layouts
                .iter_mut()
                .find(|layout| [layout.heads, layout.head_size] == [heads, head])
            {
                Some(layout) => layout.layers += 1,
                None => layouts.push(PageLayout {
                    layers: 1,
                    heads,
                    head_size: head,
                    cache_type: self.cache_type,
                }),
            }
        }
        let recurrent = self.layers.iter().filter(|layer| layer.is_recurrent()).count();
        let recurrent = self.state_form(recurrent);
        Cache::new(CacheLayout { layouts, captured_width: self.captured_width(), recurrent })
    }

    /// Shape of the state that `layers` recurrent layers cache for a sequence; `None` without such
    /// layers.
    fn state_form(&self, layers: usize) -> Option<StateShape> {
        let recurrent = self.config.recurrent.as_ref().filter(|_| layers > 0)?;
        let (inputs, memory) = match &recurrent.mixer {
            Mixer::Delta(rule) => (rule.width(), rule.state_size()),
            Mixer::StateSpace { rule, .. } => (rule.width(), rule.state_size()),
            Mixer::Convolution { .. } => (0, 0),
        };
        let channels = recurrent.channels(self.config.hidden);
        let spacing = self.config.state_bytes().div_ceil(self.token_bytes().max(1));
        let spacing = MIN_STATE_SPACING.max(usize::try_from(spacing).unwrap_or(usize::MAX));
        Some(StateShape { layers, channels, window: recurrent.kernel - 1, inputs, memory, spacing })
    }

    /// Computes the tokens of all sequences, writes their entries into the KV caches and returns
    /// the logits that are wanted, `[wanted, vocabulary]` in the order of the sequences: in
    /// `buffer` if it is large enough. Returns an empty vector if no sequence wants logits.
    pub fn forward(&self, batch: &mut [SequenceTokens], buffer: Vec<f32>) -> Result<Vec<f32>> {
        begin(batch)?;
        let positions = positions(batch);
        let mut rotations = self.rotations(&positions);
        let mut x = self.embed(batch, &positions)?;
        let mut inputs = match &self.per_layer {
            None => None,
            Some(per_layer) => Some((per_layer, per_layer.forward(&tokens(batch), &x)?)),
        };
        for (i, layer) in self.layers.iter().enumerate() {
            if i == self.first_narrowed_layer()
                && let Some(rows) = drop_unwanted(batch)
            {
                if rows.is_empty() {
                    break;
                }
                x = x.select(&rows);
                inputs = inputs.map(|(per_layer, all)| (per_layer, all.select(&rows)));
                rotations = self.rotations(&pass::positions(batch));
            }
            self.capture(HiddenState::After(i), &x, batch);
            x = layer.forward(&self.config, x, &rotations, batch)?;
            let input = inputs.as_ref().map(|(per_layer, all)| per_layer.layer_input(all, i));
            x = layer.finish(&self.config, x, input.as_ref())?;
        }
        end(batch);
        self.capture(HiddenState::After(self.layers.len()), &x, batch);
        if self.captured.contains(&HiddenState::Output) {
            self.capture(HiddenState::Output, &self.normed(x.clone())?, batch);
        }
        let Some(x) = wanted(x, batch) else { return Ok(Vec::new()) };
        let mut x = self.normed(x)?;
        if let Some([_, out]) = &self.projections {
            x = out.forward(&x)?;
        }
        if let Some(inputs) = &self.head_inputs {
            inputs.record(&x);
        }
        let Config { logit_scale, logit_softcap, .. } = self.config;
        let logits = self.lm_head().forward_into(&x, buffer)?;
        Ok(logits.scaled(logit_scale).capped(logit_softcap).into_numbers())
    }

    /// First layer from which on later tokens need nothing of a token: no key, no value, no
    /// captured or recorded state. Only tokens whose logits are wanted go through this layer and
    /// those above it.
    fn first_narrowed_layer(&self) -> usize {
        let is_recorded = !self.captured.is_empty() || self.head_inputs.is_some();
        let borrowing = if is_recorded { 0 } else { self.config.attention.shared_kv_layers };
        self.layers.len().saturating_sub(borrowing)
    }

    /// Weights of the last norm, if it is an RMS norm.
    pub fn last_norm(&self) -> Option<&[f32]> {
        match &self.norm {
            Some(Norm::Rms { weight, .. }) => Some(weight),
            _ => None,
        }
    }

    /// Applies the last norm, if there is one.
    pub fn normed(&self, x: Rows) -> Result<Rows> {
        match &self.norm {
            None => Ok(x),
            Some(norm) => Ok(norm.forward(&x)?),
        }
    }

    /// Stores a hidden state `[tokens, hidden]` in the caches, if it is one of those captured.
    fn capture(&self, feature: HiddenState, x: &Rows, batch: &mut [SequenceTokens]) {
        let Some(number) = self.captured.iter().position(|captured| *captured == feature) else {
            return;
        };
        let width = self.config.hidden;
        let mut states = x.numbers().chunks_exact(width);
        for sequence in batch {
            for (slot, state) in (sequence.start..sequence.end()).zip(&mut states) {
                sequence.cache.capture_hidden_states(slot, number * width, state);
            }
        }
    }

    /// Embeddings of the tokens, `[tokens, hidden]`, after the input projection and with learned
    /// positions added.
    fn embed(&self, batch: &[SequenceTokens], positions: &[usize]) -> Result<Rows> {
        let mut x = self.embedding.rows(&tokens(batch))?.scaled(self.config.embedding_scale);
        if let Some([input, _]) = &self.projections {
            x = input.forward(&x)?;
        }
        if let PositionEncoding::Learned(rows, offset) = &self.positions {
            let ids: Vec<u32> = positions.iter().map(|p| (p + offset) as u32).collect();
            x = x.plus(&rows.rows(&ids)?)?;
        }
        Ok(x)
    }

    /// Rotation angles of these positions, computed once for all layers.
    pub fn rotations(&self, positions: &[usize]) -> Rotations {
        match &self.positions {
            PositionEncoding::Learned(..) => Rotations::NONE,
            PositionEncoding::Rotary(all, windowed) => {
                Rotations::new(positions, all, windowed.as_ref())
            }
        }
    }

    /// Bytes of all matrices.
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(Layer::matrices).map(|(_, matrix)| matrix);
        let outer = self.head.iter().chain([&self.embedding]).map(Arc::as_ref);
        let per_layer = self.per_layer.iter().flat_map(|all| [&*all.table, &all.projection.matrix]);
        let outer = outer.chain(self.projections.iter().flatten()).chain(per_layer);
        layers.chain(outer).map(Matrix::bytes).sum()
    }

    /// Bytes of weights that a forward pass over one token reads.
    pub fn bytes_per_pass(&self) -> usize {
        // An untied embedding and the per-layer table are read one row at a time; of the experts,
        // those that one token uses are read.
        let embedding = self.head.as_ref().map_or(0, |_| self.embedding.bytes());
        let table = self.per_layer.as_ref().map_or(0, |all| all.table.bytes());
        let idle = self.layers.iter().map(Layer::idle_expert_bytes).sum::<usize>();
        self.weight_bytes() - embedding - table - idle
    }
}
