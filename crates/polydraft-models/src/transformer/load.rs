//! Loads a transformer from tensors on disk.

use std::sync::Arc;

use polydraft_kernels::{CacheType, Norm, Rows};

use super::layer::Layer;
use super::norms::Norms;
use super::{PositionEncoding, Transformer};
use crate::config::{Config, LayerBlocks, NormKind, NormOrder, Positions};
use crate::error::Result;
use crate::linear::{Linear, Matrix};
use crate::precision::{MatrixUse, Precision};
use crate::weights::{TensorRows, Weights};

/// Loads the tensors of one model.
pub(crate) struct Loader<'a> {
    pub config: &'a Config,
    pub weights: Weights,
    pub precision: Precision,
}

impl Transformer {
    /// Assembles a transformer without a final norm, whose output matrix is the embedding.
    pub fn from_parts(
        config: Config,
        embedding: Arc<Matrix>,
        positions: PositionEncoding,
        layers: Vec<Layer>,
    ) -> Self {
        Self {
            config,
            embedding,
            projections: None,
            per_layer: None,
            positions,
            layers,
            norm: None,
            head: None,
            head_inputs: None,
            captured: Vec::new(),
            cache_type: CacheType::default(),
        }
    }

    /// Loads a transformer with `vocabulary` logits, leaving further rows of the embedding on disk.
    /// With fewer layers than the configuration has, it can embed tokens and compute logits from
    /// hidden states, but not run a forward pass.
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
        let positions = match &config.positions {
            Positions::Rotary(rope) => PositionEncoding::rotary(config, rope),
            Positions::Learned { offset } => {
                let part = all_rows(names.positions, config.context + offset);
                PositionEncoding::Learned(
                    Arc::new(loader.unquantised_matrix(&[part], config.hidden)?),
                    *offset,
                )
            }
        };
        let is_complete = layers == config.layers;
        let per_layer = match config.per_layer.filter(|_| is_complete) {
            None => None,
            Some(shape) => Some(loader.per_layer(shape, vocabulary)?),
        };
        let layers = (0..layers).map(|i| loader.layer(i)).collect::<Result<_>>()?;
        let norm = match config.final_norm {
            true => Some(loader.norm(names.norm, config.hidden)?),
            false => None,
        };
        // Copies and constants that some exporters store.
        let copy = format!("{}.weight", names.lm_head);
        loader.weights.check_all_read(|name| {
            !is_complete
                || (config.tied && name == copy)
                || name.ends_with("rotary_emb.inv_freq")
                || name.ends_with("self_attn.masked_bias")
                || config.skips_tensor(name)
        })?;
        Ok(Self {
            config: config.clone(),
            embedding: Arc::new(embedding),
            projections,
            per_layer,
            positions,
            layers,
            norm,
            head: head.map(Arc::new),
            head_inputs: None,
            captured: Vec::new(),
            cache_type: CacheType::default(),
        })
    }
}

impl Loader<'_> {
    /// Loads the embedding and, if it is untied, the output matrix.
    fn embeddings(&mut self, wanted: usize) -> Result<(Matrix, Option<Matrix>)> {
        let Config { vocabulary: rows, embedding: width, names, tied, .. } = *self.config;
        let part = |name: &str| TensorRows::first_rows(format!("{name}.weight"), rows, wanted);
        if tied {
            return Ok((self.stacked(&[part(names.embedding)], width)?, None));
        }
        // Only single rows are read: fewer bits than published would save nothing.
        let embedding = self.unquantised_matrix(&[part(names.embedding)], width)?;
        Ok((embedding, Some(self.stacked(&[part(names.lm_head)], width)?)))
    }

    /// Loads layer `number`.
    pub fn layer(&mut self, number: usize) -> Result<Layer> {
        let Config { names, hidden, .. } = *self.config;
        let name = |part: &str| format!("{}.{number}.{part}", names.layers);
        let norms = match self.config.blocks_of(number) {
            LayerBlocks::FeedForward => Norms::default(),
            LayerBlocks::Both | LayerBlocks::Attention => {
                self.norms(names.attention_norms.map(name))?
            }
        };
        self.block(number, norms, hidden)
    }

    /// Loads layer `number`, with these attention norms and attention inputs of `columns` numbers.
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
            _ if blocks == LayerBlocks::Attention => Norms::default(),
            NormOrder::Parallel => Norms::default(),
            _ if blocks == LayerBlocks::FeedForward => {
                self.norms(names.attention_norms.map(name))?
            }
            _ => self.norms(names.mlp_norms.map(name))?,
        };
        Ok(Layer {
            cache_index: self.config.cache_index(number),
            attention_norms,
            attention: match blocks {
                LayerBlocks::FeedForward => None,
                LayerBlocks::Both | LayerBlocks::Attention => {
                    Some(self.attention(number, columns)?)
                }
            },
            mlp_norms,
            mlp: match blocks {
                LayerBlocks::Attention => None,
                LayerBlocks::Both | LayerBlocks::FeedForward => Some(self.mlp(number)?),
            },
            per_layer: self.per_layer_block(number)?,
            scale: match self.config.layer_scales {
                false => 1.0,
                true => f64::from(self.weights.vector(&name(names.layer_scale), 1)?[0]),
            },
        })
    }

    /// Loads the norms of a block, in the order of the family.
    fn norms(&mut self, [first, second]: [String; 2]) -> Result<Norms> {
        let Config { hidden, norm_order, residual_scale, .. } = *self.config;
        let mut norm = |name: &str| self.norm(name, hidden).map(Some);
        let mut norms = match norm_order {
            NormOrder::Pre | NormOrder::Parallel => {
                Norms { pre: norm(&first)?, ..Norms::default() }
            }
            NormOrder::Post => Norms { post_residual: norm(&first)?, ..Norms::default() },
            NormOrder::BlockOutput => Norms { post: norm(&first)?, ..Norms::default() },
            NormOrder::Sandwich => {
                Norms { pre: norm(&first)?, post: norm(&second)?, ..Norms::default() }
            }
        };
        norms.scale = residual_scale;
        Ok(norms)
    }

    /// Loads a norm over `width` numbers.
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

    /// Loads linear layers with a common input, stacked; `parts` are their names and row counts.
    pub fn linear(
        &mut self,
        parts: &[(String, usize)],
        columns: usize,
        biased: bool,
    ) -> Result<Linear> {
        let all: Vec<TensorRows> = parts.iter().map(|(name, rows)| all_rows(name, *rows)).collect();
        let matrix = self.stacked(&all, columns)?;
        if !biased {
            return Ok(Linear { matrix, bias: None, inputs: None });
        }
        let mut bias = Vec::new();
        for (name, rows) in parts {
            bias.append(&mut self.weights.vector(&format!("{name}.bias"), *rows)?);
        }
        Ok(Linear { matrix, bias: Some(single_row(bias)), inputs: None })
    }

    /// Loads one matrix.
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Matrix> {
        self.stacked(&[all_rows(name, rows)], columns)
    }

    /// Loads and stacks the rows of `parts`.
    pub fn stacked(&mut self, parts: &[TensorRows], columns: usize) -> Result<Matrix> {
        Matrix::load(&mut self.weights, parts, columns, self.precision)
    }

    /// Loads a matrix in full precision: tables that are read row by row, and small matrices.
    pub fn unquantised_matrix(&mut self, parts: &[TensorRows], columns: usize) -> Result<Matrix> {
        self.for_use(MatrixUse::RowLookup, parts, columns)
    }

    /// Loads a matrix in the precision for a use.
    pub fn for_use(
        &mut self,
        matrix_use: MatrixUse,
        parts: &[TensorRows],
        columns: usize,
    ) -> Result<Matrix> {
        Matrix::load(&mut self.weights, parts, columns, self.precision.for_use(matrix_use))
    }
}

/// All rows of the tensor `name.weight`.
pub(super) fn all_rows(name: &str, rows: usize) -> TensorRows {
    TensorRows::first_rows(format!("{name}.weight"), rows, rows)
}

/// A vector as a single row.
pub(super) fn single_row(numbers: Vec<f32>) -> Rows {
    let width = numbers.len();
    Rows::new(numbers, width)
}
