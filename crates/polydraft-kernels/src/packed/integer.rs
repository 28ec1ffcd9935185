//! Products in integers: weights of 2 to 8 bits times inputs rounded to 8 bits.
//!
//! Problem: compute y = x · wᵀ for x `[rows, in]` and quantized w `[out, in]`, for a few rows at
//! hardly more than the cost of one. Widening every weight to f32 would cost more than reading it.
//! Source: ggml's scheme (inputs in blocks of 32 with a scale). Tiles, kernels and the order of
//! sums are our own.
//! Method, for a row of w and a row of x:
//! 1. Round x to 8 bits, once for all rows of w ([`inputs`](super::inputs)).
//! 2. For each span (a block of 32 columns, or half of one), compute s = Σ q·k over the weights'
//!    integers q and the inputs' integers k. s is below 2^24 in absolute value, so it is exact in
//!    any order.
//! 3. Accumulate over the spans, in order: y ← fma(s, scale of w · scale of x, y), then for formats
//!    with a minimum y ← fma(minimum, sum of x, y).
//!
//! Every kernel performs the same f32 operations in the same order, so all of them give bitwise the
//! same result, and a row's result does not depend on other rows.
//!
//! AMX is not used: blocks of 32 columns fill half of a matrix register, and sums must be scaled
//! one by one. An implementation gave the same bits, and took as long as AVX-512 for 16, 32 and 256
//! rows.
//! Complexity: `rows · out · in` multiply-adds of bytes, `rows · out · in / 32` of f32, and one
//! read of w.

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

/// Minimum number of multiply-adds per thread.
const MIN_WORK: usize = 1 << 16;
/// Maximum size in bytes of the inputs that are multiplied with all tiles at a time, so that they
/// stay in the cache of a core.
const INPUT_CACHE_BYTES: usize = 1 << 19;
/// Maximum number of rows of x in a group, over all kernels.
const MAX_ROWS: usize = 8;

/// Kernels. They differ in speed only.
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
    /// Returns the kernels that this CPU supports, from the slowest to the fastest.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let some = [
                (avx2::available(), Self::Avx2),
                (avx_vnni::available(), Self::AvxVnni),
                (avx512::available(), Self::Avx512),
            ];
            all.extend(
                some.into_iter().filter_map(|(available, kernel)| available.then_some(kernel)),
            );
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

    /// Returns the maximum number of rows of x in a group.
    fn max_rows(self) -> usize {
        match self {
            Self::Portable => MAX_ROWS,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 | Self::AvxVnni => 4,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => MAX_ROWS,
            #[cfg(target_arch = "aarch64")]
            Self::Neon | Self::NeonDot => 4,
        }
    }

    /// Computes one tile with a group of rows of x.
    #[inline]
    fn tile<B: Block>(self, w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
        debug_assert_eq!(x.len(), w.len() * B::SUB_BLOCKS * y.len());
        // SAFETY: kernels other than `Portable` come from `available` only, which checks the target
        // features.
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

/// Returns y `[rows, out]` for x `[rows, in]`, in `buffer` if its capacity suffices.
pub(super) fn product<B: Block>(
    w: &Tiles<B>,
    x: &[f32],
    rows: usize,
    buffer: Vec<f32>,
) -> Vec<f32> {
    product_by(Kernel::best(), w, x, rows, buffer)
}

/// Computes the product with a given kernel.
pub(super) fn product_by<B: Block>(
    kernel: Kernel,
    w: &Tiles<B>,
    x: &[f32],
    rows: usize,
    buffer: Vec<f32>,
) -> Vec<f32> {
    if rows * w.out == 0 || w.columns == 0 {
        return vec![0.0; rows * w.out];
    }
    assert_eq!(x.len(), rows * w.columns);
    let inputs = &Inputs::new::<B>(x, w.columns, kernel.max_rows());
    let output = Output::new(rows, w.out, buffer);
    let bytes = inputs.width() * inputs.group * size_of::<Input>();
    let groups_per_pass = (INPUT_CACHE_BYTES / bytes).max(1);
    let groups: &[&[Input]] = &inputs.groups().collect::<Vec<_>>();
    pool::parallel_ranges(w.tiles(), MIN_WORK / (rows * w.columns * TILE) + 1, &|tiles| {
        let mut sums = [[0f32; TILE]; MAX_ROWS];
        for (pass, groups) in groups.chunks(groups_per_pass).enumerate() {
            for tile in tiles.clone() {
                for (number, x) in groups.iter().enumerate() {
                    let sums = &mut sums[..x.len() / inputs.width()];
                    kernel.tile(w.tile(tile), x, sums);
                    let first = (pass * groups_per_pass + number) * inputs.group;
                    // SAFETY: each tile belongs to one thread.
                    unsafe { output.write(tile, first, sums) };
                }
            }
        }
    });
    // SAFETY: the ranges cover all tiles, and each tile was written with all groups of rows.
    unsafe { output.assume_written() }
}

#[cfg(test)]
mod tests;
