//! Configuration of recurrent layers.

use polydraft_kernels::{DeltaRule, StateSpace};

/// Layers with a recurrent state of fixed size instead of a KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// Kind of the recurrence.
    pub mixer: Mixer,
    /// Number of tokens that the convolution reads, including the token itself.
    pub kernel: usize,
    /// For each layer, whether it is recurrent.
    pub layers: Vec<bool>,
}

/// Kinds of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixer {
    /// The gated delta rule, after a convolution.
    Delta(DeltaRule),
    /// A convolution between two gates.
    Convolution {
        /// Whether the linear layers and the convolution have biases.
        biased: bool,
    },
    /// A state space, after a convolution.
    StateSpace {
        /// Shape of the state.
        rule: StateSpace,
        /// Minimum and maximum of the time step.
        steps: [f32; 2],
        /// Whether the linear layers have biases.
        biased: bool,
        /// Whether the convolution has biases.
        convolution_biased: bool,
    },
}

impl Recurrent {
    /// Channels of the convolution in a model of width `hidden`.
    pub(crate) fn channels(&self, hidden: usize) -> usize {
        match &self.mixer {
            Mixer::Delta(rule) => rule.mixed_width(),
            Mixer::Convolution { .. } => hidden,
            Mixer::StateSpace { rule, .. } => rule.mixed_width(),
        }
    }

    /// Size of the state of one layer.
    pub(crate) fn state(&self, hidden: usize) -> usize {
        let window = (self.kernel - 1) * self.channels(hidden);
        match &self.mixer {
            Mixer::Delta(rule) => window + rule.state_size(),
            Mixer::Convolution { .. } => window,
            Mixer::StateSpace { rule, .. } => window + rule.state_size(),
        }
    }

    /// Checks that the numbers are consistent.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        if self.layers.len() != layers {
            let got = self.layers.len();
            return Err(format!(
                "layer_types: expected {layers} entries, one per layer, got {got}"
            ));
        }
        match &self.mixer {
            Mixer::Delta(DeltaRule { key_heads, value_heads, .. })
                if !value_heads.is_multiple_of(*key_heads) =>
            {
                Err(format!(
                    "linear_num_key_heads: expected a divisor of linear_num_value_heads = \
                     {value_heads}, got {key_heads}"
                ))
            }
            Mixer::StateSpace { rule: StateSpace { groups, heads, .. }, .. }
                if !heads.is_multiple_of(*groups) =>
            {
                Err(format!(
                    "groups of the state space: expected a divisor of its {heads} heads, got \
                     {groups}"
                ))
            }
            _ => Ok(()),
        }
    }
}
