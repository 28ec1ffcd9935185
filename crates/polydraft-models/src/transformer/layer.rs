//! One decoder layer.

use std::borrow::Cow;

use polydraft_kernels::Rows;

use super::delta::Delta;
use super::dense::Dense;
use super::experts::{Experts, Shared};
use super::heads::Heads;
use super::latent::Latent;
use super::mlp::Mlp;
use super::norms::Norms;
use super::pass::Part;
use super::rotations::Rotations;
use super::short_convolution::ShortConvolution;
use crate::config::{Config, NormOrder};
use crate::error::Result;
use crate::linear::{Linear, Matrix};

#[derive(Debug)]
pub(crate) struct Layer {
    /// Which of the model's layers of its kind it is: of those with a KV cache, or of the recurrent
    /// ones.
    pub number: usize,
    pub attention_norms: Norms,
    pub attention: Attention,
    pub mlp_norms: Norms,
    pub mlp: Mlp,
}

#[derive(Debug)]
pub(crate) enum Attention {
    Heads(Box<Heads>),
    Latent(Box<Latent>),
    Delta(Box<Delta>),
    Convolution(Box<ShortConvolution>),
}

/// The product that a recurrent layer begins with.
const MIXED: &str = "mixed_in";

/// A name of a product inside a layer.
pub(crate) type Name = Cow<'static, str>;

/// Makes another product, or another matrix, of one of this name.
pub(crate) struct Make<'a> {
    pub linear: &'a dyn Fn(&str, &Linear) -> Result<Linear>,
    pub matrix: &'a dyn Fn(&str, &Matrix) -> Result<Matrix>,
}

impl Layer {
    /// Whether it keeps a state in the place of a KV cache.
    pub fn is_recurrent(&self) -> bool {
        matches!(self.attention, Attention::Delta(_) | Attention::Convolution(_))
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
        match (&self.attention, &config.attention.latent) {
            (Attention::Heads(heads), _) => heads.forward(self.number, config, x, rotations, parts),
            (Attention::Latent(latent), Some(shape)) => {
                latent.forward(self.number, config, shape, x, rotations, parts)
            }
            // It is made where the configuration has its shape.
            (Attention::Latent(latent), None) => latent.output.forward(x),
            (Attention::Delta(delta), _) => delta.forward(self.number, x, parts),
            (Attention::Convolution(convolution), _) => convolution.forward(self.number, x, parts),
        }
    }

    pub fn feed_forward(&self, config: &Config, x: &Rows) -> Result<Rows> {
        self.mlp.forward(config.feed_forward, x)
    }

    /// The whole layer.
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
            return Ok(x.plus(&self.feed_forward(config, &normed)?)?);
        }
        let x = self.attention_norms.around(x, |x| self.attend(config, x, rotations, parts))?;
        self.mlp_norms.around(x, |x| self.feed_forward(config, x))
    }

    /// All that is multiplied with and may be stored in fewer bits, by name.
    pub fn matrices(&self) -> Vec<(Name, &Matrix)> {
        let mut all: Vec<(Name, &Matrix)> = Vec::new();
        let mut add = |name: Name, linear| {
            let Linear { matrix, .. }: &Linear = linear;
            all.push((name, matrix));
        };
        match &self.attention {
            Attention::Heads(heads) => add("query_key_value".into(), &heads.query_key_value),
            Attention::Latent(latent) => {
                if let Some((down, _)) = &latent.query_down {
                    add("query_down".into(), down);
                }
                add("query".into(), &latent.query);
                add("down".into(), &latent.down);
            }
            Attention::Delta(delta) => add(MIXED.into(), &delta.into),
            Attention::Convolution(convolution) => add(MIXED.into(), &convolution.into),
        }
        add("output".into(), self.attention.output());
        match &self.mlp {
            Mlp::Dense(Dense { into, out }) => {
                add("mlp_in".into(), into);
                add("mlp_out".into(), out);
            }
            Mlp::Experts(experts) => {
                for (number, Dense { into, out }) in experts.each.iter().enumerate() {
                    add(format!("experts.{number}.in").into(), into);
                    add(format!("experts.{number}.out").into(), out);
                }
                if let Some(Shared { block, .. }) = &experts.shared {
                    add("shared_in".into(), &block.into);
                    add("shared_out".into(), &block.out);
                }
            }
        }
        if let Attention::Latent(latent) = &self.attention {
            for (what, parts) in [("keys", &latent.keys), ("values", &latent.values)] {
                let named = parts.iter().enumerate();
                all.extend(named.map(|(n, matrix)| (format!("{what}.{n}").into(), matrix)));
            }
        }
        all
    }

    /// Bytes of the matrices that a pass over one token leaves alone.
    pub fn idle_bytes(&self) -> usize {
        let Mlp::Experts(experts) = &self.mlp else { return 0 };
        let of = |dense: &Dense| dense.into.matrix.bytes() + dense.out.matrix.bytes();
        let all: usize = experts.each.iter().map(of).sum();
        let count = experts.each.len().max(1);
        all / count * count.saturating_sub(experts.shape.used)
    }

    /// All whose inputs can be recorded.
    pub fn products_mut(&mut self) -> Vec<&mut Linear> {
        let mut all = match &mut self.attention {
            Attention::Heads(heads) => vec![&mut heads.query_key_value, &mut heads.output],
            Attention::Latent(latent) => {
                let mut all = vec![&mut latent.query, &mut latent.down, &mut latent.output];
                all.extend(latent.query_down.as_mut().map(|(down, _)| down));
                all
            }
            Attention::Delta(delta) => vec![&mut delta.into, &mut delta.output],
            Attention::Convolution(of) => vec![&mut of.into, &mut of.output],
        };
        match &mut self.mlp {
            Mlp::Dense(dense) => all.extend([&mut dense.into, &mut dense.out]),
            Mlp::Experts(experts) => {
                let shared = experts.shared.as_mut().map(|shared| &mut shared.block);
                for Dense { into, out } in experts.each.iter_mut().chain(shared) {
                    all.extend([into, out]);
                }
            }
        }
        all
    }

    /// The same with other matrices.
    pub fn with(&self, number: usize, make: &Make) -> Result<Self> {
        Ok(Self {
            number,
            attention_norms: self.attention_norms.clone(),
            attention: self.attention.with(make)?,
            mlp_norms: self.mlp_norms.clone(),
            mlp: self.mlp.with(make)?,
        })
    }
}

impl Attention {
    fn output(&self) -> &Linear {
        match self {
            Self::Heads(heads) => &heads.output,
            Self::Latent(latent) => &latent.output,
            Self::Delta(delta) => &delta.output,
            Self::Convolution(convolution) => &convolution.output,
        }
    }

    fn with(&self, make: &Make) -> Result<Self> {
        let output = (make.linear)("output", self.output())?;
        Ok(match self {
            Self::Heads(heads) => Self::Heads(Box::new(Heads {
                query_key_value: (make.linear)("query_key_value", &heads.query_key_value)?,
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
                let (weights, bias) = (of.weights.clone(), of.bias.clone());
                Self::Convolution(Box::new(ShortConvolution { into, weights, bias, output }))
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

impl Mlp {
    fn with(&self, make: &Make) -> Result<Self> {
        let dense = |into: &str, out: &str, of: &Dense| -> Result<Dense> {
            Ok(Dense { into: (make.linear)(into, &of.into)?, out: (make.linear)(out, &of.out)? })
        };
        Ok(match self {
            Self::Dense(of) => Self::Dense(dense("mlp_in", "mlp_out", of)?),
            Self::Experts(of) => {
                let mut each = Vec::with_capacity(of.each.len());
                for (number, expert) in of.each.iter().enumerate() {
                    let [into, out] = ["in", "out"].map(|end| format!("experts.{number}.{end}"));
                    each.push(dense(&into, &out, expert)?);
                }
                let shared = match &of.shared {
                    None => None,
                    Some(Shared { block, gate }) => {
                        let block = dense("shared_in", "shared_out", block)?;
                        Some(Shared { block, gate: gate.clone() })
                    }
                };
                Self::Experts(Experts {
                    shape: of.shape.clone(),
                    router: of.router.clone(),
                    correction: of.correction.clone(),
                    each,
                    shared,
                })
            }
        })
    }
}
