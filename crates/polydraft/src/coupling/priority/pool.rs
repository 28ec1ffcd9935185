//! Light tokens, pooled by the ratios of target and draft.
//!
//! Problem: tokens that carry little mass shall share few entries, and as little acceptance as
//! wanted shall be lost by that.
//! Source: ours. Every cell of a coarse grid of ratios (`grid`) may be cut into 2^b equal parts,
//! each cell by its own b. Both ends of a part are knots, and a knot is one entry.
//! Complexity: constant per token; a walk over the knots to see what may be lost.
//! Deviations: none.

use super::grid::{Cell, Grid, Place};
use super::profile::Profile;

/// Cells per octave, as a power of two, and the smallest ratio with a cell of its own: the table of
/// the first pass stays in the first-level cache.
const COARSE_BITS: u32 = 3;
const LOWEST: f64 = 1.0 / (1 << 24) as f64;
/// A single doubtful cell is cut into 2^7 parts at least, several into as many together.
const FINE_BITS: u32 = 7;
/// Parts that all cut cells together may have, unless tokens are many more.
const MOST_PARTS: usize = 1024;
/// By how many bits a cell may be cut at once: more parts than there ever are.
const MOST_BITS: u32 = 30;

/// What lies below a cell: its length and demand, and how many of the tokens that are handled one
/// by one.
#[derive(Debug, Clone, Copy, Default)]
struct Below {
    length: f64,
    demand: f64,
    individuals: usize,
}

/// What is known of D inside a coarse cell.
#[derive(Debug, Clone, Copy)]
struct Peak {
    /// The largest D of the knots; where there is nothing pooled, none.
    height: f64,
    /// The largest product of length and width of a part.
    widest: f64,
}

/// A token that is handled one by one: its ratio and its length.
pub(super) type Individual = (f64, f64);

/// Tokens pooled on a grid, and the entry of each knot.
#[derive(Debug)]
pub(super) struct Pool {
    pub grid: Grid,
    /// By coarse cell: the number of its first part, and last the number of parts.
    starts: Vec<u32>,
    /// How many parts it has, a power of two.
    parts: Vec<f64>,
    /// By part.
    cells: Vec<Cell>,
    /// By knot: the lower end of each part, and the upper end of the last one.
    pub entries: Vec<u32>,
    /// What lies below each coarse cell.
    below: Vec<Below>,
    /// The largest D that is sure to be reached.
    known: f64,
    /// Of each coarse cell.
    peaks: Vec<Peak>,
    /// Bits by which the last cut has cut each coarse cell.
    bits: Vec<u32>,
    spare: Vec<Cell>,
}

impl Pool {
    pub fn new() -> Self {
        Self {
            grid: Grid::new(COARSE_BITS, LOWEST, 1.0),
            starts: Vec::new(),
            parts: Vec::new(),
            cells: Vec::new(),
            entries: Vec::new(),
            below: Vec::new(),
            known: 0.0,
            peaks: Vec::new(),
            bits: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Empties the pool, for ratios up to `high`.
    pub fn reset(&mut self, high: f64) {
        self.grid = Grid::new(COARSE_BITS, LOWEST, high);
        let coarse = self.grid.cells();
        self.starts.clear();
        self.starts.extend(0..=coarse as u32);
        self.parts.clear();
        self.parts.resize(coarse, 1.0);
        self.cells.clear();
        self.cells.resize(coarse, Cell::default());
        self.entries.clear();
    }

    /// Adds a table of cells to the uncut pool's.
    pub fn add_table(&mut self, table: &[Cell]) {
        self.cells.iter_mut().zip(table).for_each(|(cell, more)| *cell = cell.plus(*more));
    }

    /// The part that holds a place, and how far in it that is, in [0, 1).
    #[inline(always)]
    pub fn part(&self, (cell, fraction): Place) -> (usize, f64) {
        let within = fraction * self.parts[cell as usize];
        let part = within as u32;
        ((self.starts[cell as usize] + part) as usize, within - f64::from(part))
    }

    /// The number of the first knot of a coarse cell.
    #[inline(always)]
    pub fn first_knot(&self, cell: usize) -> usize {
        self.starts[cell] as usize
    }

    /// Adds tokens to a part.
    #[inline(always)]
    pub fn add(&mut self, place: Place, length: f64) {
        let (part, fraction) = self.part(place);
        self.cells[part].add(length, fraction);
    }

    /// Whether the last cut has cut a coarse cell.
    #[inline(always)]
    pub fn is_open(&self, cell: u64) -> bool {
        self.bits[cell as usize] > 0
    }

    /// Where a coarse cell begins, and how wide each of its parts is. Both are exact, and so are
    /// the ends of parts: they have few leading bits.
    fn parts_of(&self, cell: usize) -> (f64, f64) {
        let (low, parts) = (self.grid.knot(cell), self.parts[cell]);
        let width = self.grid.knot(cell + 1) - low;
        (low, if parts > 1.0 { width / parts } else { width })
    }

    /// All knots in order: ratio and length.
    pub fn knots(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let coarse = self.grid.cells();
        let own = (0..coarse).flat_map(move |cell| {
            let (low, width) = self.parts_of(cell);
            let parts = self.starts[cell] as usize..self.starts[cell + 1] as usize;
            parts.zip(0_u32..).map(move |(part, index)| (part, low + width * f64::from(index)))
        });
        let last = std::iter::once((self.cells.len(), self.grid.knot(coarse)));
        own.chain(last).map(|(knot, ratio)| {
            let upper = if knot == 0 { 0.0 } else { self.cells[knot - 1].upper };
            (ratio, upper + self.cells.get(knot).map_or(0.0, |cell| cell.lower()))
        })
    }

    /// Looks at D along all coarse cells, which are not cut. `individuals` have rising ratios.
    pub fn look(&mut self, profile: &impl Profile, individuals: &[Individual]) {
        self.known = 0.0;
        self.below.clear();
        self.peaks.clear();
        let mut below = Below::default();
        for cell in 0..self.grid.cells() {
            self.below.push(below);
            let (after, peak) = self.walk(profile, individuals, cell, below);
            below = after;
            self.peaks.push(peak);
        }
    }

    /// Walks through one coarse cell: what lies below its end, and its peak.
    fn walk(
        &mut self,
        profile: &impl Profile,
        individuals: &[Individual],
        cell: usize,
        mut below: Below,
    ) -> (Below, Peak) {
        let parts = self.starts[cell] as usize..self.starts[cell + 1] as usize;
        let mut found = Peak { height: f64::NEG_INFINITY, widest: 0.0 };
        let (start, width) = self.parts_of(cell);
        for (part, index) in parts.zip(0_u32..) {
            let own = self.cells[part];
            let next = individuals.get(below.individuals);
            if own.length <= 0.0
                && next.is_none_or(|next| next.0 >= start + width * self.parts[cell])
            {
                continue;
            }
            let (low, high) =
                (start + width * f64::from(index), start + width * f64::from(index + 1));
            let mut peak = f64::NEG_INFINITY;
            if own.length > 0.0 {
                below.length += own.lower();
                below.demand += own.lower() * low;
                peak = profile.below(below.length) - below.demand;
            }
            while let Some(&(ratio, length)) =
                individuals.get(below.individuals).filter(|(ratio, _)| *ratio < high)
            {
                below.length += length;
                below.demand += length * ratio;
                below.individuals += 1;
                peak = peak.max(profile.below(below.length) - below.demand);
            }
            below.length += own.upper;
            below.demand += own.upper * high;
            if peak > f64::NEG_INFINITY {
                let lost = own.most_lost(width);
                let end = profile.below(below.length) - below.demand;
                self.known = self.known.max(end).max(peak - lost);
                if own.length > 0.0 {
                    found.height = found.height.max(peak);
                    found.widest = found.widest.max(own.length * width);
                }
            }
        }
        (below, found)
    }

    /// Looks again at the coarse cells that were cut, whose tokens were added anew.
    pub fn look_again(&mut self, profile: &impl Profile, individuals: &[Individual]) {
        for cell in 0..self.grid.cells() {
            if self.bits[cell] > 0 {
                self.peaks[cell] = self.walk(profile, individuals, cell, self.below[cell]).1;
            }
        }
    }

    /// Cuts the coarse cells inside of which more than `negligible` of D may be due to pooling.
    /// They are empty then: their tokens are to be added anew. Returns the ratios where the first
    /// of them begins and the last ends; none if there is no such cell.
    ///
    /// # Errors
    /// More parts than are worth it for `tokens` tokens.
    pub fn cut(
        &mut self,
        spread: Spread,
        negligible: f64,
        tokens: usize,
    ) -> Result<Option<(f64, f64)>, TooFine> {
        let least = self.known + negligible;
        let doubtful = |peak: &Peak| peak.height > least;
        let Some(first) = self.peaks.iter().position(doubtful) else { return Ok(None) };
        let last = self.peaks.iter().rposition(doubtful).unwrap_or(first);
        let count = self.peaks.iter().filter(|peak| doubtful(peak)).count();
        let bits = |peak: &Peak| {
            let bits = match spread {
                // A part half as wide loses a quarter; one bit more to be on the safe side.
                Spread::Even => 1.0 + 0.5 * ((peak.height - self.known) / negligible).log2(),
                // Of length and width it loses a quarter of the product at most.
                Spread::Any => (0.25 * peak.widest / negligible).log2(),
            };
            (bits.ceil() as u32).clamp(1, MOST_BITS).max(FINE_BITS.saturating_sub(count.ilog2()))
        };
        self.bits.clear();
        self.bits.extend(self.peaks.iter().map(|p| if doubtful(p) { bits(p) } else { 0 }));
        let cut = self.bits.iter().zip(&self.parts).filter(|(bits, _)| **bits > 0);
        let total: f64 = cut.map(|(&bits, parts)| parts * f64::from(1_u32 << bits)).sum();
        if total > MOST_PARTS.max(tokens / 4) as f64 {
            return Err(TooFine);
        }
        self.renumber();
        Ok(Some((self.grid.knot(first), self.grid.knot(last + 1))))
    }

    /// Numbers all parts after some cells were cut.
    fn renumber(&mut self) {
        std::mem::swap(&mut self.cells, &mut self.spare);
        self.cells.clear();
        let mut old = 0;
        for (cell, &bits) in self.bits.iter().enumerate() {
            let end = self.starts[cell + 1] as usize;
            self.starts[cell] = self.cells.len() as u32;
            if bits > 0 {
                self.parts[cell] *= f64::from(1_u32 << bits);
                let parts = self.cells.len() + self.parts[cell] as usize;
                self.cells.resize(parts, Cell::default());
            } else {
                self.cells.extend_from_slice(&self.spare[old..end]);
            }
            old = end;
        }
        if let Some(last) = self.starts.last_mut() {
            *last = self.cells.len() as u32;
        }
    }
}

/// How the tokens of a cell are taken to lie in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spread {
    Even,
    /// As is worst.
    Any,
}

/// So many parts that handling tokens one by one is no dearer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TooFine;
