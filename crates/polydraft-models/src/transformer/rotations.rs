//! Rotary embedding: the angles of the tokens of a pass.

use polydraft_kernels::{rotate, rotate_neighbours};

use crate::config::{Frequencies, Pairs};

/// Cosines and sines of every token of a pass.
#[derive(Debug)]
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Of a token.
    count: usize,
    pairs: Pairs,
}

impl Angles {
    fn new(positions: &[usize], Frequencies { values, amplitude, pairs }: &Frequencies) -> Self {
        let angles = || positions.iter().flat_map(|&p| values.iter().map(move |f| p as f64 * f));
        let cos: Vec<f32> = angles().map(|a| (amplitude * a.cos()) as f32).collect();
        let sin = angles().map(|a| (amplitude * a.sin()) as f32).collect();
        Self { cos, sin, count: values.len(), pairs: *pairs }
    }

    /// Turns heads of `head` numbers by the angles of the token at `row`, or the part of them that
    /// there are angles for.
    pub fn turn(&self, row: usize, heads: &mut [f32], head: usize) {
        let own = row * self.count..(row + 1) * self.count;
        let (cos, sin) = (&self.cos[own.clone()], &self.sin[own]);
        let turn = match self.pairs {
            Pairs::Halves => rotate,
            Pairs::Neighbours => rotate_neighbours,
        };
        if 2 * self.count == head {
            return turn(heads, cos, sin);
        }
        heads.chunks_exact_mut(head).for_each(|head| turn(&mut head[..2 * self.count], cos, sin));
    }
}

/// Those of all tokens of a pass, made once for all layers. Angles are computed anew for the few
/// positions of a pass, so that a long context costs no table.
#[derive(Debug)]
pub(crate) struct Rotations {
    all: Option<Angles>,
    /// Those of layers with a window, if others.
    windowed: Option<Angles>,
}

impl Rotations {
    /// Of learned positions there are none.
    pub const NONE: Self = Self { all: None, windowed: None };

    /// `windowed` are the frequencies in layers with a window, if others.
    pub fn new(positions: &[usize], all: &Frequencies, windowed: Option<&Frequencies>) -> Self {
        let angles = |frequencies: &Frequencies| Angles::new(positions, frequencies);
        Self { all: Some(angles(all)), windowed: windowed.map(angles) }
    }

    pub fn of(&self, windowed: bool) -> Option<&Angles> {
        self.windowed.as_ref().filter(|_| windowed).or(self.all.as_ref())
    }
}
