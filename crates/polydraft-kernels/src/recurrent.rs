//! Layers that keep a state of fixed size in the place of a KV cache: short convolutions and the
//! gated delta rule.

mod convolution;
mod delta;
#[cfg(test)]
mod tests;

pub use convolution::convolve;
pub use delta::{DeltaRule, HeadsOfKeys, Memory, Step, Walk};
