//! One decoder layer.

use polydraft_kernels::Rows;

use super::delta::Delta;
use super::dense::Dense;
use super::experts::{LATENT, Shared};
use super::heads::Heads;
use super::latent::Latent;
use super::make::{Make, Name};
use super::mlp::Mlp;
use super::norms::Norms;
use super::pass::Part;
use super::per_layer::PerLayerBlock;
use super::rotations::Rotations;
use super::short_convolution::ShortConvolution;
use super::state_space::StateSpaceLayer;
use crate::cache::CachePlace;
use crate::config::{Config, NormOrder};
use crate::error::Result;
use crate::linear::{Linear, Matrix};

#[derive(Debug)]
pub(crate) struct Layer {
    /// Where its KV cache is, or the state that it keeps.
    pub place: CachePlace,
    pub attention_norms: Norms,
    /// One of the two may be missing: it adds nothing.
    pub attention: Option<Attention>,
    pub mlp_norms: Norms,
    pub mlp: Option<Mlp>,
    /// What it does with an input of its own, if it has one.
    pub per_layer: Option<PerLayerBlock>,
    /// What its output is multiplied by.
    pub scale: f64,
}

#[derive(Debug)]
pub(crate) enum Attention {
    Heads(Box<Heads>),
    Latent(Box<Latent>),
    Delta(Box<Delta>),
    Convolution(Box<ShortConvolution>),
    StateSpace(Box<StateSpaceLayer>),
}

/// The product that a recurrent layer begins with.
const MIXED: &str = "mixed_in";
/// Those of an input of the layer's own.
const PER_LAYER: [&str; 2] = ["per_layer_gate", "per_layer_back"];

impl Layer {
    /// Whether it keeps a state in the place of a KV cache.
    pub fn is_recurrent(&self) -> bool {
        let is_cached = |of: &Attention| matches!(of, Attention::Heads(_) | Attention::Latent(_));
        self.attention.as_ref().is_some_and(|attention| !is_cached(attention))
    }

    /// Heads in the KV cache and their width, if it has a KV cache of its own.
    pub fn cached(&self, config: &Config) -> Option<[usize; 2]> {
        match (&self.attention, &config.attention.latent) {
            (Some(Attention::Heads(heads)), _) if !heads.borrows => {
                Some([heads.shape.key_value_heads, heads.shape.head])
            }
            (Some(Attention::Latent(_)), Some(shape)) => Some([1, shape.cached()]),
            _ => None,
        }
    }

    /// Attention of the tokens of all parts to their sequences; their entries go into the
    /// KV caches.
    pub fn attend(
        &self,
        config: &Config,
        x: &Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        let Some(attention) = &self.attention else { return Ok(nothing(x)) };
        match (attention, &config.attention.latent) {
            (Attention::Heads(heads), _) => heads.forward(self.place, config, x, rotations, parts),
            (Attention::Latent(latent), Some(shape)) => {
                latent.forward(self.place, config, shape, x, rotations, parts)
            }
            // It is made where the configuration has its shape.
            (Attention::Latent(latent), None) => latent.output.forward(x),
            (Attention::Delta(delta), _) => delta.forward(self.place.layer, x, parts),
            (Attention::Convolution(convolution), _) => {
                convolution.forward(self.place.layer, x, parts)
            }
            (Attention::StateSpace(space), _) => space.forward(self.place.layer, x, parts),
        }
    }

    /// Of the residual stream, and of what the norm before the block made of it.
    pub fn feed_forward(&self, config: &Config, residual: &Rows, x: &Rows) -> Result<Rows> {
        match &self.mlp {
            None => Ok(nothing(x)),
            Some(mlp) => mlp.forward(config.feed_forward, residual, x),
        }
    }

    /// The whole layer, but for its [end](Self::end).
    pub fn forward(
        &self,
        config: &Config,
        x: Rows,
        rotations: &Rotations,
        parts: &mut [Part],
    ) -> Result<Rows> {
        if let (NormOrder::Parallel, Some(norm)) = (config.norm_order, &self.attention_norms.before)
        {
            let normed = norm.forward(&x)?;
            let x = x.plus(&self.attend(config, &normed, rotations, parts)?)?;
            return Ok(x.plus(&self.feed_forward(config, &normed, &normed)?)?);
        }
        let x = match self.attention {
            None => x,
            Some(_) => {
                self.attention_norms.around(x, |x| self.attend(config, x, rotations, parts))?
            }
        };
        match self.mlp {
            None => Ok(x),
            Some(_) => {
                self.mlp_norms.around_both(x, |residual, x| self.feed_forward(config, residual, x))
            }
        }
    }

    /// What becomes of its output by an input of its own, if it has one, and by its scale.
    pub fn end(&self, config: &Config, mut x: Rows, input: Option<&Rows>) -> Result<Rows> {
        if let (Some(per_layer), Some(input)) = (&self.per_layer, input) {
            x = per_layer.forward(config.feed_forward.activation, x, input)?;
        }
        Ok(x.scaled(self.scale))
    }

    /// All that is multiplied with and may be stored in fewer bits, by name.
    pub fn matrices(&self) -> Vec<(Name, &Matrix)> {
        let mut all: Vec<(Name, &Matrix)> = Vec::new();
        let mut add = |name: Name, linear| {
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
            Some(Attention::Delta(delta)) => add(MIXED.into(), &delta.into),
            Some(Attention::Convolution(convolution)) => add(MIXED.into(), &convolution.into),
            Some(Attention::StateSpace(space)) => add(MIXED.into(), &space.into),
        }
        if let Some(attention) = &self.attention {
            add("output".into(), attention.output());
        }
        if let Some(Dense { into, out }) = self.mlp.as_ref().and_then(Mlp::dense) {
            add("mlp_in".into(), into);
            add("mlp_out".into(), out);
        }
        if let Some(experts) = self.mlp.as_ref().and_then(Mlp::experts) {
            for (number, Dense { into, out }) in experts.each.iter().enumerate() {
                add(format!("experts.{number}.in").into(), into);
                add(format!("experts.{number}.out").into(), out);
            }
            if let Some(latent) = &experts.latent {
                add(LATENT[0].into(), &latent.down);
                add(LATENT[1].into(), &latent.up);
            }
            if let Some(Shared { block, .. }) = &experts.shared {
                add("shared_in".into(), &block.into);
                add("shared_out".into(), &block.out);
            }
        }
        if let Some(PerLayerBlock { gate, back, .. }) = &self.per_layer {
            add(PER_LAYER[0].into(), gate);
            add(PER_LAYER[1].into(), back);
        }
        if let Some(Attention::Latent(latent)) = &self.attention {
            for (what, parts) in [("keys", &latent.keys), ("values", &latent.values)] {
                let named = parts.iter().enumerate();
                all.extend(named.map(|(n, matrix)| (format!("{what}.{n}").into(), matrix)));
            }
        }
        all
    }

    /// Bytes of the matrices that a pass over one token leaves alone.
    pub fn idle_bytes(&self) -> usize {
        let Some(experts) = self.mlp.as_ref().and_then(Mlp::experts) else { return 0 };
        let of = |dense: &Dense| dense.into.matrix.bytes() + dense.out.matrix.bytes();
        let all: usize = experts.each.iter().map(of).sum();
        let count = experts.each.len().max(1);
        all / count * count.saturating_sub(experts.shape.used)
    }

    /// All whose inputs can be recorded.
    pub fn products_mut(&mut self) -> Vec<&mut Linear> {
        let mut all = match &mut self.attention {
            None => Vec::new(),
            Some(Attention::Heads(heads)) => vec![&mut heads.query_key_value, &mut heads.output],
            Some(Attention::Latent(latent)) => {
                let mut all = vec![&mut latent.query, &mut latent.down, &mut latent.output];
                all.extend(latent.query_down.as_mut().map(|(down, _)| down));
                all
            }
            Some(Attention::Delta(delta)) => vec![&mut delta.into, &mut delta.output],
            Some(Attention::Convolution(of)) => vec![&mut of.into, &mut of.output],
            Some(Attention::StateSpace(of)) => vec![&mut of.into, &mut of.output],
        };
        let (dense, experts) = self.mlp.as_mut().map_or((None, None), Mlp::parts_mut);
        let mut narrow = Vec::new();
        let of_experts = experts.into_iter().flat_map(|experts| {
            narrow.extend(experts.latent.iter_mut().flat_map(|of| [&mut of.down, &mut of.up]));
            let shared = experts.shared.as_mut().map(|shared| &mut shared.block);
            experts.each.iter_mut().chain(shared)
        });
        for Dense { into, out } in dense.into_iter().chain(of_experts) {
            all.extend([into, out]);
        }
        all.extend(narrow);
        all.extend(
            self.per_layer
                .iter_mut()
                .flat_map(|per_layer| [&mut per_layer.gate, &mut per_layer.back]),
        );
        all
    }

    /// The same with other matrices.
    pub fn with(&self, make: &Make) -> Result<Self> {
        let per_layer = match &self.per_layer {
            None => None,
            Some(PerLayerBlock { gate, back, norm }) => {
                let gate = (make.linear)(PER_LAYER[0], gate)?;
                Some(PerLayerBlock {
                    gate,
                    back: (make.linear)(PER_LAYER[1], back)?,
                    norm: norm.clone(),
                })
            }
        };
        Ok(Self {
            place: self.place,
            attention_norms: self.attention_norms.clone(),
            attention: self.attention.as_ref().map(|of| of.with(make)).transpose()?,
            mlp_norms: self.mlp_norms.clone(),
            mlp: self.mlp.as_ref().map(|of| of.with(make)).transpose()?,
            per_layer,
            scale: self.scale,
        })
    }
}

/// What a block that is not there adds.
fn nothing(x: &Rows) -> Rows {
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

    fn with(&self, make: &Make) -> Result<Self> {
        let output = (make.linear)("output", self.output())?;
        Ok(match self {
            Self::Heads(heads) => Self::Heads(Box::new(Heads {
                shape: heads.shape,
                query_key_value: (make.linear)("query_key_value", &heads.query_key_value)?,
                borrows: heads.borrows,
                norms: heads.norms.clone(),
                output,
                windowed: heads.windowed,
                rotated: heads.rotated,
                sinks: heads.sinks.clone(),
                gated: heads.gated,
            })),
            Self::Delta(of) => {
                let into = (make.linear)(MIXED, &of.into)?;
                Self::Delta(Box::new(Delta { rule: of.rule, into, output, rest: of.rest.clone() }))
            }
            Self::Convolution(of) => {
                let into = (make.linear)(MIXED, &of.into)?;
                let convolution = of.convolution.clone();
                Self::Convolution(Box::new(ShortConvolution { into, convolution, output }))
            }
            Self::StateSpace(of) => {
                let (rule, into) = (of.rule, (make.linear)(MIXED, &of.into)?);
                let rest = of.rest.clone();
                Self::StateSpace(Box::new(StateSpaceLayer { rule, into, output, rest }))
            }
            Self::Latent(latent) => {
                let each = |what: &str, parts: &[Matrix]| -> Result<Vec<Matrix>> {
                    let named = parts.iter().enumerate();
                    named.map(|(n, part)| (make.matrix)(&format!("{what}.{n}"), part)).collect()
                };
                let query_down = match &latent.query_down {
                    None => None,
                    Some((down, norm)) => Some(((make.linear)("query_down", down)?, norm.clone())),
                };
                Self::Latent(Box::new(Latent {
                    query_down,
                    query: (make.linear)("query", &latent.query)?,
                    down: (make.linear)("down", &latent.down)?,
                    norm: latent.norm.clone(),
                    keys: each("keys", &latent.keys)?,
                    values: each("values", &latent.values)?,
                    output,
                }))
            }
        })
    }
}
