//! The residual of a target after rejected drafts.
//!
//! Problem: drafts from one distribution q are tried one after the other with speculative sampling
//! against the residual of the target p. Each rejection subtracts the draft's distribution from the
//! residual and normalises again.
//! Source: Miao et al. 2023 (SpecInfer), Jeon et al. 2024 (RSD), Weng et al. 2025 (traversal).
//! Complexity: one pass over the support per rejection; the residual is not stored.
//! Deviations: (1) after any number of rejections the residual is (p − c·q)+ normalised, where c
//! grows at each rejection by (mass of the residual)/(remaining mass of q): only c and the mass are
//! stored. Without replacement the tokens removed from q are the rejected ones, whose residual is 0
//! from then on, so the same form holds.

use crate::Distribution;

/// The residual (p − `spent`·q)+, whose sum is `mass`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Residual {
    pub spent: f64,
    pub mass: f64,
}

impl Default for Residual {
    /// The full target.
    fn default() -> Self {
        Self { spent: 0.0, mass: 1.0 }
    }
}

impl Residual {
    /// The unnormalised residual of a token with these probabilities.
    pub fn at(&self, p: f64, q: f64) -> f64 {
        (p - self.spent * q).max(0.0)
    }

    /// Updates the residual after a rejection. `open` is the part of q that could be drawn, times
    /// the weight of the target.
    pub fn reject(&mut self, target: &Distribution, draft: &Distribution, open: f64) {
        self.spent += self.mass / open;
        self.mass = target.residual_mass(1.0, draft, self.spent);
    }
}
