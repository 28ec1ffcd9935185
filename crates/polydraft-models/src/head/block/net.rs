//! The forward pass of a block head.
//!
//! Problem: the tokens that follow a sequence, all in one pass, from the target's states of it.
//! Source: Chen et al. 2026 (DFlash).
//! Method: with the target's states F_i of token i, H_i = rms(fc·F_i) is what the head knows of the
//! context. Its layers are Qwen3's; in each, the KV cache of the context is made of H, whatever the
//! layer below left. Then the block: the embedding of the last token, and of a token
//! for "not known" at each of the positions after it. Their queries see the whole context and each
//! other. After the last norm the output matrix gives the logits of the token *at* a position, or,
//! in heads that begin with the last token's, of the token after it.
//! Deviations: what is new of the context goes through the same product as the block.

use polydraft::Token;
use polydraft_engine::HiddenState;
use polydraft_kernels::{Mask, Norm, SequenceInput as Seen, Rows};

use super::convolution::Convolution;
use super::link::{Level, Link};
use crate::cache::Cache;
use crate::error::Result;
use crate::linear::Linear;
use crate::transformer::Transformer;
use crate::transformer::layer::Attention;
use crate::transformer::pass::{SequenceTokens, begin};
use crate::transformer::rotations::Rotations;

/// What positions of a block see of it in one layer: all, or those before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::head) struct BlockAttention {
    pub causal: bool,
    pub window: Option<usize>,
}

/// Weights and shape.
#[derive(Debug)]
pub(super) struct Net {
    /// The layers, the embedding, the norm after them and the output matrix.
    pub decoder: Transformer,
    /// From the target's states to what is known of the context.
    pub fc: Linear,
    pub context_norm: Norm,
    /// Of each layer.
    pub block_attention: Vec<BlockAttention>,
    /// Of each layer, around attention and around feed-forward.
    pub convolutions: Vec<[Convolution; 2]>,
    pub link: Link,
    /// The embedding of "not known".
    pub mask: Vec<f32>,
    pub embedding_scale: f64,
    /// Positions of a block, the last token's included.
    pub block: usize,
    /// Whether the last token's position predicts too.
    pub from_anchor: bool,
    pub logit_scale: f64,
    pub softcap: Option<f64>,
    /// The tokens that logits are of, ascending.
    pub tokens: Vec<Token>,
    /// The target's states that are read,
    pub reads: Vec<HiddenState>,
    /// and how many numbers that is for a token.
    pub features: usize,
}

/// What a pass does for one sequence.
#[derive(Debug)]
pub(super) struct Work<'a> {
    /// Tokens in the cache.
    pub start: usize,
    /// So many are taken into it,
    pub states: usize,
    /// `[states, features]`
    pub features: &'a [f32],
    /// The last token, where a block is computed.
    pub anchor: Option<Token>,
    pub cache: &'a mut Cache,
}

impl Net {
    pub fn width(&self) -> usize {
        self.decoder.config.hidden
    }

    /// Levels of a tree that have a distribution.
    pub fn levels(&self) -> usize {
        self.block - usize::from(!self.from_anchor)
    }

    /// Computes; the states of the levels of each block, `[blocks, levels, hidden]`.
    pub fn forward(&self, work: &mut [Work]) -> Result<Vec<f32>> {
        let (width, config) = (self.width(), &self.decoder.config);
        let features: Vec<f32> = work.iter().flat_map(|work| work.features).copied().collect();
        let known = match features.is_empty() {
            true => Rows::new(Vec::new(), width),
            false => {
                let joined = self.fc.forward(&Rows::new(features, self.features))?;
                self.context_norm.forward(&joined)?
            }
        };
        let mut x = self.embed(work)?;

        // Of each sequence the rows of its context, then those of its block.
        let (mut parts, mut both) = (Vec::with_capacity(work.len()), Vec::new());
        let (mut positions, mut blocks) = (Vec::new(), Vec::new());
        for Work { start, states, anchor, cache, .. } in work {
            let end = *start + *states;
            let block = if anchor.is_some() { self.block } else { 0 };
            blocks.extend(positions.len() + *states..positions.len() + *states + block);
            positions.extend(*start..end + block);
            let alone = |context: usize| Mask { context, path: Vec::new() };
            let context = (*start..end).map(|slot| alone(slot + 1));
            let masks: Vec<Mask> = context.chain((0..block).map(|_| alone(end + block))).collect();
            both.push([
                masks[*states..].to_vec(),
                (0..block).map(|at| alone(end + at + 1)).collect::<Vec<Mask>>(),
            ]);
            let tokens = vec![0; masks.len()];
            parts.push(SequenceTokens { cache, start: *start, tokens, masks, wanted: block, committed: 0 });
        }
        begin(&mut parts)?;
        let rotations = self.decoder.rotations(&positions);

        for (number, layer) in self.decoder.layers.iter().enumerate() {
            if x.count() == 0 && known.count() == 0 {
                break;
            }
            let normed = match &layer.attention_norms.before {
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
            let rows = joined(&parts, &known, &normed);
            let seen = self.attend(number, &rows, &rotations, &mut parts, (&blocks, &both))?;
            if x.count() == 0 {
                continue;
            }
            let found = match (convolutions, &moving) {
                (Some([around, _]), Some(moving)) => around.after(&seen, moving, self.block),
                _ => seen,
            };
            x = x.plus(&found)?;
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
        let own = normed.numbers().chunks_exact(self.block * width);
        Ok(own.flat_map(|block| &block[skipped * width..]).copied().collect())
    }

    /// Of every block the last token, and what is not known.
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

    /// Attention in a layer: everything is written, and blocks see.
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
        heads.write(layer.place, config, &mut mixed, angles, parts)?;
        if blocks.is_empty() {
            return Ok(Rows::new(Vec::new(), self.width()));
        }
        let BlockAttention { causal, window } = self.block_attention[number];
        let seen: Vec<Seen> = parts
            .iter()
            .zip(masks)
            .map(|(part, masks)| Seen {
                pages: part.cache.pages(layer.place.shape),
                masks: &masks[usize::from(causal)],
                end: part.end(),
            })
            .collect();
        let layout = parts[0].cache.page_layout(layer.place.shape);
        heads.attend(layer.place, config, &mixed.select(blocks), (&seen, layout), window)
    }

    /// Levels of states `[levels, hidden]`.
    pub fn read_out(&self, states: Vec<f32>) -> Result<Vec<Level>> {
        let states = Rows::new(states, self.width());
        let logits = self.decoder.lm_head().forward(&states)?.capped(self.softcap);
        let logits = logits.scaled(self.logit_scale).into_numbers();
        self.link.levels(&self.tokens, &states, &logits)
    }

    /// The logits after tokens at levels that have some, where they are not the levels' own.
    pub fn linked(
        &self,
        levels: &[Level],
        nodes: &[(usize, Token)],
    ) -> Result<Vec<Option<Vec<f32>>>> {
        self.link.after(levels, nodes, self.logit_scale)
    }
}

/// What layers see: of each sequence what is known of its new tokens, then its block.
fn joined(parts: &[SequenceTokens], known: &Rows, block: &Rows) -> Rows {
    let width = known.width();
    let (mut of_context, mut of_block) = (known.numbers(), block.numbers());
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
