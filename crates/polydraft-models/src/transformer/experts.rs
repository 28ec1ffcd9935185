//! Experts: feed-forward blocks of which every token uses a few.
//!
//! Problem: a layer has up to hundreds of feed-forward blocks, and each token is computed by the
//! few whose scores are best.
//! Source: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); DeepSeek-AI 2024 (groups, shared
//! experts, the correction of scores to choose by); NVIDIA 2025 (Nemotron 3: experts that work in a
//! narrower width).
//! Method: the router scores all tokens of a pass in f32. Then the tokens are grouped by expert: an
//! expert's weights are read once for all tokens that chose it, with one product each way. What a
//! token gets is summed in the order of the experts' numbers, so that it does not depend on other
//! tokens. Of equal scores the lower number goes first. Where experts work in a narrower width, all
//! tokens are projected down to it before and their sums up again after; router and shared expert
//! read the model's width.
//! Complexity: a pass over n tokens reads the union of their experts.

use std::cmp::Reverse;
use std::sync::Arc;

use polydraft_kernels::Rows;

use super::dense::Dense;
use super::make::Make;
use crate::config::{Experts as Shape, FeedForward, Groups, Scores};
use crate::error::Result;
use crate::linear::Linear;

/// What the ways to a narrower width and back are called.
pub(super) const LATENT: [&str; 2] = ["latent_down", "latent_up"];

#[derive(Debug)]
pub(crate) struct Experts {
    pub shape: Shape,
    /// `[experts, hidden]`, never quantised.
    pub router: Arc<Linear>,
    /// What is added to scores to choose by.
    pub correction: Option<Vec<f32>>,
    /// What each one is multiplied by.
    pub scales: Option<Vec<f32>>,
    pub latent: Option<Latent>,
    pub each: Vec<Dense>,
    pub shared: Option<Shared>,
}

/// The ways to a narrower width and back.
#[derive(Debug)]
pub(crate) struct Latent {
    pub down: Linear,
    pub up: Linear,
}

/// An expert for all tokens.
#[derive(Debug)]
pub(crate) struct Shared {
    pub block: Dense,
    /// `[1, hidden]`; what the expert gives is multiplied by the sigmoid of the product.
    pub gate: Option<Arc<Linear>>,
}

impl Experts {
    pub fn forward(&self, config: FeedForward, x: &Rows) -> Result<Rows> {
        self.routed(config, x, x)
    }

    /// With other numbers for the router.
    pub fn routed(&self, config: FeedForward, scored: &Rows, x: &Rows) -> Result<Rows> {
        let narrow = self.latent.as_ref().map(|latent| latent.down.forward(x)).transpose()?;
        let inputs = narrow.as_ref().unwrap_or(x);
        let width = inputs.width();
        let mut chosen: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.each.len()];
        let logits = self.router.forward(scored)?;
        for (row, logits) in logits.numbers().chunks_exact(self.each.len().max(1)).enumerate() {
            for (expert, weight) in self.choose(logits) {
                chosen[expert].push((row, weight));
            }
        }
        let mut sums = vec![0f32; inputs.numbers().len()];
        for (expert, chosen) in self.each.iter().zip(&chosen).filter(|(_, c)| !c.is_empty()) {
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

    /// The same with other matrices.
    pub fn with(&self, make: &Make) -> Result<Self> {
        let mut each = Vec::with_capacity(self.each.len());
        for (number, expert) in self.each.iter().enumerate() {
            let [into, out] = ["in", "out"].map(|end| format!("experts.{number}.{end}"));
            each.push(expert.with([&into, &out], make)?);
        }
        let latent = match &self.latent {
            None => None,
            Some(Latent { down, up }) => {
                let down = (make.linear)(LATENT[0], down)?;
                Some(Latent { down, up: (make.linear)(LATENT[1], up)? })
            }
        };
        let shared = match &self.shared {
            None => None,
            Some(Shared { block, gate }) => {
                let block = block.with(["shared_in", "shared_out"], make)?;
                Some(Shared { block, gate: gate.clone() })
            }
        };
        Ok(Self {
            shape: self.shape.clone(),
            router: self.router.clone(),
            correction: self.correction.clone(),
            scales: self.scales.clone(),
            latent,
            each,
            shared,
        })
    }

    /// The experts of a token with the router's logits, and what each of them counts.
    fn choose(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let Shape { used, scores, normalised, scale, groups, .. } = self.shape;
        let scores: Vec<f32> = match scores {
            Scores::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
            Scores::Softmax => {
                let top = logits.iter().fold(f32::NEG_INFINITY, |top, x| top.max(*x));
                let powers: Vec<f32> = logits.iter().map(|x| (x - top).exp()).collect();
                let sum: f32 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
        };
        let mut to_choose_by: Vec<f32> = match &self.correction {
            None => scores.clone(),
            Some(correction) => scores.iter().zip(correction).map(|(s, c)| s + c).collect(),
        };
        if let Some(Groups { count, used, best }) = groups {
            let size = to_choose_by.len() / count;
            let worth = |group: &[f32]| {
                let order = best_of(group, best);
                order.iter().map(|at| group[*at]).sum::<f32>()
            };
            let worth: Vec<f32> = to_choose_by.chunks_exact(size).map(worth).collect();
            let kept = best_of(&worth, used);
            for (group, scores) in to_choose_by.chunks_exact_mut(size).enumerate() {
                if !kept.contains(&group) {
                    scores.fill(f32::NEG_INFINITY);
                }
            }
        }
        let chosen = best_of(&to_choose_by, used);
        let sum: f32 = chosen.iter().map(|expert| scores[*expert]).sum();
        let factor = if normalised { scale as f32 / (sum + 1e-20) } else { scale as f32 };
        let own = |expert: usize| self.scales.as_ref().map_or(1.0, |scales| scales[expert]);
        chosen.into_iter().map(|expert| (expert, factor * scores[expert] * own(expert))).collect()
    }
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Where the best `count` scores are.
fn best_of(scores: &[f32], count: usize) -> Vec<usize> {
    /// A score and its place, in an order in which all numbers have one.
    #[derive(PartialEq)]
    struct Scored(f32, usize);
    let key = |Scored(score, at): &Scored| (Reverse(order(*score)), *at);
    let mut all: Vec<Scored> = scores.iter().zip(0..).map(|(s, at)| Scored(*s, at)).collect();
    if count < all.len() {
        all.select_nth_unstable_by_key(count, key);
        all.truncate(count);
    }
    all.sort_unstable_by_key(key);
    all.into_iter().map(|Scored(_, at)| at).collect()
}

/// A whole number that is greater where a score is.
fn order(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    // The order of f32's total order.
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_found_in_order() {
        let scores = [0.5, -1.0, 2.0, f32::NEG_INFINITY, 2.0, -0.25, 0.5];
        assert_eq!(best_of(&scores, 4), [2, 4, 0, 6]);
        assert_eq!(best_of(&scores, 7), [2, 4, 0, 6, 5, 1, 3]);
        assert_eq!(best_of(&scores, 9).len(), 7);
        assert!(best_of(&scores, 0).is_empty());
    }
}
