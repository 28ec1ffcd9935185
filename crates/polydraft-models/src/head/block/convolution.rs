//! Convolutions around the blocks of DFlash-2's layers.
//!
//! Problem: without convolutions the positions of a block interact in attention only.
//! Source: DFlash-2 as published with its weights and computed by vLLM (`qwen3_dflash2.py`).
//! Method: with K taps, before and after attention and feed-forward, y_i = Σ_k (c_k + d_ik) x_{i−k}
//! over positions of the same block, in each channel; c is learned, and d = P x_i has one number
//! for every group of channels. The convolution after a block uses the P x of the block's input
//! too.
//! Complexity: K multiplications per channel.

use polydraft_kernels::Rows;

use crate::error::Result;
use crate::linear::Linear;

#[derive(Debug)]
pub(super) struct Convolution {
    /// c, `[2, taps, hidden]`.
    pub base: Vec<f32>,
    /// P, `[2 · taps · groups, hidden]`.
    pub project: Linear,
    pub taps: usize,
    /// Number of channels in a group.
    pub group: usize,
}

impl Convolution {
    /// Convolves the input of an attention or feed-forward block. Also returns P x, for
    /// [`after`](Self::after). `length` is the number of positions of a token block.
    pub fn before(&self, x: &Rows, length: usize) -> Result<(Rows, Rows)> {
        let moving = self.project.forward(x)?;
        Ok((self.apply(0, x, &moving, length), moving))
    }

    /// Convolves the output of an attention or feed-forward block.
    pub fn after(&self, x: &Rows, moving: &Rows, length: usize) -> Rows {
        self.apply(1, x, moving, length)
    }

    fn apply(&self, side: usize, x: &Rows, moving: &Rows, length: usize) -> Rows {
        let (width, taps, groups) = (x.width(), self.taps, x.width() / self.group);
        let base = &self.base[side * taps * width..][..taps * width];
        let mut y = vec![0f32; x.numbers().len()];
        for (row, y) in y.chunks_exact_mut(width).enumerate() {
            let moving = &moving.numbers()[row * moving.width()..][side * taps * groups..];
            for tap in 0..taps.min(row % length + 1) {
                let x = &x.numbers()[(row - tap) * width..][..width];
                let (base, moving) = (&base[tap * width..], &moving[tap * groups..]);
                for (channel, y) in y.iter_mut().enumerate() {
                    *y += (base[channel] + moving[channel / self.group]) * x[channel];
                }
            }
        }
        Rows::new(y, width)
    }
}
