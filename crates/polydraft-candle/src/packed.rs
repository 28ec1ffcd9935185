//! Products with matrices held in 16 or 8 bits, computed in f32.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` in f32 and w `[out, in]` in fewer bits. Reading w is the cost of decoding, so
//! fewer bits are less time; but arithmetic in them rounds, and candle's on a CPU is slow (bf16) or rounds the inputs
//! too (q8_0), in a way that depends on nothing but luck where two logits are nearly equal.
//! Method: ours. Sixteen rows of w lie side by side, a few neighbouring columns of one row in each 32-bit word. A word's
//! numbers are widened to f32 in registers, exactly, and multiplied with one number of x for all sixteen rows: no sum
//! across a vector, one stream through memory. A row's result does not depend on the other rows of x.
//! Formats: bf16, f16; q8_0 as in ggml, blocks of 32 columns of integers with a scale in f16.
//! Complexity: `rows · out · in` multiply-adds, `rows / 8 · out · in` conversions, one read of w for rows up to the
//! processor's cache.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
use half::f16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::weights::Element;

/// Rows of w side by side.
const TILE: usize = 16;
/// Rows of x at once.
const BLOCK: usize = 8;
/// Columns that share a scale in q8_0.
pub(crate) const SCALED: usize = 32;
/// Weights that are worth another thread.
const GRAIN: usize = 1 << 18;

/// One word of each row of a tile; a cache line, so that no vector lies across two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u32; TILE]);

/// How numbers lie in the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Bf16,
    F16,
    /// Integers in offset binary, four bytes of 128 + q a word; behind 8 words of a row the scale of this block, a
    /// number of f16's written as f32.
    Q8,
}

impl Format {
    /// Lines of one tile of a matrix with so many columns.
    fn lines(self, columns: usize) -> usize {
        match self {
            Self::Bf16 | Self::F16 => columns.div_ceil(2),
            Self::Q8 => columns / SCALED * Q8_LINES,
        }
    }
}

/// Lines of a block in q8_0: the integers, then the scales.
const Q8_LINES: usize = SCALED / 4 + 1;

/// A matrix `[out, in]` in 16 or 8 bits.
#[derive(Debug)]
pub(crate) struct Packed {
    lines: Vec<Line>,
    format: Format,
    out: usize,
    columns: usize,
}

impl Packed {
    /// Packs numbers of 16 bits, row by row.
    pub fn from_bits(values: &[u16], columns: usize, format: Format) -> Self {
        Self::pack(values, columns, format, |row, line, lane| {
            for (lines, pair) in line.iter_mut().zip(row.chunks(2)) {
                let high = pair.get(1).copied().unwrap_or(0);
                lines.0[lane] = u32::from(pair[0]) | u32::from(high) << 16;
            }
        })
    }

    /// Quantises; `columns` must be a multiple of [`SCALED`].
    pub fn quantise<T: Element>(values: &[T], columns: usize) -> Self {
        Self::pack(values, columns, Format::Q8, |row, lines, lane| {
            for (lines, block) in lines.chunks_exact_mut(Q8_LINES).zip(row.chunks_exact(SCALED)) {
                let largest = block.iter().fold(0f32, |m, v| m.max(v.widened().abs()));
                let exact = largest / 127.0;
                let inverse = if exact > 0.0 { 1.0 / exact } else { 0.0 };
                for (line, four) in lines.iter_mut().zip(block.chunks_exact(4)) {
                    let byte = |v: &T| (v.widened() * inverse).round() as i8 as u8 ^ 0x80;
                    line.0[lane] = u32::from_le_bytes(std::array::from_fn(|i| byte(&four[i])));
                }
                lines[Q8_LINES - 1].0[lane] = f16::from_f32(exact).to_f32().to_bits();
            }
        })
    }

    fn pack<T: Sync>(
        values: &[T],
        columns: usize,
        format: Format,
        row_into: impl Fn(&[T], &mut [Line], usize) + Sync,
    ) -> Self {
        let out = values.len() / columns;
        let lines_per_tile = format.lines(columns);
        let mut lines = vec![Line::default(); out.div_ceil(TILE) * lines_per_tile];
        let tiles = lines.par_chunks_exact_mut(lines_per_tile).zip(values.par_chunks(TILE * columns));
        tiles.for_each(|(lines, rows)| {
            for (lane, row) in rows.chunks_exact(columns).enumerate() {
                row_into(row, lines, lane);
            }
        });
        Self { lines, format, out, columns }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.lines[..])
    }

    /// One row in f32.
    fn row(&self, row: usize) -> Vec<f32> {
        let count = self.format.lines(self.columns);
        let lines = &self.lines[row / TILE * count..][..count];
        let words = lines.iter().map(|line| line.0[row % TILE]);
        let mut values: Vec<f32> = match self.format {
            Format::Bf16 => words.flat_map(|w| [w << 16, w & 0xffff_0000].map(f32::from_bits)).collect(),
            Format::F16 => {
                words.flat_map(|w| [w as u16, (w >> 16) as u16].map(|h| f16::from_bits(h).to_f32())).collect()
            }
            Format::Q8 => {
                let words: Vec<u32> = words.collect();
                let block = |words: &[u32]| {
                    let scale = f32::from_bits(words[Q8_LINES - 1]);
                    let bytes = words[..Q8_LINES - 1].iter().flat_map(|w| w.to_le_bytes());
                    bytes.map(|b| f32::from(b as i8 ^ -128) * scale).collect::<Vec<_>>()
                };
                words.chunks_exact(Q8_LINES).flat_map(block).collect()
            }
        };
        values.truncate(self.columns);
        values
    }

    /// The rows of the matrix at `ids [n]`: `[n, in]`.
    pub fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let mut values = Vec::with_capacity(ids.len() * self.columns);
        for &id in ids {
            if id as usize >= self.out {
                candle_core::bail!("packed matrix: expected a row below {}, got {id}", self.out);
            }
            values.append(&mut self.row(id as usize));
        }
        Tensor::from_vec(values, (ids.len(), self.columns), &Device::Cpu)
    }

    /// y `[rows, out]` for x `[rows, in]`.
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let count = self.format.lines(self.columns);
        // [tile, rows, 16] first: then threads write apart from each other.
        let mut tiled = vec![0f32; self.out.div_ceil(TILE) * rows * TILE];
        let tiles = tiled.len() / (rows * TILE).max(1);
        let part = (GRAIN / (self.columns * TILE).max(1)).max(1).max(tiles.div_ceil(rayon::current_num_threads()));
        let multiply = |(y, lines): (&mut [f32], &[Line])| {
            Arch::new().dispatch(Multiply { x, lines, y, rows, columns: self.columns, format: self.format });
        };
        if tiles == 0 || count == 0 {
            return vec![0f32; rows * self.out];
        }
        if part >= tiles {
            multiply((&mut tiled, &self.lines));
        } else {
            let parts = tiled.par_chunks_mut(part * rows * TILE).zip(self.lines.par_chunks(part * count));
            parts.for_each(multiply);
        }
        if rows == 1 {
            tiled.truncate(self.out);
            return tiled;
        }
        let mut y = vec![0f32; rows * self.out];
        for (tile, values) in tiled.chunks_exact(rows * TILE).enumerate() {
            let wide = TILE.min(self.out - tile * TILE);
            for (row, values) in values.chunks_exact(TILE).enumerate() {
                y[row * self.out + tile * TILE..][..wide].copy_from_slice(&values[..wide]);
            }
        }
        y
    }
}

impl CustomOp1 for Packed {
    fn name(&self) -> &'static str {
        "packed-product"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("packed product: expected a contiguous tensor, got {layout:?}")
        };
        if width != self.columns {
            candle_core::bail!("packed product: expected {} columns, got {width}", self.columns);
        }
        let y = self.product(&x.as_slice::<f32>()?[from..to], rows);
        Ok((CpuStorage::F32(y), Shape::from((rows, self.out))))
    }
}

/// y `[tiles, rows, 16]` from x `[rows, columns]`.
struct Multiply<'a> {
    x: &'a [f32],
    lines: &'a [Line],
    y: &'a mut [f32],
    rows: usize,
    columns: usize,
    format: Format,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.format {
            Format::Bf16 => self.run::<S, Bf16>(simd),
            Format::F16 => self.run::<S, F16>(simd),
            Format::Q8 => self.run::<S, Q8>(simd),
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn run<S: Simd, W: Words>(self, simd: S) {
        let Self { x, lines, y, rows, columns, format } = self;
        let tiles = lines.chunks_exact(format.lines(columns)).zip(y.chunks_exact_mut(rows * TILE));
        for (lines, y) in tiles {
            for (x, y) in x.chunks(BLOCK * columns).zip(y.chunks_mut(BLOCK * TILE)) {
                match y.len() / TILE {
                    1 => tile::<S, W, 1>(simd, x, columns, lines, y),
                    2 => tile::<S, W, 2>(simd, x, columns, lines, y),
                    3 => tile::<S, W, 3>(simd, x, columns, lines, y),
                    4 => tile::<S, W, 4>(simd, x, columns, lines, y),
                    5 => tile::<S, W, 5>(simd, x, columns, lines, y),
                    6 => tile::<S, W, 6>(simd, x, columns, lines, y),
                    7 => tile::<S, W, 7>(simd, x, columns, lines, y),
                    _ => tile::<S, W, BLOCK>(simd, x, columns, lines, y),
                }
            }
        }
    }
}

/// One tile with N rows of x, as many of its rows at a time as a vector has lanes.
#[inline(always)]
fn tile<S: Simd, W: Words, const N: usize>(
    simd: S,
    x: &[f32],
    columns: usize,
    lines: &[Line],
    y: &mut [f32],
) {
    let xs: [&[f32]; N] = std::array::from_fn(|n| &x[n * columns..(n + 1) * columns]);
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    for part in 0..TILE / lanes {
        let sums = W::sums::<S, N>(simd, xs, lines, part);
        for (y, sum) in y.chunks_exact_mut(TILE).zip(sums) {
            let y = S::as_mut_simd_f32s(y).0;
            y[part] = sum;
        }
    }
}

/// How words are widened and summed.
trait Words {
    /// The sums over all columns, for vector `part` of every line.
    fn sums<S: Simd, const N: usize>(simd: S, xs: [&[f32]; N], lines: &[Line], part: usize) -> [S::f32s; N];
}

#[inline(always)]
fn word<S: Simd>(line: &Line, part: usize) -> S::u32s {
    S::as_simd_u32s(&line.0).0[part]
}

/// Both numbers of a word of two, for all columns in pairs; an odd column at the end has no partner.
#[inline(always)]
fn paired<S: Simd, const N: usize>(
    simd: S,
    xs: [&[f32]; N],
    lines: &[Line],
    part: usize,
    widen: impl Fn(S::u32s) -> [S::f32s; 2],
) -> [S::f32s; N] {
    let pairs = xs.map(|x| x.as_chunks::<2>().0);
    let whole = pairs.iter().map(|p| p.len()).min().unwrap_or(0).min(lines.len());
    let pairs = pairs.map(|p| &p[..whole]);
    let mut sums = [[simd.splat_f32s(0.0); 2]; N];
    for (i, line) in lines[..whole].iter().enumerate() {
        let [low, high] = widen(word::<S>(line, part));
        for n in 0..N {
            let [a, b] = pairs[n][i];
            sums[n][0] = simd.mul_add_f32s(low, simd.splat_f32s(a), sums[n][0]);
            sums[n][1] = simd.mul_add_f32s(high, simd.splat_f32s(b), sums[n][1]);
        }
    }
    if let Some(line) = lines.get(whole) {
        let [low, _] = widen(word::<S>(line, part));
        for n in 0..N {
            sums[n][0] = simd.mul_add_f32s(low, simd.splat_f32s(xs[n][2 * whole]), sums[n][0]);
        }
    }
    sums.map(|[a, b]| simd.add_f32s(a, b))
}

struct Bf16;

impl Words for Bf16 {
    #[inline(always)]
    fn sums<S: Simd, const N: usize>(simd: S, xs: [&[f32]; N], lines: &[Line], part: usize) -> [S::f32s; N] {
        let (shift, high) = (simd.splat_u32s(16), simd.splat_u32s(0xffff_0000));
        paired(simd, xs, lines, part, |w| {
            [simd.wrapping_dyn_shl_u32s(w, shift), simd.and_u32s(w, high)].map(|w| simd.transmute_f32s_u32s(w))
        })
    }
}

struct F16;

impl Words for F16 {
    #[inline(always)]
    fn sums<S: Simd, const N: usize>(simd: S, xs: [&[f32]; N], lines: &[Line], part: usize) -> [S::f32s; N] {
        // Exponent and fraction moved to their places in an f32 make the number times 2^-112, subnormals included.
        let [up, down] = [13, 3].map(|by| simd.splat_u32s(by));
        let (bits, sign, half) =
            (simd.splat_u32s(0x0fff_e000), simd.splat_u32s(1 << 31), simd.splat_u32s(16));
        let scale = simd.splat_f32s(f32::from_bits((127 + 112) << 23));
        let number = |moved: S::u32s, signed: S::u32s| {
            let size = simd.transmute_f32s_u32s(simd.and_u32s(moved, bits));
            let size = simd.transmute_u32s_f32s(simd.mul_f32s(size, scale));
            simd.transmute_f32s_u32s(simd.or_u32s(size, simd.and_u32s(signed, sign)))
        };
        paired(simd, xs, lines, part, |w| {
            [
                number(simd.wrapping_dyn_shl_u32s(w, up), simd.wrapping_dyn_shl_u32s(w, half)),
                number(simd.wrapping_dyn_shr_u32s(w, down), w),
            ]
        })
    }
}

struct Q8;

impl Words for Q8 {
    #[inline(always)]
    fn sums<S: Simd, const N: usize>(simd: S, xs: [&[f32]; N], lines: &[Line], part: usize) -> [S::f32s; N] {
        // A byte b under the exponent of 2^23 is the number 2^23 + b.
        let (byte, exponent) = (simd.splat_u32s(0xff), simd.splat_u32s(0x4b00_0000));
        let offset = simd.splat_f32s(8_388_608.0 + 128.0);
        let shifts: [S::u32s; 4] = std::array::from_fn(|k| simd.splat_u32s(8 * k as u32));
        let (blocks, _) = lines.as_chunks::<Q8_LINES>();
        let xs = xs.map(|x| &x.as_chunks::<SCALED>().0[..blocks.len()]);
        let mut sums = [simd.splat_f32s(0.0); N];
        for (b, lines) in blocks.iter().enumerate() {
            let mut inner = [[simd.splat_f32s(0.0); 2]; N];
            for i in 0..Q8_LINES - 1 {
                let w = word::<S>(&lines[i], part);
                for k in 0..4 {
                    let q = simd.and_u32s(simd.wrapping_dyn_shr_u32s(w, shifts[k]), byte);
                    let q = simd.transmute_f32s_u32s(simd.or_u32s(q, exponent));
                    let q = simd.sub_f32s(q, offset);
                    for n in 0..N {
                        let x = simd.splat_f32s(xs[n][b][4 * i + k]);
                        inner[n][k % 2] = simd.mul_add_f32s(q, x, inner[n][k % 2]);
                    }
                }
            }
            let scale = simd.transmute_f32s_u32s(word::<S>(&lines[Q8_LINES - 1], part));
            for n in 0..N {
                let block = simd.add_f32s(inner[n][0], inner[n][1]);
                sums[n] = simd.mul_add_f32s(block, scale, sums[n]);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests;
