//! Rotary embedding: rotation angles of the tokens of a pass.

use polydraft_kernels::{rotate, rotate_neighbours};

use crate::config::{Frequencies, RotaryPairs};

/// Cosines and sines of the angles of every token of a pass.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Angles per token.
    count: usize,
    pairs: RotaryPairs,
}

impl Angles {
    fn new(positions: &[usize], Frequencies { values, amplitude, pairs }: &Frequencies) -> Self {
        let angles = || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
        let cos: Vec<f32> = angles().map(|a| (amplitude * a.cos()) as f32).collect();
        let sin = angles().map(|a| (amplitude * a.sin()) as f32).collect();
        Self { cos, sin, count: values.len(), pairs: *pairs }
    }

    /// Rotates heads of `head` numbers by the angles of the token at `row`. With fewer than `head /
    /// 2` angles only the first numbers of each head are rotated.
    pub fn rotate(&self, row: usize, heads: &mut [f32], head: usize) {
        let range = row * self.count..(row + 1) * self.count;
        let (cos, sin) = (&self.cos[range.clone()], &self.sin[range]);
        let rotate = match self.pairs {
            RotaryPairs::Halves => rotate,
            RotaryPairs::Neighbours => rotate_neighbours,
        };
        if 2 * self.count == head {
            return rotate(heads, cos, sin);
        }
        heads.chunks_exact_mut(head).for_each(|head| rotate(&mut head[..2 * self.count], cos, sin));
    }
}

/// Angles of all tokens of a pass, computed once for all layers. They are computed anew for the few
/// positions of a pass, so that a long context needs no table.
#[derive(Debug)]
pub(crate) struct Rotations {
    all: Option<Angles>,
    /// Angles in sliding-window layers, if they differ.
    windowed: Option<Angles>,
}

impl Rotations {
    /// No rotation: models with learned positions.
    pub const NONE: Self = Self { all: None, windowed: None };

    /// Angles at these positions; `windowed` are the frequencies of sliding-window layers, if they
    /// differ.
    pub fn new(positions: &[usize], all: &Frequencies, windowed: Option<&Frequencies>) -> Self {
        let angles = |frequencies: &Frequencies| Angles::new(positions, frequencies);
        Self { all: Some(angles(all)), windowed: windowed.map(angles) }
    }

    /// Angles of a layer with or without a sliding window; `None` without rotary embedding.
    pub fn angles(&self, windowed: bool) -> Option<&Angles> {
        self.windowed.as_ref().filter(|_| windowed).or(self.all.as_ref())
    }
}
