//! Forward pass of a draft head: one decoder layer, or a few, on the target's hidden states.
//!
//! Problem: predict token i + 2 from the target's states of token i and from token i + 1.
//! Source: Li et al. 2024 (EAGLE), Li et al. 2025 (EAGLE-3), and later options in the
//! configurations of published draft heads.
//! Method: position i joins the target's states F of token i with the embedding e of token i + 1.
//! With EAGLE-3
//!     s = fc·F, in later steps the output state of the previous step;   n = rms(s);   r = s or n
//!     x = r + attention([rms(e), n]);   x = x + mlp(rms(x));   logits = output·rms(x);
//!     output state: x or rms(x)
//! with EAGLE-1, where F is the target's last normed state: u = fc·[e, s], x = u + attention(u), x
//! = x + mlp(rms(x)), logits = the target's output·x, output state: x; with MTP modules
//! (DeepSeek-AI 2024, V3, section 2.2), F as with EAGLE-1: x = fc·[rms(e), rms(s)], then the
//! layers, logits = output·rms(x), output state: x, or rms(x) in Qwen, MiMo and Nemotron 3.
//! Complexity: a layer and the output matrix for each token.

use polydraft::Token;
use polydraft_engine::HiddenState;
use polydraft_kernels::{Norm, Rows};

use super::config::Residual;
use crate::config::Feedback;
use crate::error::Result;
use crate::linear::Linear;
use crate::transformer::Transformer;
use crate::transformer::pass::{SequenceTokens, begin, positions, tokens, wanted};

/// Weights and shape of a draft head.
#[derive(Debug)]
pub(super) struct Net {
    /// Layers, embedding, last norm and output matrix.
    pub decoder: Transformer,
    pub join: Join,
    /// Draft vocabulary, ascending.
    pub tokens: Vec<Token>,
    pub logit_scale: f64,
    /// Hidden states of the target that the draft head reads.
    pub hidden_states: Vec<HiddenState>,
    /// Total width of these states for a token.
    pub feature_width: usize,
}

/// Combination of states and embedded tokens.
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
    /// MTP module.
    Mtp {
        fc: Linear,
        token_norm: Norm,
        state_norm: Norm,
        /// Whether the state comes before the token.
        state_first: bool,
        feedback: Feedback,
    },
    /// Assistant, which attends to the target's KV cache. `before` projects the target's embedding,
    /// times `scale`, and its state to the assistant's width; `after` projects back to a state.
    Assistant { before: Linear, after: Linear, scale: f64 },
}

/// Projection of the target's states of a token to one state.
#[derive(Debug)]
pub(super) struct Combine {
    pub norms: Vec<Norm>,
    pub fc: Linear,
}

impl Combine {
    /// Maps `[rows, features]` to `[rows, hidden]`.
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

/// Output of a pass for the wanted rows.
#[derive(Debug)]
pub(super) struct NetOutput {
    /// Inputs of the output matrix, `[wanted, hidden]`; `None` if nothing is wanted.
    pub normed: Option<Rows>,
    /// Output states, `[wanted, hidden]`: the input states of children.
    pub states: Vec<f32>,
}

impl Net {
    /// Width of a state.
    pub fn width(&self) -> usize {
        match self.uses_target_cache() {
            true => self.feature_width,
            false => self.decoder.config.hidden,
        }
    }

    /// Whether the draft head attends to the target's KV cache instead of its own.
    pub fn uses_target_cache(&self) -> bool {
        matches!(self.join, Join::Assistant { .. })
    }

    /// Input states from the target's states `[rows, features]`.
    pub fn combine(&self, features: Vec<f32>) -> Result<Vec<f32>> {
        let Join::Features { combine, .. } = &self.join else { return Ok(features) };
        if features.is_empty() {
            return Ok(features);
        }
        Ok(combine.forward(Rows::new(features, self.feature_width))?.into_numbers())
    }

    /// Computes the tokens of all parts from input states `[tokens, hidden]`.
    pub fn forward(&self, parts: &mut [SequenceTokens], states: Vec<f32>) -> Result<NetOutput> {
        let decoder = &self.decoder;
        let config = &decoder.config;
        if let Join::Assistant { before, scale, .. } = &self.join {
            // Queries are at the position of the last token, which is not in the target's cache.
            let positions: Vec<usize> = positions(parts).into_iter().map(|at| at + 1).collect();
            let rotations = decoder.rotations(&positions);
            let token = decoder.embedding().rows(&tokens(parts))?.scaled(*scale);
            let state = Rows::new(states, self.width());
            let mut x = before.forward(&Rows::concat_columns(&[token, state])?)?;
            for layer in &decoder.layers {
                x = layer.forward(config, x, &rotations, parts)?;
                x = layer.finish(config, x, None)?;
            }
            return self.output(x, parts);
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
        self.output(x, parts)
    }

    fn output(&self, x: Rows, parts: &[SequenceTokens]) -> Result<NetOutput> {
        let decoder = &self.decoder;
        let Some(x) = wanted(x, parts) else {
            return Ok(NetOutput { normed: None, states: Vec::new() });
        };
        let normed = decoder.normed(x.clone())?;
        let state = match &self.join {
            Join::Features { feedback: Feedback::AfterNorm, .. }
            | Join::Mtp { feedback: Feedback::AfterNorm, .. } => normed.clone(),
            Join::Assistant { after, .. } => after.forward(&normed)?,
            _ => x,
        };
        Ok(NetOutput { normed: Some(normed), states: state.into_numbers() })
    }

    /// Logits `[rows, draft vocabulary]` from inputs of the output matrix.
    pub fn logits(&self, normed: &Rows) -> Result<Vec<f32>> {
        let logits = self.decoder.lm_head().forward(normed)?;
        Ok(logits.scaled(self.logit_scale).into_numbers())
    }
}
