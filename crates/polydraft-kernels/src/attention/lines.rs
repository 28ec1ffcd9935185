//! Storage of KV cache pages in f32 or f16. All arithmetic is in f32: f16 is widened when read.

use std::fmt;
use std::str::FromStr;

use half::f16;

use crate::error::Result;
use crate::fetch::PrefetchSlice;
use crate::halves::f16_to_f32;

/// Number of slots of a page of the KV cache, and of numbers in a `Line`.
pub const PAGE_SLOTS: usize = 32;

/// Number type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// 32 bits, without rounding.
    #[default]
    F32,
    /// 16 bits, rounded to nearest and clamped to ±65,504. Halves the memory, and the time to read
    /// a long sequence. Sampling is then exact for the model with the rounded KV cache.
    F16,
}

impl CacheType {
    /// All types.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// Returns the name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Returns the number of bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CacheType {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|cache_type| cache_type.name() == name)
            .ok_or_else(|| format!("expected f32 or f16, got {name:?}"))
    }
}

/// 32 numbers, aligned to a cache line, so that no vector straddles two lines.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line<T = f32>(pub [T; PAGE_SLOTS]);

/// Lines of a page.
#[derive(Debug, Clone)]
pub(crate) enum Lines {
    Single(Vec<Line>),
    Half(Vec<Line<f16>>),
}

impl Lines {
    /// Allocates lines of zeros.
    pub fn new(cache_type: CacheType, lines: usize) -> Result<Self> {
        Ok(match cache_type {
            CacheType::F32 => Self::Single(zeros(lines)?),
            CacheType::F16 => Self::Half(zeros(lines)?),
        })
    }

    /// Writes a column: number i at `index` in line `first + i`.
    pub fn set_column(&mut self, first: usize, index: usize, numbers: &[f32]) {
        match self {
            Self::Single(lines) => column(&mut lines[first..], index, numbers, |number| number),
            Self::Half(lines) => column(&mut lines[first..], index, numbers, narrow),
        }
    }

    /// Writes contiguous numbers, starting at line `first`.
    pub fn set_row(&mut self, first: usize, numbers: &[f32]) {
        match self {
            Self::Single(lines) => row(&mut lines[first..], numbers, |number| number),
            Self::Half(lines) => row(&mut lines[first..], numbers, narrow),
        }
    }

    /// Returns number `index` of a line.
    pub fn get(&self, line: usize, index: usize) -> f32 {
        match self {
            Self::Single(lines) => lines[line].0[index],
            Self::Half(lines) => lines[line].0[index].to_f32(),
        }
    }

    /// Returns the memory of lines `from..from + count`, for prefetching.
    #[inline(always)]
    pub fn prefetch(&self, from: usize, count: usize) -> PrefetchSlice {
        match self {
            Self::Single(lines) => PrefetchSlice::new(&lines[from..from + count]),
            Self::Half(lines) => PrefetchSlice::new(&lines[from..from + count]),
        }
    }

    /// Returns lines `from..from + count` in f32. Lines in f16 are widened into `scratch`.
    #[inline(always)]
    pub fn get_f32<'a>(
        &'a self,
        from: usize,
        count: usize,
        scratch: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        match self {
            Self::Single(lines) => &lines[from..from + count],
            Self::Half(lines) => {
                scratch.resize(scratch.len().max(count), Line::default());
                let wide = &mut scratch[..count];
                for (wide, half) in wide.iter_mut().zip(&lines[from..from + count]) {
                    for (wide, half) in wide.0.iter_mut().zip(&half.0) {
                        *wide = f16_to_f32(half.to_bits());
                    }
                }
                wide
            }
        }
    }
}

fn zeros<T: Copy + Default>(count: usize) -> Result<Vec<Line<T>>>
where
    Line<T>: Default,
{
    let mut lines = Vec::new();
    lines.try_reserve_exact(count)?;
    lines.resize(count, Line::default());
    Ok(lines)
}

fn column<T>(lines: &mut [Line<T>], index: usize, numbers: &[f32], convert: impl Fn(f32) -> T) {
    for (line, number) in lines.iter_mut().zip(numbers) {
        line.0[index] = convert(*number);
    }
}

fn row<T>(lines: &mut [Line<T>], numbers: &[f32], convert: impl Fn(f32) -> T) {
    for (line, numbers) in lines.iter_mut().zip(numbers.chunks(PAGE_SLOTS)) {
        for (stored, number) in line.0.iter_mut().zip(numbers) {
            *stored = convert(*number);
        }
    }
}

/// Rounds to the nearest finite f16. Clamps, because an infinite key or value would make every sum
/// infinite or NaN.
fn narrow(number: f32) -> f16 {
    f16::from_f32(number.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_f16_keeps_f16_and_clamps() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            if half.is_finite() {
                assert_eq!(narrow(half.to_f32()), half);
            }
        }
        assert_eq!(narrow(1e9), f16::MAX);
        assert_eq!(narrow(f32::NEG_INFINITY), f16::MIN);
    }

    #[test]
    fn names_parse_to_their_types() {
        for cache_type in CacheType::ALL {
            assert_eq!(cache_type.to_string().parse(), Ok(cache_type));
        }
        assert_eq!("q8_0".parse::<CacheType>().unwrap_err(), "expected f32 or f16, got \"q8_0\"");
    }
}
