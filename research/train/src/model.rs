//! The demo decoder as it is trained: whole sequences at once, with gradients.
//!
//! Decoding has a forward pass of its own (crates/polydraft-models), because it needs a cache and
//! trees and no gradients; a test holds the two against each other through the shipped weights.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;
use serde::Serialize;

use crate::ops::{CausalSoftmax, RmsNorm, Rotary};

/// The shape of a Llama-style decoder, with the field names of a Hugging Face `config.json`.
#[derive(Clone, Copy, Serialize)]
pub struct Shape {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    pub rope_theta: f32,
    pub rms_norm_eps: f32,
}

impl Shape {
    pub fn target(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            hidden_size: 256,
            intermediate_size: 768,
            num_hidden_layers: 6,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 64,
            max_position_embeddings: 512,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
        }
    }

    /// Two layers, because copying a name that occurred before takes two.
    pub fn draft(vocab_size: usize) -> Self {
        Self {
            hidden_size: 96,
            intermediate_size: 192,
            num_hidden_layers: 2,
            num_attention_heads: 3,
            num_key_value_heads: 1,
            head_dim: 32,
            ..Self::target(vocab_size)
        }
    }
}

struct Layer {
    attention_norm: Var,
    query: Var,
    key: Var,
    value: Var,
    output: Var,
    mlp_norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

/// A decoder whose input and output embeddings are one tensor.
pub struct Decoder {
    pub shape: Shape,
    embedding: Var,
    layers: Vec<Layer>,
    norm: Var,
    /// Every parameter under its Hugging Face name.
    pub parameters: Vec<(String, Var)>,
}

impl Decoder {
    /// Takes the parameters from `stored` where given, else draws them.
    pub fn new(
        shape: Shape,
        stored: Option<&HashMap<String, Tensor>>,
        rng: &mut ChaCha12Rng,
    ) -> Result<Self> {
        let mut parameters: Vec<(String, Var)> = Vec::new();
        let mut make = |name: String, dims: &[usize]| -> Result<Var> {
            let tensor = match stored {
                Some(all) => stored_tensor(all, &name, dims)?,
                None => initial(dims, rng)?,
            };
            let var = Var::from_tensor(&tensor)?;
            parameters.push((name, var.clone()));
            Ok(var)
        };
        let (d, heads, head) = (shape.hidden_size, shape.num_attention_heads, shape.head_dim);
        let (kv, ff) = (shape.num_key_value_heads * head, shape.intermediate_size);
        let embedding = make("model.embed_tokens.weight".into(), &[shape.vocab_size, d])?;
        let mut layers = Vec::new();
        for i in 0..shape.num_hidden_layers {
            let name = |part: &str| format!("model.layers.{i}.{part}.weight");
            layers.push(Layer {
                attention_norm: make(name("input_layernorm"), &[d])?,
                query: make(name("self_attn.q_proj"), &[heads * head, d])?,
                key: make(name("self_attn.k_proj"), &[kv, d])?,
                value: make(name("self_attn.v_proj"), &[kv, d])?,
                output: make(name("self_attn.o_proj"), &[d, heads * head])?,
                mlp_norm: make(name("post_attention_layernorm"), &[d])?,
                gate: make(name("mlp.gate_proj"), &[ff, d])?,
                up: make(name("mlp.up_proj"), &[ff, d])?,
                down: make(name("mlp.down_proj"), &[d, ff])?,
            });
        }
        let norm = make("model.norm.weight".into(), &[d])?;
        Ok(Self { shape, embedding, layers, norm, parameters })
    }

    pub fn parameter_count(&self) -> usize {
        self.parameters.iter().map(|(_, var)| var.elem_count()).sum()
    }

    /// Logits `[batch * time, vocabulary]` of tokens `[batch, time]`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let (batch, time) = tokens.dims2()?;
        let Shape {
            hidden_size: d,
            num_attention_heads: heads,
            num_key_value_heads: kv,
            head_dim: head,
            ..
        } = self.shape;
        let norm = |x: &Tensor, w: &Var| {
            x.apply_op2(w.as_tensor(), RmsNorm { epsilon: self.shape.rms_norm_eps })
        };
        let rotary = || Rotary { theta: self.shape.rope_theta, inverse: false };
        let split =
            |x: Tensor, n: usize| x.reshape((batch, time, n, head))?.transpose(1, 2)?.contiguous();

        let mut x = self.embedding.index_select(&tokens.flatten_all()?, 0)?;
        for layer in &self.layers {
            let h = norm(&x, &layer.attention_norm)?;
            let q = split(h.matmul(&layer.query.t()?)?, heads)?.apply_op1(rotary())?;
            let k = split(h.matmul(&layer.key.t()?)?, kv)?.apply_op1(rotary())?;
            let v = split(h.matmul(&layer.value.t()?)?, kv)?;
            // The queries of one group attend to one key head: stack them along time.
            let group = heads / kv;
            let repeat = |t: Tensor| -> candle_core::Result<Tensor> {
                t.unsqueeze(2)?
                    .broadcast_as((batch, kv, group, time, head))?
                    .contiguous()?
                    .reshape((batch, heads, time, head))
            };
            let (k, v) = (repeat(k)?, repeat(v)?);
            let scores =
                q.matmul(&k.t()?)?.apply_op1(CausalSoftmax { scale: (head as f32).powf(-0.5) })?;
            let mixed = scores
                .matmul(&v)?
                .transpose(1, 2)?
                .contiguous()?
                .reshape((batch * time, heads * head))?;
            x = (x + mixed.matmul(&layer.output.t()?)?)?;
            let h = norm(&x, &layer.mlp_norm)?;
            let gated = (h.matmul(&layer.gate.t()?)?.silu()? * h.matmul(&layer.up.t()?)?)?;
            x = (x + gated.matmul(&layer.down.t()?)?)?;
        }
        debug_assert_eq!(x.dims(), [batch * time, d]);
        Ok(norm(&x, &self.norm)?.matmul(&self.embedding.t()?)?)
    }
}

/// A parameter of a checkpoint, in f32.
///
/// # Errors
/// There is none of that name, or one of another shape.
pub fn stored_tensor(all: &HashMap<String, Tensor>, name: &str, dims: &[usize]) -> Result<Tensor> {
    let tensor = all.get(name).with_context(|| format!("the checkpoint lacks {name}"))?;
    let got = tensor.dims();
    ensure!(got == dims, "the checkpoint's {name}: expected the shape {dims:?}, got {got:?}");
    Ok(tensor.to_dtype(DType::F32)?)
}

/// Ones for norms; for matrices a normal distribution of variance 1 / (fan-in), narrower for the
/// embedding.
fn initial(dims: &[usize], rng: &mut ChaCha12Rng) -> Result<Tensor> {
    let &[rows, columns] = dims else {
        return Ok(Tensor::ones(dims, DType::F32, &Device::Cpu)?);
    };
    let deviation = if rows > 2048 { 0.02 } else { (columns as f32).powf(-0.5) };
    let normal = |rng: &mut ChaCha12Rng| {
        let (u, v): (f32, f32) = (rng.random(), rng.random());
        (-2.0 * (1.0 - u).ln()).sqrt() * (std::f32::consts::TAU * v).cos() * deviation
    };
    let values: Vec<f32> = (0..rows * columns).map(|_| normal(rng)).collect();
    Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use polydraft::DraftTree;
    use polydraft_engine::{Model, Sequences};
    use polydraft_models::{LoadOptions, load};
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn rejects_checkpoint_of_another_vocabulary() {
        let mut rng = ChaCha12Rng::seed_from_u64(0);
        let made = Decoder::new(Shape::draft(300), None, &mut rng).unwrap();
        let stored =
            made.parameters.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor()));
        let refused =
            Decoder::new(Shape::draft(400), Some(&stored.collect()), &mut rng).err().unwrap();
        let refused = refused.to_string();
        assert!(
            refused.contains("embed_tokens.weight: expected the shape [400, 96], got [300, 96]"),
            "{refused}"
        );
    }

    #[test]
    fn the_shipped_models_compute_what_was_trained() {
        for (name, shape) in [("target", Shape::target(4096)), ("draft", Shape::draft(4096))] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name);
            let stored =
                candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu)
                    .unwrap();
            let mut rng = ChaCha12Rng::seed_from_u64(0);
            let trained = Decoder::new(shape, Some(&stored), &mut rng).unwrap();
            let mut shipped = load(&folder, LoadOptions::default()).unwrap();
            let text = shipped
                .language
                .tokenizer
                .encode("/// The sum of all\npub fn sum(values: &[f64]) -> f64 {\n")
                .unwrap();
            let batch = Tensor::new(text.as_slice(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            let expected = trained.forward(&batch).unwrap().to_vec2::<f32>().unwrap();
            let root = DraftTree::new();
            let sequence = shipped.model.open().unwrap();
            for (token, expected) in text.iter().zip(expected) {
                shipped.model.extend(sequence, &[*token]).unwrap();
                shipped.model.score(&[(sequence, &root)]).unwrap();
                let got = shipped.model.logits(sequence, DraftTree::ROOT);
                let worst = got.iter().zip(&expected).fold(0f32, |w, (a, b)| w.max((a - b).abs()));
                assert!(worst < 1e-3, "{name}: {worst}");
            }
        }
    }
}
