//! Muon for the matrices inside the layers, Adam for embeddings and norms.
//!
//! Muon (Jordan 2024) replaces the momentum of a matrix by the nearest orthogonal one; with few
//! tokens to learn from it reaches a given loss in clearly fewer steps than Adam. The update is
//! scaled by 0.2 * sqrt(larger side), so that both share one learning rate (Liu et al. 2025,
//! section 2.2).

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{Tensor, Var};

const MOMENTUM: f64 = 0.95;
const BETA: (f64, f64) = (0.9, 0.98);
const WEIGHT_DECAY: f64 = 0.05;

/// One parameter with the state its updates need.
pub struct Slot {
    name: String,
    var: Var,
    first: Tensor,
    /// Only Adam has it.
    second: Option<Tensor>,
}

impl Slot {
    /// State from a checkpoint, or zeros. `prefix` tells the models of one checkpoint apart.
    pub fn new(
        prefix: &str,
        name: &str,
        var: &Var,
        stored: Option<&HashMap<String, Tensor>>,
    ) -> Result<Self> {
        let matrix = var.dims().len() == 2 && !name.contains("embed_tokens");
        let slot = format!("{prefix}.{name}");
        let state = |which: &str| match stored.and_then(|s| s.get(&format!("{slot}.{which}"))) {
            Some(tensor) => Ok(tensor.clone()),
            None => var.zeros_like(),
        };
        let second = if matrix { None } else { Some(state("second")?) };
        Ok(Self { first: state("first")?, second, name: slot, var: var.clone() })
    }

    pub fn state(&self) -> impl Iterator<Item = (String, Tensor)> + '_ {
        let second = self.second.as_ref().map(|s| (format!("{}.second", self.name), s.clone()));
        std::iter::once((format!("{}.first", self.name), self.first.clone())).chain(second)
    }

    /// One step down `grad`; `step` counts from 1.
    pub fn update(&mut self, grad: &Tensor, rate: f64, step: usize) -> Result<()> {
        let change = match &mut self.second {
            None => {
                self.first = ((&self.first * MOMENTUM)? + grad)?.detach();
                let ahead = ((&self.first * MOMENTUM)? + grad)?;
                let larger = grad.dim(0)?.max(grad.dim(1)?) as f64;
                (orthogonal(&ahead)? * (0.2 * larger.sqrt()))?
            }
            Some(second) => {
                self.first = ((&self.first * BETA.0)? + (grad * (1.0 - BETA.0))?)?.detach();
                *second = ((&*second * BETA.1)? + (grad.sqr()? * (1.0 - BETA.1))?)?.detach();
                let mean = (&self.first / (1.0 - BETA.0.powi(step as i32)))?;
                let deviation = ((&*second / (1.0 - BETA.1.powi(step as i32)))?.sqrt()? + 1e-8)?;
                (mean / deviation)?
            }
        };
        let decay = if self.var.dims().len() == 2 { 1.0 - rate * WEIGHT_DECAY } else { 1.0 };
        self.var.set(&((self.var.as_tensor() * decay)? - (change * rate)?)?.detach())?;
        Ok(())
    }
}

/// The orthogonal factor of a matrix, roughly: five Newton-Schulz steps with Jordan's coefficients.
fn orthogonal(matrix: &Tensor) -> Result<Tensor> {
    let tall = matrix.dim(0)? > matrix.dim(1)?;
    let x = if tall { matrix.t()?.contiguous()? } else { matrix.clone() };
    let norm = x.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
    let mut x = (x / f64::from(norm + 1e-7))?;
    let (a, b, c) = (3.4445, -4.7750, 2.0315);
    for _ in 0..5 {
        let s = x.matmul(&x.t()?)?;
        let poly = ((&s * b)? + (s.matmul(&s)? * c)?)?;
        x = ((&x * a)? + poly.matmul(&x)?)?;
    }
    Ok(if tall { x.t()?.contiguous()? } else { x })
}
