//! The types that the KV cache is stored in, and how its numbers are widened where they are read.
//! All arithmetic is in f32.

use std::fmt;
use std::str::FromStr;

use half::f16;

use crate::error::Result;
use crate::fetch::PrefetchSlice;
use crate::halves::f16_to_f32;

/// Slots of a page of the KV cache; numbers side by side in a `Line`.
pub const PAGE_SLOTS: usize = 32;

/// The type that the KV cache is stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// 32 bits: as they were computed.
    #[default]
    F32,
    /// 16 bits, rounded to nearest, numbers beyond ±65,504 stored as these: half the memory, and
    /// half of the cost of reading a long sequence. The model that is sampled exactly is then the
    /// one with its KV cache so rounded.
    F16,
}

impl CacheType {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::F32, Self::F16];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of a number.
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
            .find(|held| held.name() == name)
            .ok_or_else(|| format!("expected f32 or f16, got {name:?}"))
    }
}

/// Thirty-two numbers; it begins with a cache line, so that no vector lies across two.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line<T = f32>(pub [T; PAGE_SLOTS]);

/// The lines of a page.
#[derive(Debug, Clone)]
pub(crate) enum Numbers {
    Single(Vec<Line>),
    Half(Vec<Line<f16>>),
}

impl Numbers {
    /// Zeros.
    pub fn new(held: CacheType, lines: usize) -> Result<Self> {
        Ok(match held {
            CacheType::F32 => Self::Single(zeros(lines)?),
            CacheType::F16 => Self::Half(zeros(lines)?),
        })
    }

    /// Writes numbers below each other: one into each line from `first` on, at `place`.
    pub fn set_column(&mut self, first: usize, place: usize, numbers: &[f32]) {
        match self {
            Self::Single(lines) => column(&mut lines[first..], place, numbers, |number| number),
            Self::Half(lines) => column(&mut lines[first..], place, numbers, narrow),
        }
    }

    /// Writes numbers side by side, from the beginning of a line on.
    pub fn set_row(&mut self, first: usize, numbers: &[f32]) {
        match self {
            Self::Single(lines) => row(&mut lines[first..], numbers, |number| number),
            Self::Half(lines) => row(&mut lines[first..], numbers, narrow),
        }
    }

    /// Number `place` of a line.
    pub fn get(&self, line: usize, place: usize) -> f32 {
        match self {
            Self::Single(lines) => lines[line].0[place],
            Self::Half(lines) => lines[line].0[place].to_f32(),
        }
    }

    /// These lines as they are stored, to prefetch them.
    #[inline(always)]
    pub fn prefetch(&self, from: usize, count: usize) -> PrefetchSlice {
        match self {
            Self::Single(lines) => PrefetchSlice::new(&lines[from..from + count]),
            Self::Half(lines) => PrefetchSlice::new(&lines[from..from + count]),
        }
    }

    /// These lines in f32, in `room` where they are stored otherwise.
    #[inline(always)]
    pub fn lines<'a>(&'a self, from: usize, count: usize, room: &'a mut Vec<Line>) -> &'a [Line] {
        match self {
            Self::Single(lines) => &lines[from..from + count],
            Self::Half(lines) => {
                room.resize(room.len().max(count), Line::default());
                let wide = &mut room[..count];
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

fn column<T>(lines: &mut [Line<T>], place: usize, numbers: &[f32], held: impl Fn(f32) -> T) {
    for (line, number) in lines.iter_mut().zip(numbers) {
        line.0[place] = held(*number);
    }
}

fn row<T>(lines: &mut [Line<T>], numbers: &[f32], held: impl Fn(f32) -> T) {
    for (line, numbers) in lines.iter_mut().zip(numbers.chunks(PAGE_SLOTS)) {
        for (place, number) in line.0.iter_mut().zip(numbers) {
            *place = held(*number);
        }
    }
}

/// The nearest half; a number beyond all of them is the largest, as an infinite one would spoil
/// every sum.
fn narrow(number: f32) -> f16 {
    f16::from_f32(number.clamp(-f16::MAX.to_f32(), f16::MAX.to_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_stay_what_they_are() {
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
    fn names_are_read_back() {
        for held in CacheType::ALL {
            assert_eq!(held.to_string().parse(), Ok(held));
        }
        assert_eq!("q8_0".parse::<CacheType>().unwrap_err(), "expected f32 or f16, got \"q8_0\"");
    }
}
