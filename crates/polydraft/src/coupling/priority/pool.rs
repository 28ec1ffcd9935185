//! Pooling of tokens of small probability by their ratios of target and draft.
//!
//! Problem: tokens that carry little mass share few entries, at a bounded loss of acceptance.
//! Source: ours. Every cell of a coarse grid of ratios (`grid`) may be cut into 2^b equal parts,
//! with its own b. Both ends of a part are knots, and a knot is one entry. D at a knot is the mass
//! of the priorities up to it less the demands up to it; the acceptance is 1 − max D (`plan`).
//! Complexity: constant per token; one walk over the knots to bound the loss.
//! Deviations: none.

use super::grid::{Cell, CellPosition, Grid};
use super::profile::Profile;

/// Cells per octave, as a power of two, and the smallest ratio with a cell of its own: the table of
/// the first pass fits the L1 cache.
const COARSE_BITS: u32 = 3;
const LOWEST_RATIO: f64 = 1.0 / (1 << 24) as f64;
/// If a single cell needs cutting, it is cut into at least 2^7 parts; if several do, they have
/// about as many in total.
const FINE_BITS: u32 = 7;
/// Maximum total number of parts of the cut cells, unless there are many more tokens.
const MAX_PARTS: usize = 1024;
/// Maximum number of bits by which a cell is cut at once; the limit on the number of parts is
/// reached before.
const MAX_BITS: u32 = 30;

/// Totals below a cell: length, demand, and number of individually handled tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    length: f64,
    demand: f64,
    individuals: usize,
}

/// Bounds of D inside a coarse cell.
#[derive(Debug, Clone, Copy)]
struct Peak {
    /// The largest D at the knots; −∞ if no token is pooled in the cell.
    height: f64,
    /// The largest product of length and width of a part.
    widest: f64,
}

/// An individually handled token: its ratio and its length.
pub(super) type Individual = (f64, f64);

/// Tokens pooled on a grid, and the entry of each knot.
#[derive(Debug)]
pub(super) struct Pool {
    pub grid: Grid,
    /// Index of the first part of each coarse cell, and the total number of parts at the end.
    starts: Vec<u32>,
    /// Number of parts of each coarse cell, a power of two.
    parts: Vec<f64>,
    /// The cell of each part.
    cells: Vec<Cell>,
    /// Entry of each knot: the lower end of each part, and the upper end of the last one.
    pub entries: Vec<u32>,
    /// Totals below each coarse cell.
    below: Vec<Totals>,
    /// Lower bound of the maximum of D.
    lower_bound: f64,
    /// Bounds of D inside each coarse cell.
    peaks: Vec<Peak>,
    /// Bits by which the last cut divided each coarse cell.
    bits: Vec<u32>,
    spare: Vec<Cell>,
}

impl Pool {
    pub fn new() -> Self {
        Self {
            grid: Grid::new(COARSE_BITS, LOWEST_RATIO, 1.0),
            starts: Vec::new(),
            parts: Vec::new(),
            cells: Vec::new(),
            entries: Vec::new(),
            below: Vec::new(),
            lower_bound: 0.0,
            peaks: Vec::new(),
            bits: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Empties the pool, for ratios up to `high`.
    pub fn reset(&mut self, high: f64) {
        self.grid = Grid::new(COARSE_BITS, LOWEST_RATIO, high);
        let coarse = self.grid.cells();
        self.starts.clear();
        self.starts.extend(0..=coarse as u32);
        self.parts.clear();
        self.parts.resize(coarse, 1.0);
        self.cells.clear();
        self.cells.resize(coarse, Cell::default());
        self.entries.clear();
    }

    /// Adds a table of cells to the pool, which must be uncut.
    pub fn add_table(&mut self, table: &[Cell]) {
        self.cells.iter_mut().zip(table).for_each(|(cell, more)| *cell = cell.plus(*more));
    }

    /// The part at a position, and the fraction within it, in [0, 1).
    #[inline(always)]
    pub fn part(&self, (cell, fraction): CellPosition) -> (usize, f64) {
        let within = fraction * self.parts[cell as usize];
        let part = within as u32;
        ((self.starts[cell as usize] + part) as usize, within - f64::from(part))
    }

    /// Index of the first knot of a coarse cell.
    #[inline(always)]
    pub fn first_knot(&self, cell: usize) -> usize {
        self.starts[cell] as usize
    }

    /// Adds length at a position.
    #[inline(always)]
    pub fn add(&mut self, position: CellPosition, length: f64) {
        let (part, fraction) = self.part(position);
        self.cells[part].add(length, fraction);
    }

    /// True if the last cut divided this coarse cell.
    #[inline(always)]
    pub fn was_cut(&self, cell: u64) -> bool {
        self.bits[cell as usize] > 0
    }

    /// Start of a coarse cell, and width of each of its parts. Both are exact, and so are the ends
    /// of parts: they have few leading bits.
    fn parts_of(&self, cell: usize) -> (f64, f64) {
        let (low, parts) = (self.grid.knot(cell), self.parts[cell]);
        let width = self.grid.knot(cell + 1) - low;
        (low, if parts > 1.0 { width / parts } else { width })
    }

    /// The ratio and length of all knots, in order.
    pub fn knots(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let coarse = self.grid.cells();
        let lower_ends = (0..coarse).flat_map(move |cell| {
            let (low, width) = self.parts_of(cell);
            let parts = self.starts[cell] as usize..self.starts[cell + 1] as usize;
            parts.zip(0_u32..).map(move |(part, index)| (part, low + width * f64::from(index)))
        });
        let last = std::iter::once((self.cells.len(), self.grid.knot(coarse)));
        lower_ends.chain(last).map(|(knot, ratio)| {
            let upper = if knot == 0 { 0.0 } else { self.cells[knot - 1].upper };
            (ratio, upper + self.cells.get(knot).map_or(0.0, |cell| cell.lower()))
        })
    }

    /// Computes bounds of D in all coarse cells, which must be uncut. `individuals` have rising
    /// ratios.
    pub fn bound(&mut self, profile: &impl Profile, individuals: &[Individual]) {
        self.lower_bound = 0.0;
        self.below.clear();
        self.peaks.clear();
        let mut below = Totals::default();
        for cell in 0..self.grid.cells() {
            self.below.push(below);
            let (after, peak) = self.walk(profile, individuals, cell, below);
            below = after;
            self.peaks.push(peak);
        }
    }

    /// Walks through one coarse cell; returns the totals below its end, and its bounds.
    fn walk(
        &mut self,
        profile: &impl Profile,
        individuals: &[Individual],
        cell: usize,
        mut below: Totals,
    ) -> (Totals, Peak) {
        let parts = self.starts[cell] as usize..self.starts[cell + 1] as usize;
        let mut found = Peak { height: f64::NEG_INFINITY, widest: 0.0 };
        let (start, width) = self.parts_of(cell);
        for (part, index) in parts.zip(0_u32..) {
            let pooled = self.cells[part];
            let next = individuals.get(below.individuals);
            if pooled.length <= 0.0
                && next.is_none_or(|next| next.0 >= start + width * self.parts[cell])
            {
                continue;
            }
            let (low, high) =
                (start + width * f64::from(index), start + width * f64::from(index + 1));
            let mut peak = f64::NEG_INFINITY;
            if pooled.length > 0.0 {
                below.length += pooled.lower();
                below.demand += pooled.lower() * low;
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
            below.length += pooled.upper;
            below.demand += pooled.upper * high;
            if peak > f64::NEG_INFINITY {
                let lost = pooled.max_loss(width);
                let end = profile.below(below.length) - below.demand;
                self.lower_bound = self.lower_bound.max(end).max(peak - lost);
                if pooled.length > 0.0 {
                    found.height = found.height.max(peak);
                    found.widest = found.widest.max(pooled.length * width);
                }
            }
        }
        (below, found)
    }

    /// Recomputes the bounds of the coarse cells that were just cut, after their tokens were added
    /// again.
    pub fn bound_cut_cells(&mut self, profile: &impl Profile, individuals: &[Individual]) {
        for cell in 0..self.grid.cells() {
            if self.bits[cell] > 0 {
                self.peaks[cell] = self.walk(profile, individuals, cell, self.below[cell]).1;
            }
        }
    }

    /// Cuts the coarse cells in which pooling may increase D by more than `negligible`. They are
    /// emptied, and their tokens must be added again. Returns the range of ratios from the first to
    /// the last of them; `None` if there is no such cell.
    ///
    /// # Errors
    /// [`TooFine`] if the cut needs more parts than pay off for `tokens` tokens.
    pub fn cut(
        &mut self,
        spread: Spread,
        negligible: f64,
        tokens: usize,
    ) -> Result<Option<(f64, f64)>, TooFine> {
        let threshold = self.lower_bound + negligible;
        let needs_cut = |peak: &Peak| peak.height > threshold;
        let Some(first) = self.peaks.iter().position(needs_cut) else { return Ok(None) };
        let last = self.peaks.iter().rposition(needs_cut).unwrap_or(first);
        let count = self.peaks.iter().filter(|peak| needs_cut(peak)).count();
        let bits = |peak: &Peak| {
            let bits = match spread {
                // Halving the width reduces the loss to a quarter; one additional bit for safety.
                Spread::Even => 1.0 + 0.5 * ((peak.height - self.lower_bound) / negligible).log2(),
                // The loss is at most a quarter of the product of length and width.
                Spread::Any => (0.25 * peak.widest / negligible).log2(),
            };
            (bits.ceil() as u32).clamp(1, MAX_BITS).max(FINE_BITS.saturating_sub(count.ilog2()))
        };
        self.bits.clear();
        self.bits.extend(self.peaks.iter().map(|p| if needs_cut(p) { bits(p) } else { 0 }));
        let cut = self.bits.iter().zip(&self.parts).filter(|(bits, _)| **bits > 0);
        let total: f64 = cut.map(|(&bits, parts)| parts * f64::from(1_u32 << bits)).sum();
        if total > MAX_PARTS.max(tokens / 4) as f64 {
            return Err(TooFine);
        }
        self.renumber();
        Ok(Some((self.grid.knot(first), self.grid.knot(last + 1))))
    }

    /// Renumbers all parts after some cells were cut.
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

/// Assumption about the positions of tokens within a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spread {
    /// Evenly spread.
    Even,
    /// Any positions: the worst case.
    Any,
}

/// Error: a cut needs so many parts that handling all tokens individually is no more expensive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TooFine;
