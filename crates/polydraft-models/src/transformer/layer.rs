//! One decoder layer.

use polydraft_kernels::Rows;

use super::delta::Delta;
use super::dense::Dense;
use super::experts::{LATENT, Shared};
use super::heads::Heads;
use super::latent::Latent;
use super::matrix_mapper::{MatrixMapper, MatrixName};
use super::mlp::Mlp;
use super::norms::Norms;
use super::pass::SequenceTokens;
use super::per_layer::PerLayerBlock;
use super::rotations::Rotations;
use super::short_convolution::ShortConvolution;
use super::state_space::StateSpaceLayer;
use crate::cache::CacheIndex;
use crate::config::{Config, NormOrder};
use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// One decoder layer: attention or a recurrent mixer, then a feed-forward block.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Location of the layer's KV cache, or of its recurrent state.
    pub cache_index: CacheIndex,
    pub attention_norms: Norms,
    /// `None` for layers that have a feed-forward block only.
    pub attention: Option<Attention>,
    pub mlp_norms: Norms,
    /// `None` for layers that have attention only.
    pub mlp: Option<Mlp>,
    /// Block that adds the per-layer input, for models that have one.
    pub per_layer: Option<PerLayerBlock>,
    /// Factor of the layer's output.
    pub scale: f64,
}

/// Attention of a layer, or the recurrent mixer in its place.
#[derive(Debug)]
pub(crate) enum Attention {
    Heads(Box<Heads>),
    Latent(Box<Latent>),
    Delta(Box<Delta>),
    Convolution(Box<ShortConvolution>),
    StateSpace(Box<StateSpaceLayer>),
}

/// Name of the input projection of a recurrent layer.
const MIXER_INPUT: &str = "mixed_in";
/// Names of the matrices that apply the per-layer input.
const PER_LAYER: [&str; 2] = ["per_layer_gate", "per_layer_back"];

impl Layer {
    /// Whether the layer has a recurrent state in place of a KV cache.
    pub fn is_recurrent(&self) -> bool {
        let is_cached =
            |attention: &Attention| matches!(attention, Attention::Heads(_) | Attention::Latent(_));
        self.attention.as_ref().is_some_and(|attention| !is_cached(attention))
    }

    /// Number of heads in the KV cache and their size, if the layer has a KV cache of its own.
    pub fn cached(&self, config: &Config) -> Option<[usize; 2]> {
        match (&self.attention, &config.attention.latent) {
            (Some(Attention::Heads(heads)), _) if !heads.borrows => {
                Some([heads.shape.key_value_heads, heads.shape.head_dim])
            }
            (Some(Attention::Latent(_)), Some(shape)) => Some([1, shape.cached()]),
            _ => None,
        }
    }

    /// Attends from the tokens of all sequences to their KV caches, after writing the tokens' own
    /// entries there.
    pub fn attend(
        &self,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        batch: &mut [SequenceTokens],
    ) -> Result<Rows> {
        let Some(attention) = &self.attention else { return Ok(zeros_like(x)) };
        match (attention, &config.attention.latent) {
            (Attention::Heads(heads), _) => {
                heads.forward(self.cache_index, config, x, rotations, batch)
            }
            (Attention::Latent(latent), Some(shape)) => {
                latent.forward(self.cache_index, config, shape, x, rotations, batch)
            }
            // Not reached: latent layers are loaded only with a configuration of their shape.
            (Attention::Latent(latent), None) => latent.output.forward(x),
            (Attention::Delta(delta), _) => delta.forward(self.cache_index.layer, x, batch),
            (Attention::Convolution(convolution), _) => {
                convolution.forward(self.cache_index.layer, x, batch)
            }
            (Attention::StateSpace(space), _) => space.forward(self.cache_index.layer, x, batch),
        }
    }

    /// Output of the feed-forward block, given the residual stream and its normed form `x`.
    pub fn feed_forward(&self, config: &Config, residual: &Rows, x: &Rows) -> Result<Rows> {
        match &self.mlp {
            None => Ok(zeros_like(x)),
            Some(mlp) => mlp.forward(config.feed_forward, residual, x),
        }
    }

    /// Computes the layer, up to [`finish`](Self::finish).
    pub fn forward(
        &self,
        config: &Config,
        x: Rows,
        rotations: &Rotations,
        batch: &mut [SequenceTokens],
    ) -> Result<Rows> {
        if let (NormOrder::Parallel, Some(norm)) = (config.norm_order, &self.attention_norms.pre) {
            let normed = norm.forward(&x)?;
            let x = x.plus(&self.attend(config, &normed, rotations, batch)?)?;
            return Ok(x.plus(&self.feed_forward(config, &normed, &normed)?)?);
        }
        let x = match self.attention {
            None => x,
            Some(_) => {
                self.attention_norms.around(x, |x| self.attend(config, x, rotations, batch))?
            }
        };
        match self.mlp {
            None => Ok(x),
            Some(_) => {
                self.mlp_norms.around_both(x, |residual, x| self.feed_forward(config, residual, x))
            }
        }
    }

    /// Adds the per-layer input, if the layer has one, and applies the layer's scale.
    pub fn finish(&self, config: &Config, mut x: Rows, input: Option<&Rows>) -> Result<Rows> {
        if let (Some(per_layer), Some(input)) = (&self.per_layer, input) {
            x = per_layer.forward(config.feed_forward.activation, x, input)?;
        }
        Ok(x.scaled(self.scale))
    }

    /// All matrices that may be stored in fewer bits, by name.
    pub fn matrices(&self) -> Vec<(MatrixName, &Matrix)> {
        let mut all: Vec<(MatrixName, &Matrix)> = Vec::new();
        let mut add = |name: MatrixName, linear| {
            let Linear { matrix, .. }: &Linear = linear;
            all.push((name, matrix));
        };
        match &self.attention {
            None => {}
            Some(Attention::Heads(heads)) => add("query_key_value".into(), &heads.query_key_value),
            Some(Attention::Latent(latent)) => {
                if let Some((down, _)) = &latent.query_down {
                    add("query_down".into(), down);
                }
                add("query".into(), &latent.query);
                add("down".into(), &latent.down);
            }
            Some(Attention::Delta(delta)) => add(MIXER_INPUT.into(), &delta.input),
            Some(Attention::Convolution(convolution)) => {
                add(MIXER_INPUT.into(), &convolution.input)
            }
            Some(Attention::StateSpace(space)) => add(MIXER_INPUT.into(), &space.input),
        }
        if let Some(attention) = &self.attention {
            add("output".into(), attention.output());
        }
        if let Some(Dense { gate_up, down }) = self.mlp.as_ref().and_then(Mlp::dense) {
            add("mlp_in".into(), gate_up);
            add("mlp_out".into(), down);
        }
        if let Some(experts) = self.mlp.as_ref().and_then(Mlp::experts) {
            for (number, Dense { gate_up, down }) in experts.blocks.iter().enumerate() {
                add(format!("experts.{number}.in").into(), gate_up);
                add(format!("experts.{number}.out").into(), down);
            }
            if let Some(latent) = &experts.latent {
                add(LATENT[0].into(), &latent.down);
                add(LATENT[1].into(), &latent.up);
            }
            if let Some(Shared { block, .. }) = &experts.shared {
                add("shared_in".into(), &block.gate_up);
                add("shared_out".into(), &block.down);
            }
        }
        if let Some(PerLayerBlock { gate, projection, .. }) = &self.per_layer {
            add(PER_LAYER[0].into(), gate);
            add(PER_LAYER[1].into(), projection);
        }
        if let Some(Attention::Latent(latent)) = &self.attention {
            for (part, heads) in [("keys", &latent.keys), ("values", &latent.values)] {
                let named = heads.iter().enumerate();
                all.extend(named.map(|(n, matrix)| (format!("{part}.{n}").into(), matrix)));
            }
        }
        all
    }

    /// Bytes of the experts that a pass over one token does not read.
    pub fn idle_expert_bytes(&self) -> usize {
        let Some(experts) = self.mlp.as_ref().and_then(Mlp::experts) else { return 0 };
        let bytes = |block: &Dense| block.gate_up.matrix.bytes() + block.down.matrix.bytes();
        let all: usize = experts.blocks.iter().map(bytes).sum();
        let count = experts.blocks.len().max(1);
        all / count * count.saturating_sub(experts.shape.used)
    }

    /// All linear layers whose inputs can be recorded.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear> {
        let mut all = match &mut self.attention {
            None => Vec::new(),
            Some(Attention::Heads(heads)) => vec![&mut heads.query_key_value, &mut heads.output],
            Some(Attention::Latent(latent)) => {
                let mut all = vec![&mut latent.query, &mut latent.down, &mut latent.output];
                all.extend(latent.query_down.as_mut().map(|(down, _)| down));
                all
            }
            Some(Attention::Delta(delta)) => vec![&mut delta.input, &mut delta.output],
            Some(Attention::Convolution(mixer)) => vec![&mut mixer.input, &mut mixer.output],
            Some(Attention::StateSpace(mixer)) => vec![&mut mixer.input, &mut mixer.output],
        };
        let (dense, experts) = self.mlp.as_mut().map_or((None, None), Mlp::blocks_mut);
        let mut narrow = Vec::new();
        let expert_blocks = experts.into_iter().flat_map(|experts| {
            narrow.extend(
                experts.latent.iter_mut().flat_map(|latent| [&mut latent.down, &mut latent.up]),
            );
            let shared = experts.shared.as_mut().map(|shared| &mut shared.block);
            experts.blocks.iter_mut().chain(shared)
        });
        for Dense { gate_up, down } in dense.into_iter().chain(expert_blocks) {
            all.extend([gate_up, down]);
        }
        all.extend(narrow);
        all.extend(
            self.per_layer
                .iter_mut()
                .flat_map(|per_layer| [&mut per_layer.gate, &mut per_layer.projection]),
        );
        all
    }

    /// Copy with mapped matrices.
    pub fn map_matrices(&self, mapper: &MatrixMapper) -> Result<Self> {
        let per_layer = match &self.per_layer {
            None => None,
            Some(PerLayerBlock { gate, projection, norm }) => {
                let gate = (mapper.linear)(PER_LAYER[0], gate)?;
                Some(PerLayerBlock {
                    gate,
                    projection: (mapper.linear)(PER_LAYER[1], projection)?,
                    norm: norm.clone(),
                })
            }
        };
        Ok(Self {
            cache_index: self.cache_index,
            attention_norms: self.attention_norms.clone(),
            attention: self
                .attention
                .as_ref()
                .map(|block| block.map_matrices(mapper))
                .transpose()?,
            mlp_norms: self.mlp_norms.clone(),
            mlp: self.mlp.as_ref().map(|block| block.map_matrices(mapper)).transpose()?,
            per_layer,
            scale: self.scale,
        })
    }
}

/// Output of a missing block.
fn zeros_like(x: &Rows) -> Rows {
    Rows::new(vec![0.0; x.numbers().len()], x.width())
}

impl Attention {
    fn output(&self) -> &Linear {
        match self {
            Self::Heads(heads) => &heads.output,
            Self::Latent(latent) => &latent.output,
            Self::Delta(delta) => &delta.output,
            Self::Convolution(convolution) => &convolution.output,
            Self::StateSpace(space) => &space.output,
        }
    }

    fn map_matrices(&self, mapper: &MatrixMapper) -> Result<Self> {
        let output = (mapper.linear)("output", self.output())?;
        Ok(match self {
            Self::Heads(heads) => Self::Heads(Box::new(Heads {
                shape: heads.shape,
                query_key_value: (mapper.linear)("query_key_value", &heads.query_key_value)?,
                borrows: heads.borrows,
                norms: heads.norms.clone(),
                output,
                windowed: heads.windowed,
                rotated: heads.rotated,
                sinks: heads.sinks.clone(),
                gate: heads.gate,
            })),
            Self::Delta(mixer) => {
                let input = (mapper.linear)(MIXER_INPUT, &mixer.input)?;
                let parameters = mixer.parameters.clone();
                Self::Delta(Box::new(Delta { rule: mixer.rule, input, output, parameters }))
            }
            Self::Convolution(mixer) => {
                let input = (mapper.linear)(MIXER_INPUT, &mixer.input)?;
                let convolution = mixer.convolution.clone();
                Self::Convolution(Box::new(ShortConvolution { input, convolution, output }))
            }
            Self::StateSpace(mixer) => {
                let (rule, input) = (mixer.rule, (mapper.linear)(MIXER_INPUT, &mixer.input)?);
                let parameters = mixer.parameters.clone();
                Self::StateSpace(Box::new(StateSpaceLayer { rule, input, output, parameters }))
            }
            Self::Latent(latent) => {
                let map = |part: &str, heads: &[Matrix]| -> Result<Vec<Matrix>> {
                    let named = heads.iter().enumerate();
                    named.map(|(n, head)| (mapper.matrix)(&format!("{part}.{n}"), head)).collect()
                };
                let query_down = match &latent.query_down {
                    None => None,
                    Some((down, norm)) => {
                        Some(((mapper.linear)("query_down", down)?, norm.clone()))
                    }
                };
                Self::Latent(Box::new(Latent {
                    query_down,
                    query: (mapper.linear)("query", &latent.query)?,
                    down: (mapper.linear)("down", &latent.down)?,
                    norm: latent.norm.clone(),
                    keys: map("keys", &latent.keys)?,
                    values: map("values", &latent.values)?,
                    output,
                }))
            }
        })
    }
}
