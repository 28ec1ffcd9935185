//! Products in integers: weights of 2 to 8 bits times inputs rounded to 8 bits.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` and w `[out, in]` in blocks, for few rows at hardly more
//! than the price of one, where widening every weight to f32 is dearer than reading it.
//! Source: ggml's scheme (inputs in blocks of 32 with a scale); tiles, kernels and the order of
//! sums are ours. Method, for a row of w and a row of x:
//! 1. x is rounded, once for all rows of w ([`inputs`](super::inputs)).
//! 2. In each block, or half of one where those have scales of their own, s = Σ q·k over the
//!    weights' numbers q and the inputs' k: an integer below 2^24, exact in any order.
//! 3. y = Σ over blocks, in their order, of fma(s, scale of w · scale of x, ·), after each
//!    fma(minimum, sum of x, ·).
//!
//! The same operations of f32 in the same order in every kernel, so that they all give the same
//! bits; and a row's result does not depend on other rows. Not here: the matrices in the registers
//! of AMX. Blocks of 32 columns use half of one, and their sums must be scaled one by one; it gave
//! the same bits and took as long as AVX-512 for 16, 32 and 256 rows.
//! Complexity: `rows · out · in` multiply-adds of bytes, `rows · out · in / 32` of f32, one read of
//! w.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use std::sync::OnceLock;

use super::block::Block;
use super::inputs::{Input, Inputs};
use super::output::Output;
use super::tiles::{TILE, Tiles};
use crate::pool;

/// Multiply-adds that are worth another thread.
const GRAIN: usize = 1 << 16;
/// Bytes of inputs that are gone through for one tile: they should stay in a core's cache.
const CACHED: usize = 1 << 19;
/// Rows that any kernel takes at once.
const MOST: usize = 8;

/// The kernels. They differ in speed only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

impl Kernel {
    /// What this CPU supports, from the slowest to the fastest.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let some = [
                (avx2::available(), Self::Avx2),
                (avx_vnni::available(), Self::AvxVnni),
                (avx512::available(), Self::Avx512),
            ];
            all.extend(some.into_iter().filter_map(|(there, kernel)| there.then_some(kernel)));
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.push(Self::Neon);
            all.extend(neon::has_dot_products().then_some(Self::NeonDot));
        }
        all
    }

    fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Portable))
    }

    /// The most rows of x at once.
    fn rows(self) -> usize {
        match self {
            Self::Portable => MOST,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni => 4,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => MOST,
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDot => 4,
        }
    }

    /// One tile with some rows of x.
    #[inline]
    fn tile<B: Block>(self, w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
        debug_assert_eq!(x.len(), w.len() * B::PARTS * y.len());
        // SAFETY: kernels are made by `available` only, which has asked the CPU.
        unsafe {
            match self {
                Self::Portable => portable::tile(w, x, y),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => avx2::tile(w, x, y),
                #[cfg(target_arch = "x86_64")]
                Self::AvxVnni => avx_vnni::tile(w, x, y),
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => avx512::tile(w, x, y),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => neon::tile(w, x, y),
                #[cfg(target_arch = "aarch64")]
                Self::NeonDot => neon::dot_tile(w, x, y),
            }
        }
    }
}

/// y `[rows, out]` for x `[rows, in]`, in `room` where that is large enough.
pub(super) fn product<B: Block>(w: &Tiles<B>, x: &[f32], rows: usize, room: Vec<f32>) -> Vec<f32> {
    product_by(Kernel::best(), w, x, rows, room)
}

pub(super) fn product_by<B: Block>(
    kernel: Kernel,
    w: &Tiles<B>,
    x: &[f32],
    rows: usize,
    room: Vec<f32>,
) -> Vec<f32> {
    if rows * w.out == 0 || w.columns == 0 {
        return vec![0.0; rows * w.out];
    }
    assert_eq!(x.len(), rows * w.columns);
    let inputs = &Inputs::new::<B>(x, w.columns, kernel.rows());
    let output = Output::new(rows, w.out, room);
    let bytes = inputs.width() * inputs.group * size_of::<Input>();
    let cached = (CACHED / bytes).max(1);
    let groups: &[&[Input]] = &inputs.groups().collect::<Vec<_>>();
    pool::parallel_ranges(w.tiles(), GRAIN / (rows * w.columns * TILE) + 1, &|tiles| {
        let mut sums = [[0f32; TILE]; MOST];
        for (part, groups) in groups.chunks(cached).enumerate() {
            for tile in tiles.clone() {
                for (number, x) in groups.iter().enumerate() {
                    let sums = &mut sums[..x.len() / inputs.width()];
                    kernel.tile(w.tile(tile), x, sums);
                    // SAFETY: tiles are split between threads.
                    unsafe { output.put(tile, (part * cached + number) * inputs.group, sums) };
                }
            }
        }
    });
    // SAFETY: each tile was some thread's, and put with all groups of rows.
    unsafe { output.written() }
}

#[cfg(test)]
mod tests;
