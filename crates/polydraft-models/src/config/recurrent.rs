//! Layers that keep a state of fixed size in the place of a KV cache.

use polydraft_kernels::{DeltaRule, StateSpace};

/// Layers that keep a state of fixed size in the place of a KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// What they do.
    pub mixer: Mixer,
    /// Tokens that their convolution reads, the token's own included.
    pub kernel: usize,
    /// Which layers they are.
    pub layers: Vec<bool>,
}

/// What a recurrent layer does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixer {
    /// The gated delta rule, after a convolution.
    Delta(DeltaRule),
    /// A convolution between two gates.
    Convolution {
        /// Whether its products and the convolution add biases.
        biased: bool,
    },
    /// A state space, after a convolution.
    StateSpace {
        /// The shape of its state.
        rule: StateSpace,
        /// The least and the most that a step is.
        steps: [f32; 2],
        /// Whether its products add biases,
        biased: bool,
        /// and whether the convolution does.
        convolution_biased: bool,
    },
}

impl Recurrent {
    /// Numbers of a token that the convolution reads, in a model of this width.
    pub(crate) fn channels(&self, hidden: usize) -> usize {
        match &self.mixer {
            Mixer::Delta(rule) => rule.mixed_width(),
            Mixer::Convolution { .. } => hidden,
            Mixer::StateSpace { rule, .. } => rule.mixed_width(),
        }
    }

    /// Numbers of the state of one layer.
    pub(crate) fn state(&self, hidden: usize) -> usize {
        let window = (self.kernel - 1) * self.channels(hidden);
        match &self.mixer {
            Mixer::Delta(rule) => window + rule.state_size(),
            Mixer::Convolution { .. } => window,
            Mixer::StateSpace { rule, .. } => window + rule.state_size(),
        }
    }

    /// That the numbers fit together.
    pub(super) fn check(&self, layers: usize) -> Result<(), String> {
        if self.layers.len() != layers {
            let got = self.layers.len();
            return Err(format!("layer_types: expected {layers} entries, one a layer, got {got}"));
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
