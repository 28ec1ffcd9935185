//! Where a block has its norms.

use polydraft_kernels::{Norm, Rows};

use crate::error::Result;

/// The norms of a block f: x becomes `after(x + scale · behind(f(before(x))))`.
#[derive(Debug, Clone)]
pub(crate) struct Norms {
    pub before: Option<Norm>,
    pub behind: Option<Norm>,
    pub after: Option<Norm>,
    pub scale: f64,
}

impl Default for Norms {
    fn default() -> Self {
        Self { before: None, behind: None, after: None, scale: 1.0 }
    }
}

impl Norms {
    pub fn around(&self, x: Rows, block: impl FnOnce(&Rows) -> Result<Rows>) -> Result<Rows> {
        self.around_both(x, |_, x| block(x))
    }

    /// Of a block that is given x too.
    pub fn around_both(
        &self,
        x: Rows,
        block: impl FnOnce(&Rows, &Rows) -> Result<Rows>,
    ) -> Result<Rows> {
        let mut y = match &self.before {
            None => block(&x, &x)?,
            Some(norm) => block(&x, &norm.forward(&x)?)?,
        };
        if let Some(norm) = &self.behind {
            y = norm.forward(&y)?;
        }
        let x = x.plus(&y.scaled(self.scale))?;
        match &self.after {
            None => Ok(x),
            Some(norm) => Ok(norm.forward(&x)?),
        }
    }
}
