//! Forward pass of a block head.
//!
//! Problem: predict the tokens that follow a sequence, all in one pass, from the target's states.
//! Source: Chen et al. 2026 (DFlash).
//! Method: with the target's states F_i of token i, H_i = rms(fc·F_i) represents the context. The
//! layers are those of Qwen3; in each of them, the KV cache of the context is made from H, not from
//! the output of the layer below. The block follows: the embedding of the last token, and that of a
//! mask token at each of the positions after it. Its queries attend to the context and to the
//! block. After the last norm, the output matrix gives the logits of the token *at* a position, or,
//! in heads with `sample_from_anchor`, of the token after it.
//! Deviations: new context tokens go through the same matrix product as the block.

use polydraft::Token;
use polydraft_engine::HiddenState;
use polydraft_kernels::{Mask, Norm, Rows, SequenceInput};

use super::convolution::Convolution;
use super::link::{Level, Link};
use crate::cache::Cache;
use crate::error::Result;
use crate::linear::Linear;
use crate::transformer::Transformer;
use crate::transformer::layer::Attention;
use crate::transformer::pass::{SequenceTokens, begin};
use crate::transformer::rotations::Rotations;

/// Attention within a block in one layer: to all positions or, if causal, to the preceding ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::head) struct BlockAttention {
    pub causal: bool,
    pub window: Option<usize>,
}

/// Weights and shape of a block head.
#[derive(Debug)]
pub(super) struct Net {
    /// Layers, embedding, last norm and output matrix.
    pub decoder: Transformer,
    /// Projection of the target's states to the context representation.
    pub fc: Linear,
    pub context_norm: Norm,
    /// One entry per layer.
    pub block_attention: Vec<BlockAttention>,
    /// Convolutions around attention and around feed-forward, one pair per layer if any.
    pub convolutions: Vec<[Convolution; 2]>,
    pub link: Link,
    /// Embedding of the mask token.
    pub mask: Vec<f32>,
    pub embedding_scale: f64,
    /// Positions of a block, including that of the last token.
    pub block: usize,
    /// Whether the position of the last token has a prediction.
    pub from_anchor: bool,
    pub logit_scale: f64,
    pub softcap: Option<f64>,
    /// Draft vocabulary, ascending.
    pub tokens: Vec<Token>,
    /// Hidden states of the target that the block head reads.
    pub hidden_states: Vec<HiddenState>,
    /// Total width of these states for a token.
    pub feature_width: usize,
}

/// Work of a pass for one sequence.
#[derive(Debug)]
pub(super) struct Work<'a> {
    /// Number of tokens in the cache.
    pub start: usize,
    /// Number of tokens to write to the cache.
    pub states: usize,
    /// Target states, `[states, features]`.
    pub features: &'a [f32],
    /// The last token, if the block is to be computed.
    pub anchor: Option<Token>,
    pub cache: &'a mut Cache,
}

impl Net {
    pub fn width(&self) -> usize {
        self.decoder.config.hidden
    }

    /// Number of levels of a tree that have a distribution.
    pub fn levels(&self) -> usize {
        self.block - usize::from(!self.from_anchor)
    }

    /// Computes a pass. Returns the output states of the blocks, `[blocks, levels, hidden]`.
    pub fn forward(&self, work: &mut [Work]) -> Result<Vec<f32>> {
        let (width, config) = (self.width(), &self.decoder.config);
        let features: Vec<f32> = work.iter().flat_map(|work| work.features).copied().collect();
        let context = match features.is_empty() {
            true => Rows::new(Vec::new(), width),
            false => {
                let joined = self.fc.forward(&Rows::new(features, self.feature_width))?;
                self.context_norm.forward(&joined)?
            }
        };
        let mut x = self.embed(work)?;

        // For each sequence the rows of its context, then those of its block.
        let (mut parts, mut block_masks) = (Vec::with_capacity(work.len()), Vec::new());
        let (mut positions, mut blocks) = (Vec::new(), Vec::new());
        for Work { start, states, anchor, cache, .. } in work {
            let end = *start + *states;
            let block = if anchor.is_some() { self.block } else { 0 };
            blocks.extend(positions.len() + *states..positions.len() + *states + block);
            positions.extend(*start..end + block);
            let up_to = |context: usize| Mask { context, path: Vec::new() };
            let of_context = (*start..end).map(|slot| up_to(slot + 1));
            let of_block = (0..block).map(|_| up_to(end + block));
            let masks: Vec<Mask> = of_context.chain(of_block).collect();
            block_masks.push([
                masks[*states..].to_vec(),
                (0..block).map(|at| up_to(end + at + 1)).collect::<Vec<Mask>>(),
            ]);
            let tokens = vec![0; masks.len()];
            parts.push(SequenceTokens {
                cache,
                start: *start,
                tokens,
                masks,
                wanted: block,
                committed: 0,
            });
        }
        begin(&mut parts)?;
        let rotations = self.decoder.rotations(&positions);

        for (number, layer) in self.decoder.layers.iter().enumerate() {
            if x.count() == 0 && context.count() == 0 {
                break;
            }
            let normed = match &layer.attention_norms.pre {
                Some(norm) if x.count() > 0 => norm.forward(&x)?,
                _ => x.clone(),
            };
            let convolutions = self.convolutions.get(number);
            let (normed, moving) = match convolutions {
                Some([around, _]) if x.count() > 0 => {
                    let (normed, moving) = around.before(&normed, self.block)?;
                    (normed, Some(moving))
                }
                _ => (normed, None),
            };
            let rows = joined(&parts, &context, &normed);
            let attended =
                self.attend(number, &rows, &rotations, &mut parts, (&blocks, &block_masks))?;
            if x.count() == 0 {
                continue;
            }
            let attended = match (convolutions, &moving) {
                (Some([around, _]), Some(moving)) => around.after(&attended, moving, self.block),
                _ => attended,
            };
            x = x.plus(&attended)?;
            x = layer.mlp_norms.around_both(x, |residual, x| {
                let Some([_, around]) = convolutions else {
                    return layer.feed_forward(config, residual, x);
                };
                let (x, moving) = around.before(x, self.block)?;
                let y = layer.feed_forward(config, residual, &x)?;
                Ok(around.after(&y, &moving, self.block))
            })?;
        }
        if x.count() == 0 {
            return Ok(Vec::new());
        }
        let normed = self.decoder.normed(x)?;
        let skipped = self.block - self.levels();
        let blocks = normed.numbers().chunks_exact(self.block * width);
        Ok(blocks.flat_map(|block| &block[skipped * width..]).copied().collect())
    }

    /// Embeddings of all blocks: the last token, then mask tokens.
    fn embed(&self, work: &[Work]) -> Result<Rows> {
        let anchors: Vec<Token> = work.iter().filter_map(|work| work.anchor).collect();
        let width = self.width();
        if anchors.is_empty() {
            return Ok(Rows::new(Vec::new(), width));
        }
        let rows = self.decoder.embedding().rows(&anchors)?;
        let mut x = Vec::with_capacity(anchors.len() * self.block * width);
        for row in rows.numbers().chunks_exact(width) {
            x.extend_from_slice(row);
            (1..self.block).for_each(|_| x.extend_from_slice(&self.mask));
        }
        Ok(Rows::new(x, width).scaled(self.embedding_scale))
    }

    /// Attention in a layer: writes keys and values of all rows to the caches, and returns the
    /// output for the rows of blocks.
    fn attend(
        &self,
        number: usize,
        rows: &Rows,
        rotations: &Rotations,
        parts: &mut [SequenceTokens],
        (blocks, masks): (&[usize], &[[Vec<Mask>; 2]]),
    ) -> Result<Rows> {
        let (config, layer) = (&self.decoder.config, &self.decoder.layers[number]);
        let Some(Attention::Heads(heads)) = &layer.attention else {
            return Ok(Rows::new(vec![0.0; blocks.len() * self.width()], self.width()));
        };
        let mut mixed = heads.query_key_value.forward(rows)?;
        let angles = rotations.angles(false);
        heads.write(layer.cache_index, config, &mut mixed, angles, parts)?;
        if blocks.is_empty() {
            return Ok(Rows::new(Vec::new(), self.width()));
        }
        let BlockAttention { causal, window } = self.block_attention[number];
        let inputs: Vec<SequenceInput> = parts
            .iter()
            .zip(masks)
            .map(|(part, masks)| SequenceInput {
                pages: part.cache.pages(layer.cache_index.shape),
                masks: &masks[usize::from(causal)],
                end: part.end(),
            })
            .collect();
        let layout = parts[0].cache.page_layout(layer.cache_index.shape);
        heads.attend(layer.cache_index, config, &mixed.select(blocks), (&inputs, layout), window)
    }

    /// Computes levels from output states `[levels, hidden]`.
    pub fn logits(&self, states: Vec<f32>) -> Result<Vec<Level>> {
        let states = Rows::new(states, self.width());
        let logits = self.decoder.lm_head().forward(&states)?.capped(self.softcap);
        let logits = logits.scaled(self.logit_scale).into_numbers();
        self.link.levels(&self.tokens, &states, &logits)
    }

    /// Logits of nodes, given as level and token, on levels with logits. `None` if they equal the
    /// logits of the level.
    pub fn linked(
        &self,
        levels: &[Level],
        nodes: &[(usize, Token)],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        self.link.after(levels, nodes, self.logit_scale)
    }
}

/// Inputs of a layer: for each sequence the new rows of its context, then its block.
fn joined(parts: &[SequenceTokens], context: &Rows, block: &Rows) -> Rows {
    let width = context.width();
    let (mut of_context, mut of_block) = (context.numbers(), block.numbers());
    let mut all = Vec::with_capacity(of_context.len() + of_block.len());
    for part in parts {
        let (context, blocks);
        (context, of_context) = of_context.split_at((part.tokens.len() - part.wanted) * width);
        (blocks, of_block) = of_block.split_at(part.wanted * width);
        all.extend_from_slice(context);
        all.extend_from_slice(blocks);
    }
    Rows::new(all, width)
}
