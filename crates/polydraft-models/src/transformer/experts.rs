//! Mixture of experts: each token uses a few of a layer's feed-forward blocks.
//!
//! Problem: a layer has up to hundreds of feed-forward blocks, and each token is computed by the
//! few with the highest scores.
//! Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); DeepSeek-AI 2024 (groups, shared
//! experts, score correction for the selection); NVIDIA 2025 (Nemotron 3: experts that work in a
//! narrower width).
//! Method: the router scores all tokens of a pass in f32. Then the tokens are grouped by expert: an
//! expert's weights are read once for all tokens that chose it, with one product each way. The
//! outputs of a token's experts are summed in the order of the experts' numbers, so the sum does
//! not depend on other tokens. Between equal scores the lower number wins. Where experts work in a
//! narrower width, all tokens are projected down to it before and their sums up again after; router
//! and shared expert read the model's width.
//! Complexity: a pass over n tokens reads the union of their experts.

use std::cmp::Reverse;
use std::sync::Arc;

use polydraft_kernels::Rows;

use super::dense::Dense;
use super::matrix_mapper::MatrixMapper;
use crate::config::{ExpertGroups, Experts as Shape, FeedForward, RouterScores};
use crate::error::Result;
use crate::linear::Linear;

/// Names of the projections to the experts' width and back.
pub(super) const LATENT: [&str; 2] = ["latent_down", "latent_up"];

/// Experts of one layer, with their router.
#[derive(Debug)]
pub(crate) struct Experts {
    pub shape: Shape,
    /// Router, `[experts, hidden]`; never quantised.
    pub router: Arc<Linear>,
    /// Added to the scores for the selection only.
    pub correction: Option<Vec<f32>>,
    /// Factor of each expert's output.
    pub scales: Option<Vec<f32>>,
    pub latent: Option<Latent>,
    pub blocks: Vec<Dense>,
    pub shared: Option<Shared>,
}

/// Projections to a narrower width and back.
#[derive(Debug)]
pub(crate) struct Latent {
    pub down: Linear,
    pub up: Linear,
}

/// Expert that every token uses.
#[derive(Debug)]
pub(crate) struct Shared {
    pub block: Dense,
    /// Gate, `[1, hidden]`: the expert's output is multiplied by the sigmoid of the product.
    pub gate: Option<Arc<Linear>>,
}

impl Experts {
    /// Output of the experts for rows `x`, which also go to the router.
    pub fn forward(&self, config: FeedForward, x: &Rows) -> Result<Rows> {
        self.forward_scored(config, x, x)
    }

    /// Output of the experts for rows `x`; the router reads `scored`.
    pub fn forward_scored(&self, config: FeedForward, scored: &Rows, x: &Rows) -> Result<Rows> {
        let narrow = self.latent.as_ref().map(|latent| latent.down.forward(x)).transpose()?;
        let inputs = narrow.as_ref().unwrap_or(x);
        let width = inputs.width();
        let mut chosen: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.blocks.len()];
        let logits = self.router.forward(scored)?;
        for (row, logits) in logits.numbers().chunks_exact(self.blocks.len().max(1)).enumerate() {
            for (expert, weight) in self.select(logits) {
                chosen[expert].push((row, weight));
            }
        }
        let mut sums = vec![0f32; inputs.numbers().len()];
        for (expert, chosen) in self.blocks.iter().zip(&chosen).filter(|(_, c)| !c.is_empty()) {
            let rows: Vec<usize> = chosen.iter().map(|(row, _)| *row).collect();
            let y = expert.forward(config, &inputs.select(&rows))?;
            for ((row, weight), y) in chosen.iter().zip(y.numbers().chunks_exact(width)) {
                let sum = &mut sums[row * width..][..width];
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
            }
        }
        let mut sums = Rows::new(sums, width);
        if let Some(latent) = &self.latent {
            sums = latent.up.forward(&sums)?;
        }
        let Some(Shared { block, gate }) = &self.shared else { return Ok(sums) };
        let mut y = block.forward(config, x)?;
        if let Some(gate) = gate {
            let gates = gate.forward(x)?;
            let rows = y.numbers_mut().chunks_exact_mut(x.width());
            for (row, gate) in rows.zip(gates.numbers()) {
                let factor = sigmoid(*gate);
                row.iter_mut().for_each(|number| *number *= factor);
            }
        }
        Ok(sums.plus(&y)?)
    }

    /// Copy with mapped matrices.
    pub fn map_matrices(&self, mapper: &MatrixMapper) -> Result<Self> {
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (number, expert) in self.blocks.iter().enumerate() {
            let [gate_up, down] = ["in", "out"].map(|end| format!("experts.{number}.{end}"));
            blocks.push(expert.map_matrices([&gate_up, &down], mapper)?);
        }
        let latent = match &self.latent {
            None => None,
            Some(Latent { down, up }) => {
                let down = (mapper.linear)(LATENT[0], down)?;
                Some(Latent { down, up: (mapper.linear)(LATENT[1], up)? })
            }
        };
        let shared = match &self.shared {
            None => None,
            Some(Shared { block, gate }) => {
                let block = block.map_matrices(["shared_in", "shared_out"], mapper)?;
                Some(Shared { block, gate: gate.clone() })
            }
        };
        Ok(Self {
            shape: self.shape.clone(),
            router: self.router.clone(),
            correction: self.correction.clone(),
            scales: self.scales.clone(),
            latent,
            blocks,
            shared,
        })
    }

    /// Experts of a token and the weights of their outputs, given the router's logits.
    fn select(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let Shape { used, scores, normalised, scale, groups, .. } = self.shape;
        let scores: Vec<f32> = match scores {
            RouterScores::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
            RouterScores::Softmax => {
                let top = logits.iter().fold(f32::NEG_INFINITY, |top, x| top.max(*x));
                let powers: Vec<f32> = logits.iter().map(|x| (x - top).exp()).collect();
                let sum: f32 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
        };
        let mut selection: Vec<f32> = match &self.correction {
            None => scores.clone(),
            Some(correction) => scores.iter().zip(correction).map(|(s, c)| s + c).collect(),
        };
        if let Some(ExpertGroups { count, used, best_scores }) = groups {
            let size = selection.len() / count;
            let worth = |group: &[f32]| {
                let order = top_k(group, best_scores);
                order.iter().map(|at| group[*at]).sum::<f32>()
            };
            let worth: Vec<f32> = selection.chunks_exact(size).map(worth).collect();
            let best_groups = top_k(&worth, used);
            for (group, scores) in selection.chunks_exact_mut(size).enumerate() {
                if !best_groups.contains(&group) {
                    scores.fill(f32::NEG_INFINITY);
                }
            }
        }
        let chosen = top_k(&selection, used);
        let sum: f32 = chosen.iter().map(|expert| scores[*expert]).sum();
        let factor = if normalised { scale as f32 / (sum + 1e-20) } else { scale as f32 };
        let own_scale = |expert: usize| self.scales.as_ref().map_or(1.0, |scales| scales[expert]);
        chosen
            .into_iter()
            .map(|expert| (expert, factor * scores[expert] * own_scale(expert)))
            .collect()
    }
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Indices of the `count` highest scores, best first.
fn top_k(scores: &[f32], count: usize) -> Vec<usize> {
    /// A score and its index.
    #[derive(PartialEq)]
    struct Scored(f32, usize);
    let key = |Scored(score, at): &Scored| (Reverse(total_order(*score)), *at);
    let mut all: Vec<Scored> = scores.iter().zip(0..).map(|(s, at)| Scored(*s, at)).collect();
    if count < all.len() {
        all.select_nth_unstable_by_key(count, key);
        all.truncate(count);
    }
    all.sort_unstable_by_key(key);
    all.into_iter().map(|Scored(_, at)| at).collect()
}

/// Integer with the order of f32's `total_cmp`.
fn total_order(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_sorts_by_score_then_index() {
        let scores = [0.5, -1.0, 2.0, f32::NEG_INFINITY, 2.0, -0.25, 0.5];
        assert_eq!(top_k(&scores, 4), [2, 4, 0, 6]);
        assert_eq!(top_k(&scores, 7), [2, 4, 0, 6, 5, 1, 3]);
        assert_eq!(top_k(&scores, 9).len(), 7);
        assert!(top_k(&scores, 0).is_empty());
    }
}
