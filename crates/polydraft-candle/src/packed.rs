//! Products with a large matrix, held in 32, 16 or 8 bits and computed in f32: what decoding does all day.
//!
//! Problem: y = x · wᵀ for x `[rows, in]` in f32 and w `[out, in]`. Reading w is the cost of decoding: a product that
//! packs or streams w more than once makes a tree of eight nodes several times as dear as one token, and fewer bits are
//! less time. But arithmetic in fewer bits rounds, and candle's on a CPU is slow (bf16) or rounds the inputs too (q8_0),
//! which makes logits depend on luck where two are nearly equal.
//! Method: ours. Thirty-two rows of w lie side by side, one to four neighbouring columns of a row in each 32-bit word. A
//! word's numbers are widened to f32 in registers, exactly, and multiplied with one number of x for all the rows at
//! once: no sum across a vector, one stream through memory. A row's result does not depend on the other rows of x, so
//! that trees of different shapes give a node the same logits.
//! Formats: f32, bf16, f16; q8_0 as in ggml, blocks of 32 columns of integers with a scale in f16.
//! Complexity: `rows · out · in` multiply-adds, `rows / 8 · out · in` conversions, one read of w from memory.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::Error;
use crate::weights::Rows;

/// Rows of w side by side: two cache lines of words.
const TILE: usize = 32;
/// Rows of x at once.
const BLOCK: usize = 8;
/// Columns that share a scale in q8_0.
pub(crate) const SCALED: usize = 32;
/// Weights that are worth another thread.
const GRAIN: usize = 1 << 18;

/// Columns are padded to a multiple of this.
const STEP: usize = 4;

/// One word of each row of a tile; it begins with a cache line, so that no vector lies across two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u32; TILE]);

/// How numbers lie in the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    F32,
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
            Self::F32 => columns.next_multiple_of(STEP),
            Self::Bf16 | Self::F16 => columns.next_multiple_of(STEP) / 2,
            Self::Q8 => columns / SCALED * Q8_LINES,
        }
    }
}

/// Lines of a block in q8_0: the integers, then the scales.
const Q8_LINES: usize = SCALED / 4 + 1;

/// A matrix `[out, in]`.
#[derive(Debug)]
pub(crate) struct Packed {
    lines: Vec<Line>,
    format: Format,
    out: usize,
    columns: usize,
}

/// Where rows come from, in the type that a format holds.
pub(crate) trait Read<E>: Sync {
    fn f32(&self, first: usize, values: &mut [f32]) -> std::result::Result<(), E>;
    fn f16(&self, first: usize, values: &mut [f16]) -> std::result::Result<(), E>;
    fn bf16(&self, first: usize, values: &mut [bf16]) -> std::result::Result<(), E>;
}

impl Read<Error> for &Rows {
    fn f32(&self, first: usize, values: &mut [f32]) -> crate::Result<()> {
        self.read(first, values)
    }

    fn f16(&self, first: usize, values: &mut [f16]) -> crate::Result<()> {
        self.read(first, values)
    }

    fn bf16(&self, first: usize, values: &mut [bf16]) -> crate::Result<()> {
        self.read(first, values)
    }
}

/// One number a word. Lines are written from first to last, each whole: rows one after the other would go through them
/// all each time.
fn pack_words<T: Copy>(lines: &mut [Line], rows: &[T], columns: usize, bits: impl Fn(T) -> u32) {
    for (column, line) in lines.iter_mut().enumerate().take(columns) {
        for (word, row) in line.0.iter_mut().zip(rows.chunks_exact(columns)) {
            *word = bits(row[column]);
        }
    }
}

/// Two numbers a word.
fn pack_pairs<T: Copy>(lines: &mut [Line], rows: &[T], columns: usize, bits: impl Fn(T) -> u16) {
    for (pair, line) in lines.iter_mut().enumerate().take(columns.div_ceil(2)) {
        for (word, row) in line.0.iter_mut().zip(rows.chunks_exact(columns)) {
            let high = row.get(2 * pair + 1).map_or(0, |v| bits(*v));
            *word = u32::from(bits(row[2 * pair])) | u32::from(high) << 16;
        }
    }
}

fn quantise(lines: &mut [Line], rows: &[f32], columns: usize) {
    for (lane, row) in rows.chunks_exact(columns).enumerate() {
        for (lines, block) in lines.chunks_exact_mut(Q8_LINES).zip(row.chunks_exact(SCALED)) {
            let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
            let exact = largest / 127.0;
            let inverse = if exact > 0.0 { 1.0 / exact } else { 0.0 };
            for (line, four) in lines.iter_mut().zip(block.chunks_exact(4)) {
                let byte = |v: f32| (v * inverse).round() as i8 as u8 ^ 0x80;
                line.0[lane] = u32::from_le_bytes(std::array::from_fn(|i| byte(four[i])));
            }
            lines[Q8_LINES - 1].0[lane] = f16::from_f32(exact).to_f32().to_bits();
        }
    }
}

impl Packed {
    /// Reads rows, a tile at a time, straight into their place; for [`Format::Q8`] quantises them.
    ///
    /// `read` takes the first row and room for some. For `Q8` the columns must be a multiple of [`SCALED`].
    pub fn load<E: Send>(
        format: Format,
        out: usize,
        columns: usize,
        read: impl Read<E>,
    ) -> std::result::Result<Self, E> {
        let lines_per_tile = format.lines(columns);
        let mut lines = vec![Line::default(); out.div_ceil(TILE) * lines_per_tile];
        lines.par_chunks_exact_mut(lines_per_tile.max(1)).enumerate().try_for_each(|(tile, lines)| {
            let first = tile * TILE;
            let count = TILE.min(out - first);
            match format {
                Format::F32 => {
                    let mut values = vec![0f32; count * columns];
                    read.f32(first, &mut values)?;
                    pack_words(lines, &values, columns, f32::to_bits);
                }
                Format::Bf16 => {
                    let mut values = vec![bf16::ZERO; count * columns];
                    read.bf16(first, &mut values)?;
                    pack_pairs(lines, &values, columns, bf16::to_bits);
                }
                Format::F16 => {
                    let mut values = vec![f16::ZERO; count * columns];
                    read.f16(first, &mut values)?;
                    pack_pairs(lines, &values, columns, f16::to_bits);
                }
                Format::Q8 => {
                    let mut values = vec![0f32; count * columns];
                    read.f32(first, &mut values)?;
                    quantise(lines, &values, columns);
                }
            }
            Ok(())
        })?;
        Ok(Self { lines, format, out, columns })
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
            Format::F32 => words.map(f32::from_bits).collect(),
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
        if rows == 0 || count == 0 || self.out == 0 {
            return vec![0f32; rows * self.out];
        }
        let x = &interleaved(x, rows, self.columns);
        // [tile, rows, 32] first: then threads write apart from each other.
        let mut tiled = vec![0f32; self.out.div_ceil(TILE) * rows * TILE];
        let tiles = tiled.len() / (rows * TILE);
        let part = (GRAIN / (self.columns * TILE)).max(1).max(tiles.div_ceil(rayon::current_num_threads()));
        let multiply = |(y, lines): (&mut [f32], &[Line])| {
            Arch::new().dispatch(Multiply { x, lines, y, rows, columns: self.columns, format: self.format });
        };
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

/// Blocks of rows of x, in each the rows' numbers of one column side by side; columns padded with zeros.
fn interleaved(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let padded = columns.next_multiple_of(STEP);
    let mut out = vec![0f32; rows * padded];
    for (x, out) in x.chunks(BLOCK * columns).zip(out.chunks_mut(BLOCK * padded)) {
        let block = out.len() / padded;
        for (row, x) in x.chunks_exact(columns).enumerate() {
            for (x, out) in x.iter().zip(out.chunks_exact_mut(block)) {
                out[row] = *x;
            }
        }
    }
    out
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

/// y `[tiles, rows, 32]` from interleaved x.
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
            Format::F32 => self.run::<S, F32>(simd),
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
        let padded = columns.next_multiple_of(STEP);
        let tiles = lines.chunks_exact(format.lines(columns)).zip(y.chunks_exact_mut(rows * TILE));
        for (lines, y) in tiles {
            for (x, y) in x.chunks(BLOCK * padded).zip(y.chunks_mut(BLOCK * TILE)) {
                // Few rows of x leave registers for two vectors of w, whose sums then wait less for each other.
                match y.len() / TILE {
                    1 => tile::<S, W, 1, 2>(simd, x, lines, y),
                    2 => tile::<S, W, 2, 2>(simd, x, lines, y),
                    3 => tile::<S, W, 3, 2>(simd, x, lines, y),
                    4 => tile::<S, W, 4, 2>(simd, x, lines, y),
                    5 => tile::<S, W, 5, 1>(simd, x, lines, y),
                    6 => tile::<S, W, 6, 1>(simd, x, lines, y),
                    7 => tile::<S, W, 7, 1>(simd, x, lines, y),
                    _ => tile::<S, W, BLOCK, 1>(simd, x, lines, y),
                }
            }
        }
    }
}

/// One tile with N rows of x, V vectors of its rows at a time.
#[inline(always)]
fn tile<S: Simd, W: Words, const N: usize, const V: usize>(
    simd: S,
    x: &[f32],
    lines: &[Line],
    y: &mut [f32],
) {
    let steps = x.as_chunks::<N>().0.as_chunks::<STEP>().0;
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    for first in (0..TILE / lanes).step_by(V) {
        let sums = W::sums::<S, N, V>(simd, steps, lines, first);
        for (y, sums) in y.chunks_exact_mut(TILE).zip(sums) {
            S::as_mut_simd_f32s(y).0[first..first + V].copy_from_slice(&sums);
        }
    }
}

/// Four columns of N rows of x.
type Step<const N: usize> = [[f32; N]; STEP];

/// Two sums each, for even and odd columns. Their order must be the same for every N.
type Sums<S, const N: usize, const V: usize> = [[[<S as Simd>::f32s; 2]; V]; N];

// Below there are loops where closures would be shorter: a closure is a function of its own, which the compiler does not
// give the processor's vectors.

#[inline(always)]
fn add_step<S: Simd, const N: usize, const V: usize>(
    simd: S,
    sums: &mut Sums<S, N, V>,
    x: &Step<N>,
    w: &[[S::f32s; STEP]; V],
) {
    for c in 0..STEP {
        for n in 0..N {
            let x = simd.splat_f32s(x[c][n]);
            for v in 0..V {
                sums[n][v][c % 2] = simd.mul_add_f32s(w[v][c], x, sums[n][v][c % 2]);
            }
        }
    }
}

/// Vector `v` of a line.
#[inline(always)]
fn word<S: Simd>(line: &Line, v: usize) -> S::u32s {
    S::as_simd_u32s(&line.0).0[v]
}

/// How words are widened and summed.
trait Words {
    /// Vector `v` of a step's lines as four columns.
    fn widen<S: Simd>(simd: S, lines: &[Line], v: usize) -> [S::f32s; STEP];

    /// Lines of a step.
    const LINES: usize;

    /// The sums over all columns, for V vectors of every line from `first` on.
    #[inline(always)]
    fn sums<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        lines: &[Line],
        first: usize,
    ) -> [[S::f32s; V]; N] {
        let zero = simd.splat_f32s(0.0);
        let mut sums: Sums<S, N, V> = [[[zero; 2]; V]; N];
        for (x, lines) in x.iter().zip(lines.chunks_exact(Self::LINES)) {
            let mut w = [[zero; STEP]; V];
            for (v, w) in w.iter_mut().enumerate() {
                *w = Self::widen(simd, lines, first + v);
            }
            add_step::<S, N, V>(simd, &mut sums, x, &w);
        }
        let mut out = [[zero; V]; N];
        for n in 0..N {
            for v in 0..V {
                out[n][v] = simd.add_f32s(sums[n][v][0], sums[n][v][1]);
            }
        }
        out
    }
}

struct F32;

impl Words for F32 {
    const LINES: usize = STEP;

    #[inline(always)]
    fn widen<S: Simd>(simd: S, lines: &[Line], v: usize) -> [S::f32s; STEP] {
        [
            simd.transmute_f32s_u32s(word::<S>(&lines[0], v)),
            simd.transmute_f32s_u32s(word::<S>(&lines[1], v)),
            simd.transmute_f32s_u32s(word::<S>(&lines[2], v)),
            simd.transmute_f32s_u32s(word::<S>(&lines[3], v)),
        ]
    }
}

struct Bf16;

impl Words for Bf16 {
    const LINES: usize = STEP / 2;

    #[inline(always)]
    fn widen<S: Simd>(simd: S, lines: &[Line], v: usize) -> [S::f32s; STEP] {
        let (half, high) = (simd.splat_u32s(16), simd.splat_u32s(0xffff_0000));
        let (a, b) = (word::<S>(&lines[0], v), word::<S>(&lines[1], v));
        [
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(a, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(a, high)),
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(b, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(b, high)),
        ]
    }
}

struct F16;

impl F16 {
    /// From the exponent and fraction in their places in an f32, which make the number times 2^-112, subnormals
    /// included, and the sign in its.
    #[inline(always)]
    fn number<S: Simd>(simd: S, moved: S::u32s, signed: S::u32s) -> S::f32s {
        let (bits, sign) = (simd.splat_u32s(0x0fff_e000), simd.splat_u32s(1 << 31));
        let scale = simd.splat_f32s(f32::from_bits((127 + 112) << 23));
        let size = simd.mul_f32s(simd.transmute_f32s_u32s(simd.and_u32s(moved, bits)), scale);
        simd.transmute_f32s_u32s(simd.or_u32s(simd.transmute_u32s_f32s(size), simd.and_u32s(signed, sign)))
    }

    #[inline(always)]
    fn pair<S: Simd>(simd: S, w: S::u32s) -> [S::f32s; 2] {
        let up = simd.wrapping_dyn_shl_u32s(w, simd.splat_u32s(13));
        let half = simd.wrapping_dyn_shl_u32s(w, simd.splat_u32s(16));
        let down = simd.wrapping_dyn_shr_u32s(w, simd.splat_u32s(3));
        [Self::number(simd, up, half), Self::number(simd, down, w)]
    }
}

impl Words for F16 {
    const LINES: usize = STEP / 2;

    #[inline(always)]
    fn widen<S: Simd>(simd: S, lines: &[Line], v: usize) -> [S::f32s; STEP] {
        let [a, b] = Self::pair(simd, word::<S>(&lines[0], v));
        let [c, d] = Self::pair(simd, word::<S>(&lines[1], v));
        [a, b, c, d]
    }
}

struct Q8;

impl Words for Q8 {
    const LINES: usize = 1;

    #[inline(always)]
    fn widen<S: Simd>(simd: S, lines: &[Line], v: usize) -> [S::f32s; STEP] {
        // A byte b under the exponent of 2^23 is the number 2^23 + b.
        let (byte, exponent) = (simd.splat_u32s(0xff), simd.splat_u32s(0x4b00_0000));
        let offset = simd.splat_f32s(8_388_608.0 + 128.0);
        let w = word::<S>(&lines[0], v);
        let mut out = [offset; STEP];
        for (c, out) in out.iter_mut().enumerate() {
            let q = simd.and_u32s(simd.wrapping_dyn_shr_u32s(w, simd.splat_u32s(8 * c as u32)), byte);
            *out = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(q, exponent)), offset);
        }
        out
    }

    #[inline(always)]
    fn sums<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        lines: &[Line],
        first: usize,
    ) -> [[S::f32s; V]; N] {
        let zero = simd.splat_f32s(0.0);
        let mut out = [[zero; V]; N];
        let blocks = x.as_chunks::<{ SCALED / STEP }>().0.iter().zip(lines.as_chunks::<Q8_LINES>().0);
        for (x, lines) in blocks {
            let mut sums: Sums<S, N, V> = [[[zero; 2]; V]; N];
            for (x, line) in x.iter().zip(lines) {
                let mut w = [[zero; STEP]; V];
                for (v, w) in w.iter_mut().enumerate() {
                    *w = Self::widen(simd, std::slice::from_ref(line), first + v);
                }
                add_step::<S, N, V>(simd, &mut sums, x, &w);
            }
            for v in 0..V {
                let scale = simd.transmute_f32s_u32s(word::<S>(&lines[Q8_LINES - 1], first + v));
                for n in 0..N {
                    let block = simd.add_f32s(sums[n][v][0], sums[n][v][1]);
                    out[n][v] = simd.mul_add_f32s(block, scale, out[n][v]);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests;
