//! The product of a tile with AMX: matrices of bytes in the processor's own registers, for many rows of x.
//!
//! A matrix of sixteen rows of x by 32 columns times one of 32 columns by sixteen rows of w makes the 256 sums of a block
//! at once. Sums of integers are exact in any order, and what follows them is as in [`super::lanes`]: the same bits.
//! The instructions are written out, since Rust has no stable functions for them.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::super::blocks::{Block, Factors, Numbers};
use super::super::inputs::Input;
use super::super::tiles::TILE;

/// Rows of w in a matrix.
const LANES: usize = 16;
/// Words of a row of a block.
const WORDS: usize = 8;

/// Whether the processor has AMX and the system lets this process use it.
pub(super) fn available() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| super::avx512::available() && has_tiles() && permitted())
}

fn has_tiles() -> bool {
    let leaf = __cpuid_count(7, 0);
    // AMX-TILE and AMX-INT8; and the state is one that the system saves (XTILECFG and XTILEDATA in XCR0).
    let has = leaf.edx >> 24 & 3 == 3;
    // SAFETY: a processor with AVX-512 that is in use has XSAVE in use.
    has && unsafe { saved_states() } >> 17 & 3 == 3
}

#[target_feature(enable = "xsave")]
fn saved_states() -> u64 {
    // SAFETY: register 0 is there where XSAVE is.
    unsafe { _xgetbv(0) }
}

/// Asks the system for the registers, which Linux gives on demand, for the whole process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: a call of the system that reads no memory of ours.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA, out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Shapes of the matrices: their bytes a row, and their rows.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// The 256 sums of a block.
#[repr(C, align(64))]
struct Sums([[i32; LANES]; 16]);

/// Signed numbers of a block of 4 bits, as a block of 8 bits holds them.
#[repr(C, align(64))]
struct Signed([[u32; TILE]; WORDS]);

/// Writes the numbers less their offset.
#[inline(always)]
fn unpack(words: &[[u32; TILE]; 4], offset: i32, out: &mut Signed) {
    let (low, high) = out.0.split_at_mut(WORDS / 2);
    for ((words, low), high) in words.iter().zip(low).zip(high) {
        for lane in 0..TILE {
            // 0 to 15 less an offset, in each byte by itself: the highest bit stops what would be borrowed.
            let less = |fours: u32| ((fours | 0x8080_8080) - offset as u32 * 0x0101_0101) ^ 0x8080_8080;
            low[lane] = less(words[lane] & 0x0f0f_0f0f);
            high[lane] = less(words[lane] >> 4 & 0x0f0f_0f0f);
        }
    }
}

/// Vector `half` of factors.
#[inline(always)]
unsafe fn factor(factors: &Factors, half: usize) -> __m512 {
    // SAFETY: within arrays of `TILE` numbers.
    unsafe {
        let halves =
            |from: &[u16; TILE]| _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().add(half * LANES).cast()));
        match factors {
            Factors::Plain(plain) => halves(plain),
            Factors::Stepped(plain, steps) => {
                let steps = _mm_loadu_si128(steps.as_ptr().add(half * LANES).cast());
                _mm512_mul_ps(halves(plain), _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(steps)))
            }
        }
    }
}

/// # Safety
/// [`available`] holds; `y` has at most 16 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    let rows = y.len();
    assert!(rows <= 16);
    let mut shapes = Shapes { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
    // 0: sums; 1: x; 2: w.
    (shapes.bytes[0], shapes.rows[0]) = (64, rows as u8);
    (shapes.bytes[1], shapes.rows[1]) = (32, rows as u8);
    (shapes.bytes[2], shapes.rows[2]) = (64, WORDS as u8);
    let mut signed = Signed([[0; TILE]; WORDS]);
    let mut sums = Sums([[0; LANES]; 16]);
    // SAFETY: the registers are ours from here to `tilerelease`: nothing else in this thread uses them.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    let mut out = [[_mm512_setzero_ps(); TILE / LANES]; 16];
    for (w, x) in w.iter().zip(x.chunks_exact(rows * B::PARTS)) {
        for (part, x) in x.chunks_exact(rows).enumerate() {
            let words = match w.numbers(part) {
                Numbers::Eight(words) => words,
                Numbers::Four(words) => {
                    unpack(words, B::OFFSET, &mut signed);
                    &signed.0
                }
            };
            for half in 0..TILE / LANES {
                // SAFETY: the matrix of x is `rows` times the 32 bytes an `Input` begins with; that of w eight times 64
                // bytes of the words; the sums have room for `rows` times 64 bytes.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tileloadd tmm1, [{x} + {x_step}]",
                        "tileloadd tmm2, [{w} + {w_step}]",
                        "tdpbssd tmm0, tmm1, tmm2",
                        "tilestored [{sums} + {sums_step}], tmm0",
                        x = in(reg) x.as_ptr(), x_step = in(reg) size_of::<Input>(),
                        w = in(reg) words.as_ptr().cast::<u32>().add(half * LANES),
                        w_step = in(reg) size_of::<[u32; TILE]>(),
                        sums = in(reg) &raw mut sums, sums_step = in(reg) size_of::<[i32; LANES]>(),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, options(nostack),
                    );
                }
                // SAFETY: factors and sums are whole vectors.
                unsafe {
                    let scale = factor(&w.scales(part), half);
                    for n in 0..rows {
                        let s = _mm512_cvtepi32_ps(_mm512_load_si512(sums.0[n].as_ptr().cast()));
                        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x[n].scale));
                        out[n][half] = _mm512_fmadd_ps(s, scale, out[n][half]);
                    }
                    if let Some(minima) = w.minima(part) {
                        let minimum = factor(&minima, half);
                        for n in 0..rows {
                            let sum = _mm512_set1_ps(x[n].sum);
                            out[n][half] = _mm512_fmadd_ps(minimum, sum, out[n][half]);
                        }
                    }
                }
            }
        }
    }
    // SAFETY: as above; from here on the registers are anyone's.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
    for (y, out) in y.iter_mut().zip(&out) {
        for (half, out) in out.iter().enumerate() {
            // SAFETY: a vector within a row of y.
            unsafe { _mm512_storeu_ps(y.as_mut_ptr().add(half * LANES), *out) };
        }
    }
}
