//! Norms around a block.

use polydraft_kernels::{Norm, Rows};

use crate::error::Result;

/// Norms around a block f: x becomes `post_residual(x + scale · post(f(pre(x))))`.
#[derive(Debug, Clone)]
pub(crate) struct Norms {
    pub pre: Option<Norm>,
    pub post: Option<Norm>,
    pub post_residual: Option<Norm>,
    pub scale: f64,
}

impl Default for Norms {
    fn default() -> Self {
        Self { pre: None, post: None, post_residual: None, scale: 1.0 }
    }
}

impl Norms {
    /// Applies the block with its norms, scale and residual connection.
    pub fn around(&self, x: Rows, block: impl FnOnce(&Rows) -> Result<Rows>) -> Result<Rows> {
        self.around_both(x, |_, x| block(x))
    }

    /// Like [`around`](Self::around), for a block that also takes the unnormed x.
    pub fn around_both(
        &self,
        x: Rows,
        block: impl FnOnce(&Rows, &Rows) -> Result<Rows>,
    ) -> Result<Rows> {
        let mut y = match &self.pre {
            None => block(&x, &x)?,
            Some(norm) => block(&x, &norm.forward(&x)?)?,
        };
        if let Some(norm) = &self.post {
            y = norm.forward(&y)?;
        }
        let x = x.plus(&y.scaled(self.scale))?;
        match &self.post_residual {
            None => Ok(x),
            Some(norm) => Ok(norm.forward(&x)?),
        }
    }
}
