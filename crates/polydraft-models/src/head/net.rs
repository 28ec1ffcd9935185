//! The forward pass of a draft head: one decoder layer, or a few, on the target's hidden states.
//!
//! Problem: the distribution of the next token but one, from the target's states of a token and the
//! token that followed it.
//! Source: Li et al. 2024 (EAGLE), Li et al. 2025 (EAGLE-3), and what their heads' configurations
//! have since added.
//! Method: position i joins the target's states F of token i with the embedding e of token i + 1.
//! With EAGLE-3
//!     s = fc·F, later the state that the step before left;   n = rms(s);   r = s or n
//!     x = r + attention([rms(e), n]);   x = x + mlp(rms(x));   logits = output·rms(x);
//!     the state left: x or rms(x)
//! with EAGLE-1, F the target's last normed state: u = fc·[e, s], x = u + attention(u), x = x +
//! mlp(rms(x)), logits = the target's output·x, the state left: x;
//! with layers of the model's own (DeepSeek-AI 2024, V3, section 2.2), F as with EAGLE-1: x =
//! fc·[rms(e), rms(s)], then the layers, logits = output·rms(x), the state left: x, or rms(x) with
//! Qwen's, MiMo's and Nemotron 3's.
//! Complexity: that of a layer and of the output matrix, for each token.

use polydraft::Token;
use polydraft_engine::HiddenState;
use polydraft_kernels::{Norm, Rows};

use super::config::Residual;
use crate::config::Feedback;
use crate::error::Result;
use crate::linear::Linear;
use crate::transformer::Transformer;
use crate::transformer::pass::{SequenceTokens, begin, positions, tokens, wanted};

/// Weights and shape.
#[derive(Debug)]
pub(super) struct Net {
    /// The layers, the embedding, the norm after them and the output matrix.
    pub decoder: Transformer,
    pub join: Join,
    /// The tokens that logits are of, ascending.
    pub tokens: Vec<Token>,
    pub logit_scale: f64,
    /// The target's states that are read,
    pub reads: Vec<HiddenState>,
    /// and how many numbers that is for a token.
    pub features: usize,
}

/// How states and tokens come together.
#[derive(Debug)]
pub(super) enum Join {
    /// EAGLE-1.
    Embedding(Linear),
    /// EAGLE-3.
    Features {
        combine: Combine,
        token_norm: Norm,
        state_norm: Norm,
        residual: Residual,
        feedback: Feedback,
    },
    /// A layer of the model's own that predicts further tokens (MTP).
    Further {
        fc: Linear,
        token_norm: Norm,
        state_norm: Norm,
        /// Whether the state is the first of both.
        state_first: bool,
        feedback: Feedback,
    },
    /// An assistant, which attends to the target's KV cache: what joins the target's embedding,
    /// times `scale`, with its state, and what makes such a state of its own.
    Assistant { before: Linear, after: Linear, scale: f64 },
}

/// From the target's states of a token to one state.
#[derive(Debug)]
pub(super) struct Combine {
    pub norms: Vec<Norm>,
    pub fc: Linear,
}

impl Combine {
    /// `[rows, features]` to `[rows, hidden]`.
    fn forward(&self, x: Rows) -> Result<Rows> {
        let x = match self.norms.len() {
            0 => x,
            count => {
                let width = x.width() / count;
                let mut parts = Vec::with_capacity(count);
                for (i, norm) in self.norms.iter().enumerate() {
                    parts.push(norm.forward(&x.columns(i * width, width))?);
                }
                Rows::concat_columns(&parts)?
            }
        };
        self.fc.forward(&x)
    }
}

/// What a pass gives for the rows that want it.
#[derive(Debug)]
pub(super) struct NetOutput {
    /// `[wanted, draft vocabulary]`
    pub logits: Vec<f32>,
    /// What the steps of their children begin with, `[wanted, hidden]`.
    pub states: Vec<f32>,
}

impl Net {
    /// Width of a state.
    pub fn width(&self) -> usize {
        match self.follows() {
            true => self.features,
            false => self.decoder.config.hidden,
        }
    }

    /// Whether it attends to the target's KV cache, and has none.
    pub fn follows(&self) -> bool {
        matches!(self.join, Join::Assistant { .. })
    }

    /// The states that steps begin with, of the target's states `[rows, features]`.
    pub fn combine(&self, features: Vec<f32>) -> Result<Vec<f32>> {
        let Join::Features { combine, .. } = &self.join else { return Ok(features) };
        if features.is_empty() {
            return Ok(features);
        }
        Ok(combine.forward(Rows::new(features, self.features))?.into_numbers())
    }

    /// Computes the tokens of all parts from states `[tokens, hidden]`.
    pub fn forward(&self, parts: &mut [SequenceTokens], states: Vec<f32>) -> Result<NetOutput> {
        let decoder = &self.decoder;
        let config = &decoder.config;
        if let Join::Assistant { before, scale, .. } = &self.join {
            // As the last token, of which the target's cache has nothing yet.
            let positions: Vec<usize> = positions(parts).into_iter().map(|at| at + 1).collect();
            let rotations = decoder.rotations(&positions);
            let token = decoder.embedding().rows(&tokens(parts))?.scaled(*scale);
            let state = Rows::new(states, self.width());
            let mut x = before.forward(&Rows::concat_columns(&[token, state])?)?;
            for layer in &decoder.layers {
                x = layer.forward(config, x, &rotations, parts)?;
                x = layer.end(config, x, None)?;
            }
            return self.read_out(x, parts);
        }
        begin(parts)?;
        let rotations = decoder.rotations(&positions(parts));
        let state = Rows::new(states, self.width());
        let token = decoder.embedding().rows(&tokens(parts))?;

        let first = &decoder.layers[0];
        let mut x = match &self.join {
            Join::Embedding(fc) | Join::Assistant { before: fc, .. } => {
                let x = fc.forward(&Rows::concat_columns(&[token, state])?)?;
                first.forward(config, x, &rotations, parts)?
            }
            Join::Mtp { fc, token_norm, state_norm, state_first, .. } => {
                let mut joined = [token_norm.forward(&token)?, state_norm.forward(&state)?];
                if *state_first {
                    joined.reverse();
                }
                let x = fc.forward(&Rows::concat_columns(&joined)?)?;
                first.forward(config, x, &rotations, parts)?
            }
            Join::Features { token_norm, state_norm, residual, .. } => {
                let normed = state_norm.forward(&state)?;
                let from = match residual {
                    Residual::State => state,
                    Residual::NormedState => normed.clone(),
                };
                let joined = Rows::concat_columns(&[token_norm.forward(&token)?, normed])?;
                let x = from.plus(&first.attend(config, &joined, &rotations, parts)?)?;
                first.mlp_norms.around_both(x, |from, x| first.feed_forward(config, from, x))?
            }
        };
        for layer in decoder.layers.iter().skip(1) {
            x = layer.forward(config, x, &rotations, parts)?;
        }
        self.read_out(x, parts)
    }

    fn read_out(&self, x: Rows, parts: &[SequenceTokens]) -> Result<NetOutput> {
        let decoder = &self.decoder;
        let Some(x) = wanted(x, parts) else {
            return Ok(NetOutput { logits: Vec::new(), states: Vec::new() });
        };
        let normed = decoder.normed(x.clone())?;
        let logits = decoder.lm_head().forward(&normed)?.scaled(self.logit_scale).into_numbers();
        let state = match &self.join {
            Join::Features { feedback: Feedback::AfterNorm, .. }
            | Join::Mtp { feedback: Feedback::AfterNorm, .. } => normed,
            Join::Assistant { after, .. } => after.forward(&normed)?,
            _ => x,
        };
        Ok(NetOutput { logits, states: state.into_numbers() })
    }
}
