//! What the tensors of a model are called, and what shapes they have.

use super::{Architecture, ModelDescription};
use crate::error::Fault;
use crate::{Gguf, Result};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Rows are embedded tokens.
    TokenEmbedding,
    /// The norm after the last layer.
    OutputNorm,
    /// Makes the logits, where it is not the embedding.
    Output,
    /// Divides the frequencies of the rotation, see
    /// [`RopeSettings::factors`](super::RopeSettings::factors).
    RopeFactors,
    /// The norm before the attention.
    AttentionNorm,
    /// Makes the queries.
    Query,
    /// Makes the keys.
    Key,
    /// Makes the values.
    Value,
    /// The norm of a head's queries.
    QueryNorm,
    /// The norm of a head's keys.
    KeyNorm,
    /// After the attention.
    AttentionOutput,
    /// The norm after that.
    AttentionPostNorm,
    /// The norm before the feed-forward block.
    FeedForwardNorm,
    /// The gate.
    Gate,
    /// What the gate multiplies.
    Up,
    /// Back to the residual stream.
    Down,
    /// The norm after that.
    FeedForwardPostNorm,
}

impl TensorRole {
    /// Its name, without `.weight` or `.bias` at the end and, in a layer, without `blk.N.` before
    /// it.
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

    /// Whether every layer has its own.
    pub fn in_layers(self) -> bool {
        !matches!(self, Self::TokenEmbedding | Self::OutputNorm | Self::Output | Self::RopeFactors)
    }

    /// The name of its weight in a file; `layer` counts where every layer has its own.
    pub fn weight(self, layer: usize) -> String {
        self.name(layer, "weight")
    }

    /// The name of its bias in a file.
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

/// A tensor that a model must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// What it is for.
    pub role: TensorRole,
    /// Its layer; 0 outside of them.
    pub layer: usize,
    /// Whether it is a bias.
    pub bias: bool,
    /// Its name.
    pub name: String,
    /// Its shape, columns last.
    pub shape: Vec<usize>,
}

impl ModelDescription {
    /// All tensors of the model.
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

    /// That a file has exactly these tensors, in these shapes.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, or is not the model's: what a file has and
    /// nobody reads would change what the model computes.
    pub fn check_tensors(&self, gguf: &Gguf) -> Result<()> {
        let expected = self.tensors();
        for tensor in &expected {
            gguf.tensor(&tensor.name)?.expect_shape(&tensor.shape)?;
        }
        let known: std::collections::BTreeSet<&str> =
            expected.iter().map(|t| t.name.as_str()).collect();
        // Converters wrote the frequencies themselves into every layer once; llama.cpp ignores
        // them. Gemma 2's output is the embedding, whatever else is there.
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
