//! Norms, and where a block has them.

use candle_core::{Result, Tensor};
use candle_nn::ops::{layer_norm, rms_norm};

/// One norm over the last dimension.
#[derive(Debug, Clone)]
pub(crate) enum Norm {
    Rms { weight: Tensor, epsilon: f32 },
    Layer { weight: Tensor, bias: Tensor, epsilon: f32 },
}

impl Norm {
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms { weight, epsilon } => rms_norm(x, weight, *epsilon),
            Self::Layer { weight, bias, epsilon } => layer_norm(x, weight, bias, *epsilon),
        }
    }
}

/// The norms of a block f: x becomes after(x + behind(f(before(x)))).
#[derive(Debug, Clone, Default)]
pub(crate) struct Norms {
    pub before: Option<Norm>,
    pub behind: Option<Norm>,
    pub after: Option<Norm>,
}

impl Norms {
    pub fn around(&self, x: Tensor, block: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let mut y = match &self.before {
            None => block(&x)?,
            Some(norm) => block(&norm.forward(&x)?)?,
        };
        if let Some(norm) = &self.behind {
            y = norm.forward(&y)?;
        }
        let x = (x + y)?;
        match &self.after {
            None => Ok(x),
            Some(norm) => norm.forward(&x),
        }
    }
}
