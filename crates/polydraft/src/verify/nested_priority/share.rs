//! The priorities of the paths through one node.
//!
//! Problem: a node's share of [0, 1] is a law of its paths' priority, piecewise uniform. To divide it among next tokens
//! it is laid out as a stretch of length 1, lowest priorities first, whose density is that of the highest of K
//! priorities; and what a token gets of the stretch is a law of the priority again.
//! Source: ours (`super`). Complexity: constant per look-up for the few pieces that occur; logarithmic in general.
//! Deviations: none.

use crate::coupling::priority::shares::{Highest, Profile};
use crate::priorities::Piece;

/// A law of priorities.
#[derive(Debug, Clone, Default)]
pub(super) struct Share {
    /// Disjoint, ascending; the weights sum to 1.
    pieces: Vec<Piece>,
    /// The weight below each piece.
    below: Vec<f64>,
    /// The mean density of the highest priority under this law: probability of being selected per probability of being
    /// drawn.
    mean: f64,
    cut: Vec<Piece>,
}

impl Share {
    /// The root's: all priorities.
    pub fn set_all(&mut self, highest: Highest) {
        self.cut.clear();
        self.cut.push(Piece { start: 0.0, length: 1.0, weight: 1.0 });
        self.finish(highest);
    }

    /// Whether it is all priorities.
    pub fn is_all(&self) -> bool {
        matches!(self.pieces[..], [Piece { start: 0.0, length: 1.0, .. }])
    }

    /// What `parts` of the stretch of `parent` are in terms of priorities.
    pub fn set_part(&mut self, parent: &Self, parts: impl Iterator<Item = Piece>, highest: Highest) {
        self.cut.clear();
        for part in parts {
            let mut from = part.start;
            let mut left = part.length;
            let mut index = parent.locate(from);
            loop {
                let last = index + 1 == parent.pieces.len();
                let piece = parent.pieces[index];
                let inside = if last { left } else { left.min(parent.below[index + 1] - from).max(0.0) };
                let slope = piece.length / piece.weight;
                if inside > 0.0 || last {
                    let weight = if part.length > 0.0 { inside / part.length } else { 1.0 };
                    self.cut.push(Piece {
                        start: piece.start + (from - parent.below[index]) * slope,
                        length: inside * slope,
                        weight: part.weight * weight,
                    });
                }
                left -= inside;
                if last || left <= 0.0 {
                    break;
                }
                index += 1;
                from = parent.below[index];
            }
        }
        self.finish(highest);
    }

    /// Orders and joins the pieces in `cut`, normalises their weights and computes the rest.
    fn finish(&mut self, highest: Highest) {
        self.cut.retain(|piece| piece.weight > 0.0);
        self.cut.sort_unstable_by(|a, b| a.start.total_cmp(&b.start));
        self.pieces.clear();
        for &piece in &self.cut {
            match self.pieces.last_mut() {
                Some(last) if continues(*last, piece) => {
                    last.length += piece.length;
                    last.weight += piece.weight;
                }
                _ => self.pieces.push(piece),
            }
        }
        let total: f64 = self.pieces.iter().map(|piece| piece.weight).sum();
        self.below.clear();
        self.mean = 0.0;
        let mut below = 0.0;
        for piece in &mut self.pieces {
            piece.weight /= total;
            self.below.push(below);
            below += piece.weight;
            self.mean += piece.weight * highest.mean(piece.start, piece.length);
        }
    }

    /// The law of the priority.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().copied()
    }

    /// (highest − lowest density) / mean density of the highest priority.
    pub fn variation(&self, highest: Highest) -> f64 {
        let (Some(first), Some(last)) = (self.pieces.first(), self.pieces.last()) else { return 0.0 };
        (highest.density(last.start + last.length) - highest.density(first.start)) / self.mean
    }

    /// The piece that holds place t of the stretch.
    fn locate(&self, t: f64) -> usize {
        self.below.partition_point(|below| *below <= t).saturating_sub(1)
    }

    /// The stretch.
    pub fn profile(&self, highest: Highest) -> Stretch<'_> {
        Stretch { share: self, highest }
    }
}

/// Whether `next` begins where `piece` ends, with the same density up to rounding.
fn continues(piece: Piece, next: Piece) -> bool {
    let gap = next.start - (piece.start + piece.length);
    gap.abs() <= 1e-15 * next.length.min(piece.length)
        && (piece.weight * next.length - next.weight * piece.length).abs()
            <= 1e-14 * piece.weight * next.length
}

/// A share laid out as a stretch of length and mass 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch<'a> {
    share: &'a Share,
    highest: Highest,
}

impl Stretch<'_> {
    /// The priority at place t, which lies in piece `index`.
    fn priority(&self, index: usize, t: f64) -> f64 {
        let piece = self.share.pieces[index];
        piece.start + (t - self.share.below[index]) * (piece.length / piece.weight)
    }
}

impl Profile for Stretch<'_> {
    fn length(&self) -> f64 {
        1.0
    }

    fn density(&self, t: f64) -> f64 {
        self.highest.density(self.priority(self.share.locate(t), t)) / self.share.mean
    }

    fn mean(&self, start: f64, length: f64) -> f64 {
        if length <= 0.0 {
            return self.density(start);
        }
        let (mut from, mut left, mut mass) = (start, length, 0.0);
        let mut index = self.share.locate(start);
        loop {
            let piece = self.share.pieces[index];
            let last = index + 1 == self.share.pieces.len();
            let inside = if last { left } else { left.min(self.share.below[index + 1] - from).max(0.0) };
            let slope = piece.length / piece.weight;
            mass += inside * self.highest.mean(self.priority(index, from), inside * slope);
            left -= inside;
            if last || left <= 0.0 {
                return mass / length / self.share.mean;
            }
            index += 1;
            from = self.share.below[index];
        }
    }

    fn guess(&self, density: f64) -> f64 {
        let priority = self.highest.guess(density * self.share.mean);
        let index = self.share.pieces.partition_point(|piece| piece.start <= priority).saturating_sub(1);
        let piece = self.share.pieces[index];
        let inside = ((priority - piece.start) / piece.length.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        self.share.below[index] + inside * piece.weight
    }
}
