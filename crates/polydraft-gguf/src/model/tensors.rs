//! Names and shapes of the tensors of a model.

use super::{Architecture, ModelDescription};
use crate::error::Fault;
use crate::{Gguf, Result};

/// Role of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Token embedding.
    TokenEmbedding,
    /// Norm after the last layer.
    OutputNorm,
    /// Output embedding, unless it is tied to the token embedding.
    Output,
    /// Divisors of the rotary frequencies, see
    /// [`RopeSettings::factors`](super::RopeSettings::factors).
    RopeFactors,
    /// Norm before attention.
    AttentionNorm,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Norm of the queries of a head.
    QueryNorm,
    /// Norm of the keys of a head.
    KeyNorm,
    /// Output projection of attention.
    AttentionOutput,
    /// Norm after attention.
    AttentionPostNorm,
    /// Norm before the feed-forward block.
    FeedForwardNorm,
    /// Gate projection of the feed-forward block.
    Gate,
    /// Up projection of the feed-forward block.
    Up,
    /// Down projection of the feed-forward block.
    Down,
    /// Norm after the feed-forward block.
    FeedForwardPostNorm,
}

impl TensorRole {
    /// Returns the base name: without the suffix `.weight` or `.bias`, and without the prefix
    /// `blk.N.` of layers.
    pub fn base(self) -> &'static str {
        match self {
            Self::TokenEmbedding => "token_embd",
            Self::OutputNorm => "output_norm",
            Self::Output => "output",
            Self::RopeFactors => "rope_freqs",
            Self::AttentionNorm => "attn_norm",
            Self::Query => "attn_q",
            Self::Key => "attn_k",
            Self::Value => "attn_v",
            Self::QueryNorm => "attn_q_norm",
            Self::KeyNorm => "attn_k_norm",
            Self::AttentionOutput => "attn_output",
            Self::AttentionPostNorm => "post_attention_norm",
            Self::FeedForwardNorm => "ffn_norm",
            Self::Gate => "ffn_gate",
            Self::Up => "ffn_up",
            Self::Down => "ffn_down",
            Self::FeedForwardPostNorm => "post_ffw_norm",
        }
    }

    /// Whether every layer has such a tensor.
    pub fn in_layers(self) -> bool {
        !matches!(self, Self::TokenEmbedding | Self::OutputNorm | Self::Output | Self::RopeFactors)
    }

    /// Returns the name of the weight. `layer` is ignored for tensors outside of layers.
    pub fn weight(self, layer: usize) -> String {
        self.name(layer, "weight")
    }

    /// Returns the name of the bias. `layer` is ignored for tensors outside of layers.
    pub fn bias(self, layer: usize) -> String {
        self.name(layer, "bias")
    }

    fn name(self, layer: usize, end: &str) -> String {
        match self.in_layers() {
            true => format!("blk.{layer}.{}.{end}", self.base()),
            false => format!("{}.{end}", self.base()),
        }
    }
}

/// A required tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Role.
    pub role: TensorRole,
    /// Layer; 0 for tensors outside of layers.
    pub layer: usize,
    /// Whether it is a bias.
    pub bias: bool,
    /// Name.
    pub name: String,
    /// Shape, columns last.
    pub shape: Vec<usize>,
}

impl ModelDescription {
    /// Returns all tensors of the model.
    pub fn tensors(&self) -> Vec<ExpectedTensor> {
        use TensorRole::*;
        let mut tensors = Vec::new();
        let mut add = |role: TensorRole, layer: usize, shape: &[usize], biased: bool| {
            let name = role.weight(layer);
            tensors.push(ExpectedTensor { role, layer, bias: false, name, shape: shape.to_vec() });
            if biased {
                let name = role.bias(layer);
                tensors.push(ExpectedTensor {
                    role,
                    layer,
                    bias: true,
                    name,
                    shape: vec![shape[0]],
                });
            }
        };
        let (hidden, inner) = (self.hidden, self.intermediate);
        let queries = self.heads * self.key_head;
        let keys = self.key_value_heads * self.key_head;
        let values = self.key_value_heads * self.value_head;
        add(TokenEmbedding, 0, &[self.vocabulary, hidden], false);
        add(OutputNorm, 0, &[hidden], false);
        if !self.tied {
            add(Output, 0, &[self.vocabulary, hidden], self.biases.output);
        }
        if let Some(factors) = &self.rope.factors {
            add(RopeFactors, 0, &[factors.len()], false);
        }
        for layer in 0..self.layers {
            let biased = self.biases.query_key_value;
            add(AttentionNorm, layer, &[hidden], false);
            add(Query, layer, &[queries, hidden], biased);
            add(Key, layer, &[keys, hidden], biased);
            add(Value, layer, &[values, hidden], biased);
            if self.head_norms {
                add(QueryNorm, layer, &[self.key_head], false);
                add(KeyNorm, layer, &[self.key_head], false);
            }
            add(
                AttentionOutput,
                layer,
                &[hidden, self.heads * self.value_head],
                self.biases.attention_output,
            );
            add(FeedForwardNorm, layer, &[hidden], false);
            let biased = self.biases.feed_forward;
            add(Gate, layer, &[inner, hidden], biased);
            add(Up, layer, &[inner, hidden], biased);
            add(Down, layer, &[hidden, inner], biased);
            if self.post_norms {
                add(AttentionPostNorm, layer, &[hidden], false);
                add(FeedForwardPostNorm, layer, &[hidden], false);
            }
        }
        tensors
    }

    /// Checks that a file has exactly these tensors with these shapes.
    ///
    /// # Errors
    /// A tensor that is missing, or has another shape; an unknown tensor, because ignoring it would
    /// change the model.
    pub fn check_tensors(&self, gguf: &Gguf) -> Result<()> {
        let expected = self.tensors();
        for tensor in &expected {
            gguf.tensor(&tensor.name)?.expect_shape(&tensor.shape)?;
        }
        let known: std::collections::BTreeSet<&str> =
            expected.iter().map(|t| t.name.as_str()).collect();
        // Old converters wrote the rotary frequencies into every layer, which llama.cpp ignores.
        // The output embedding of Gemma 2 is always the token embedding.
        let ignored = |name: &str| {
            name.ends_with(".attn_rot_embd")
                || name.ends_with(".attn_rot_embd.weight")
                || name.ends_with(".rot_embd")
                || (self.architecture == Architecture::Gemma2 && name == "output.weight")
        };
        match gguf
            .tensors()
            .find(|tensor| !known.contains(tensor.name()) && !ignored(tensor.name()))
        {
            None => Ok(()),
            Some(other) => {
                let expected =
                    format!("no such tensor in a model of architecture {}", self.architecture);
                Err(Fault::tensor(other.name(), expected, format!("shape {:?}", other.shape()))
                    .at(other.path()))
            }
        }
    }
}
