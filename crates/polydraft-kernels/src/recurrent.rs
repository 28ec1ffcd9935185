//! Recurrent layers, which keep a state of fixed size instead of a KV cache: short convolutions,
//! the gated delta rule and state spaces.

mod convolution;
mod delta;
mod state_space;
#[cfg(test)]
mod tests;
mod update;
mod walk;

pub use convolution::convolve;
pub use delta::{DeltaRule, KeyHeadOrder};
pub use state_space::StateSpace;
pub use walk::{RecurrentState, TreeToken, Walk};
