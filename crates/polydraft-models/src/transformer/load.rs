//! From tensors on disk to a transformer.

use std::sync::Arc;

use polydraft_kernels::{CacheType, Norm, Rows};

use super::layer::Layer;
use super::norms::Norms;
use super::{Place, Transformer};
use crate::config::{Blocks, Config, NormKind, NormOrder, Positions};
use crate::error::Result;
use crate::linear::{Linear, Matrix};
use crate::precision::{Precision, Use};
use crate::weights::{Part, Weights};

/// Reads the tensors of one model.
pub(crate) struct Loader<'a> {
    pub config: &'a Config,
    pub weights: Weights,
    pub precision: Precision,
}

impl Transformer {
    /// One of parts, without a norm after the layers, whose head is the embedding.
    pub fn of_parts(
        config: Config,
        embedding: Arc<Matrix>,
        place: Place,
        layers: Vec<Layer>,
    ) -> Self {
        Self {
            config,
            embedding,
            projections: None,
            per_layer: None,
            place,
            layers,
            norm: None,
            head: None,
            head_inputs: None,
            watched: Vec::new(),
            held: CacheType::default(),
        }
    }

    /// Reads one whose logits have `vocabulary` entries; rows of the embedding beyond are left on
    /// disk. With fewer layers than it has it is what is before and after them, and nothing that
    /// computes.
    pub fn load(
        config: &Config,
        mut weights: Weights,
        vocabulary: usize,
        layers: usize,
        precision: Precision,
    ) -> Result<Self> {
        let names = config.names;
        weights.prepend(names.prefix());
        let mut loader = Loader { config, weights, precision };
        let (embedding, head) = loader.embeddings(vocabulary)?;
        let projections = match config.embedding == config.hidden {
            true => None,
            false => Some([
                loader.matrix(names.project_in, config.hidden, config.embedding)?,
                loader.matrix(names.project_out, config.embedding, config.hidden)?,
            ]),
        };
        let place = match &config.positions {
            Positions::Rotary(rope) => Place::rotary(config, rope),
            Positions::Learned { offset } => {
                let part = whole(names.positions, config.context + offset);
                Place::Learned(Arc::new(loader.looked_up(&[part], config.hidden)?), *offset)
            }
        };
        let whole = layers == config.layers;
        let per_layer = match config.per_layer.filter(|_| whole) {
            None => None,
            Some(shape) => Some(loader.per_layer(shape, vocabulary)?),
        };
        let layers = (0..layers).map(|i| loader.layer(i)).collect::<Result<_>>()?;
        let norm = match config.final_norm {
            true => Some(loader.norm(names.norm, config.hidden)?),
            false => None,
        };
        // Copies and constants that some exporters store.
        let copy = format!("{}.weight", names.head);
        loader.weights.finish(|name| {
            !whole
                || (config.tied && name == copy)
                || name.ends_with("rotary_emb.inv_freq")
                || name.ends_with("self_attn.masked_bias")
                || config.is_read_elsewhere(name)
        })?;
        Ok(Self {
            config: config.clone(),
            embedding: Arc::new(embedding),
            projections,
            per_layer,
            place,
            layers,
            norm,
            head: head.map(Arc::new),
            head_inputs: None,
            watched: Vec::new(),
            held: CacheType::default(),
        })
    }
}

impl Loader<'_> {
    /// The embedding and, if it is a tensor of its own, the head.
    fn embeddings(&mut self, wanted: usize) -> Result<(Matrix, Option<Matrix>)> {
        let Config { vocabulary: rows, embedding: width, names, tied, .. } = *self.config;
        let part = |name: &str| Part::of(format!("{name}.weight"), rows, wanted);
        if tied {
            return Ok((self.stacked(&[part(names.embedding)], width)?, None));
        }
        // Only ever read by rows: there is nothing to gain from fewer bits than it was published
        // in.
        let embedding = self.looked_up(&[part(names.embedding)], width)?;
        Ok((embedding, Some(self.stacked(&[part(names.head)], width)?)))
    }

    pub fn layer(&mut self, number: usize) -> Result<Layer> {
        let Config { names, hidden, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let norms = match self.config.blocks_of(number) {
            Blocks::FeedForward => Norms::default(),
            Blocks::Both | Blocks::Attention => self.norms(names.attention_norms.map(name))?,
        };
        self.block(number, norms, hidden)
    }

    /// A layer whose attention has these norms, and inputs of so many columns.
    pub fn block(
        &mut self,
        number: usize,
        attention_norms: Norms,
        columns: usize,
    ) -> Result<Layer> {
        let Config { names, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let blocks = self.config.blocks_of(number);
        let mlp_norms = match self.config.norm_order {
            _ if blocks == Blocks::Attention => Norms::default(),
            NormOrder::Parallel => Norms::default(),
            _ if blocks == Blocks::FeedForward => self.norms(names.attention_norms.map(name))?,
            _ => self.norms(names.mlp_norms.map(name))?,
        };
        Ok(Layer {
            place: self.config.place_of(number),
            attention_norms,
            attention: match blocks {
                Blocks::FeedForward => None,
                Blocks::Both | Blocks::Attention => Some(self.attention(number, columns)?),
            },
            mlp_norms,
            mlp: match blocks {
                Blocks::Attention => None,
                Blocks::Both | Blocks::FeedForward => Some(self.mlp(number)?),
            },
            per_layer: self.per_layer_block(number)?,
            scale: match self.config.layer_scales {
                false => 1.0,
                true => f64::from(self.weights.vector(&name(names.layer_scale), 1)?[0]),
            },
        })
    }

    fn norms(&mut self, [first, second]: [String; 2]) -> Result<Norms> {
        let Config { hidden, norm_order, residual_scale, .. } = *self.config;
        let mut norm = |name: &str| self.norm(name, hidden).map(Some);
        let mut norms = match norm_order {
            NormOrder::Before | NormOrder::Parallel => {
                Norms { before: norm(&first)?, ..Norms::default() }
            }
            NormOrder::After => Norms { after: norm(&first)?, ..Norms::default() },
            NormOrder::Behind => Norms { behind: norm(&first)?, ..Norms::default() },
            NormOrder::Around => {
                Norms { before: norm(&first)?, behind: norm(&second)?, ..Norms::default() }
            }
        };
        norms.scale = residual_scale;
        Ok(norms)
    }

    pub fn norm(&mut self, name: &str, width: usize) -> Result<Norm> {
        let epsilon = self.config.norm_epsilon as f32;
        let weight = match self.config.norm {
            NormKind::LayerPlain => vec![1.0; width],
            NormKind::RmsPlusOne => {
                let weight = self.weights.vector(&format!("{name}.weight"), width)?;
                weight.into_iter().map(|w| w + 1.0).collect()
            }
            NormKind::Rms | NormKind::Layer | NormKind::LayerScale => {
                self.weights.vector(&format!("{name}.weight"), width)?
            }
        };
        Ok(match self.config.norm {
            NormKind::Rms | NormKind::RmsPlusOne => Norm::Rms { weight, epsilon },
            NormKind::Layer => {
                let bias = self.weights.vector(&format!("{name}.bias"), width)?;
                Norm::Layer { weight, bias, epsilon }
            }
            NormKind::LayerScale | NormKind::LayerPlain => {
                Norm::Layer { weight, bias: vec![0.0; width], epsilon }
            }
        })
    }

    /// Products of one input, stacked.
    pub fn linear(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
        biased: bool,
    ) -> Result<Linear> {
        let all: Vec<Part> = parts.iter().map(|(name, rows)| whole(name, *rows)).collect();
        let matrix = self.stacked(&all, columns)?;
        if !biased {
            return Ok(Linear { matrix, bias: None, inputs: None });
        }
        let mut bias = Vec::new();
        for (name, rows) in parts {
            bias.append(&mut self.weights.vector(&format!("{name}.bias"), *rows)?);
        }
        Ok(Linear { matrix, bias: Some(row(bias)), inputs: None })
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        self.stacked(&[whole(name, rows)], columns)
    }

    pub fn stacked(&mut self, parts: &[Part], columns: usize) -> Result<Matrix> {
        Matrix::load(&mut self.weights, parts, columns, self.precision)
    }

    /// A matrix that is only read by rows.
    pub fn looked_up(&mut self, parts: &[Part], columns: usize) -> Result<Matrix> {
        self.used_for(Use::Rows, parts, columns)
    }

    /// A matrix for such a use.
    pub fn used_for(&mut self, of: Use, parts: &[Part], columns: usize) -> Result<Matrix> {
        Matrix::load(&mut self.weights, parts, columns, self.precision.used_for(of))
    }
}

/// All rows of a tensor.
pub(super) fn whole(name: &str, rows: usize) -> Part {
    Part::of(format!("{name}.weight"), rows, rows)
}

/// One row.
pub(super) fn row(numbers: Vec<f32>) -> Rows {
    let width = numbers.len();
    Rows::new(numbers, width)
}
