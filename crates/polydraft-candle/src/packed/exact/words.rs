//! How numbers of 32, 16 and 8 bits lie in words, and how they are widened to f32.

use half::{bf16, f16};
use pulp::Simd;

use super::super::blocks::{Q8_0, widened};
use super::super::fetch::fetch;
use super::super::tiles::{Fill, Piece, Read, TILE};
use super::{STEP, Step};

/// Sums over columns in their order, which is thus the same for every N and V.
pub(super) type Sums<S, const N: usize, const V: usize> = [[<S as Simd>::f32s; V]; N];

// Below there are loops where closures would be shorter: a closure is a function of its own, which the compiler does not
// give the processor's vectors.

#[inline(always)]
pub(super) fn add_step<S: Simd, const N: usize, const V: usize>(
    simd: S,
    sums: &mut Sums<S, N, V>,
    x: &Step<N>,
    w: &[[S::f32s; STEP]; V],
) {
    for c in 0..STEP {
        for n in 0..N {
            let x = simd.splat_f32s(x[c][n]);
            for v in 0..V {
                sums[n][v] = simd.mul_add_f32s(w[v][c], x, sums[n][v]);
            }
        }
    }
}

/// Vector `v` of a tile's words.
#[inline(always)]
pub(super) fn word<S: Simd>(words: &[u32; TILE], v: usize) -> S::u32s {
    S::as_simd_u32s(words).0[v]
}

/// How words are widened and summed.
pub(in super::super) trait Words: Piece {
    /// The sums over all columns, for V vectors of a tile's rows from `first` on.
    fn sums<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
    ) -> Sums<S, N, V>;
}

/// The sums where pieces are steps.
#[inline(always)]
fn steps<S: Simd, W: Widen, const N: usize, const V: usize>(
    simd: S,
    x: &[Step<N>],
    w: &[W],
    first: usize,
) -> Sums<S, N, V> {
    let zero = simd.splat_f32s(0.0);
    let mut sums: Sums<S, N, V> = [[zero; V]; N];
    for (x, w) in x.iter().zip(w) {
        if first == 0 {
            fetch(w);
        }
        let mut wide = [[zero; STEP]; V];
        for (v, wide) in wide.iter_mut().enumerate() {
            *wide = w.widen(simd, first + v);
        }
        add_step::<S, N, V>(simd, &mut sums, x, &wide);
    }
    sums
}

trait Widen: Piece {
    /// Vector `v` of the rows as four columns.
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP];
}

/// Four columns, one number a word.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct F32([[u32; TILE]; STEP]);

/// Four columns, two numbers a word.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct Bf16([[u32; TILE]; STEP / 2]);

/// As [`Bf16`].
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(in super::super) struct F16([[u32; TILE]; STEP / 2]);

impl Piece for F32 {
    const COLUMNS: usize = STEP;
    const ZERO: Self = Self([[0; TILE]; STEP]);

    fn get(&self, row: usize, values: &mut [f32]) {
        for (words, value) in self.0.iter().zip(values) {
            *value = f32::from_bits(words[row]);
        }
    }
}

impl Fill for F32 {
    type Value = f32;

    fn read<E>(rows: &impl Read<E>, first: usize, values: &mut [f32]) -> Result<(), E> {
        rows.f32(first, values)
    }

    #[inline(always)]
    fn set(&mut self, row: usize, values: &[f32]) {
        for (words, value) in self.0.iter_mut().zip(values) {
            words[row] = value.to_bits();
        }
    }
}

macro_rules! sixteen {
    ($piece:ident, $value:ty, $read:ident) => {
        impl Piece for $piece {
            const COLUMNS: usize = STEP;
            const ZERO: Self = Self([[0; TILE]; STEP / 2]);

            fn get(&self, row: usize, values: &mut [f32]) {
                for (column, value) in values.iter_mut().enumerate() {
                    let bits = (self.0[column / 2][row] >> (16 * (column % 2))) as u16;
                    *value = <$value>::from_bits(bits).to_f32();
                }
            }
        }

        impl Fill for $piece {
            type Value = $value;

            fn read<E>(rows: &impl Read<E>, first: usize, values: &mut [$value]) -> Result<(), E> {
                rows.$read(first, values)
            }

            #[inline(always)]
            fn set(&mut self, row: usize, values: &[$value]) {
                for (column, value) in values.iter().enumerate() {
                    self.0[column / 2][row] |= u32::from(value.to_bits()) << (16 * (column % 2));
                }
            }
        }
    };
}
sixteen!(Bf16, bf16, bf16);
sixteen!(F16, f16, f16);

macro_rules! in_steps {
    ($($piece:ty),*) => {$(
        impl Words for $piece {
            #[inline(always)]
            fn sums<S: Simd, const N: usize, const V: usize>(
                simd: S,
                x: &[Step<N>],
                w: &[Self],
                first: usize,
            ) -> Sums<S, N, V> {
                steps(simd, x, w, first)
            }
        }
    )*};
}
in_steps!(F32, Bf16, F16);

impl Widen for F32 {
    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP] {
        [
            simd.transmute_f32s_u32s(word::<S>(&self.0[0], v)),
            simd.transmute_f32s_u32s(word::<S>(&self.0[1], v)),
            simd.transmute_f32s_u32s(word::<S>(&self.0[2], v)),
            simd.transmute_f32s_u32s(word::<S>(&self.0[3], v)),
        ]
    }
}

impl Widen for Bf16 {
    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP] {
        let (half, high) = (simd.splat_u32s(16), simd.splat_u32s(0xffff_0000));
        let (a, b) = (word::<S>(&self.0[0], v), word::<S>(&self.0[1], v));
        [
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(a, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(a, high)),
            simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(b, half)),
            simd.transmute_f32s_u32s(simd.and_u32s(b, high)),
        ]
    }
}

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

impl Widen for F16 {
    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, v: usize) -> [S::f32s; STEP] {
        let [a, b] = Self::pair(simd, word::<S>(&self.0[0], v));
        let [c, d] = Self::pair(simd, word::<S>(&self.0[1], v));
        [a, b, c, d]
    }
}

/// Vector `v` of words of four integers, widened.
#[inline(always)]
fn integers<S: Simd>(simd: S, words: &[u32; TILE], v: usize) -> [S::f32s; STEP] {
    // A byte b of 128 + q, under the exponent of 2^23, is the number 2^23 + b.
    let (byte, exponent) = (simd.splat_u32s(0xff), simd.splat_u32s(0x4b00_0000));
    let offset = simd.splat_f32s(8_388_608.0 + 128.0);
    let w = simd.xor_u32s(word::<S>(words, v), simd.splat_u32s(0x8080_8080));
    let mut out = [offset; STEP];
    for (c, out) in out.iter_mut().enumerate() {
        let q = simd.and_u32s(simd.wrapping_dyn_shr_u32s(w, simd.splat_u32s(8 * c as u32)), byte);
        *out = simd.sub_f32s(simd.transmute_f32s_u32s(simd.or_u32s(q, exponent)), offset);
    }
    out
}

impl Words for Q8_0 {
    #[inline(always)]
    fn sums<S: Simd, const N: usize, const V: usize>(
        simd: S,
        x: &[Step<N>],
        w: &[Self],
        first: usize,
    ) -> Sums<S, N, V> {
        let zero = simd.splat_f32s(0.0);
        let mut out = [[zero; V]; N];
        for (x, w) in x.as_chunks::<{ Q8_0::COLUMNS / STEP }>().0.iter().zip(w) {
            if first == 0 {
                fetch(w);
            }
            let mut sums: Sums<S, N, V> = [[zero; V]; N];
            for (x, words) in x.iter().zip(&w.numbers) {
                let mut wide = [[zero; STEP]; V];
                for (v, wide) in wide.iter_mut().enumerate() {
                    *wide = integers(simd, words, first + v);
                }
                add_step::<S, N, V>(simd, &mut sums, x, &wide);
            }
            let mut scales = [0f32; TILE];
            for (scale, half) in scales.iter_mut().zip(&w.scales) {
                *scale = widened(*half);
            }
            for v in 0..V {
                let scale = S::as_simd_f32s(&scales).0[first + v];
                for n in 0..N {
                    out[n][v] = simd.mul_add_f32s(sums[n][v], scale, out[n][v]);
                }
            }
        }
        out
    }
}
