//! The priorities of all tokens of a draft's support.
//!
//! Problem: see [`super`]. Tokens that carry mass are entries of their own; the rest is pooled on a
//! grid of ratios.
//! Source: ours. Complexity: O(k log k) for k individual tokens; at most two passes over p and q
//! for the others. The acceptance of the pooled form is 1 − max D over its entries. Its curve of D
//! agrees with the exact one at the ends of all cells and lies above it inside, so only the cells
//! in which it exceeds the largest D at any end can cost anything: these get the finer grid of the
//! second pass.

use pulp::{Arch, NullaryFnOnce};

use super::grid::{Cell, Grid};
use super::shares::{Entry, Layout, Profile, Shares};
use crate::priorities::Piece;

/// Cells per octave, as a power of two, and the smallest ratio with a cell of its own: the table of
/// the first pass stays in the first-level cache.
const COARSE_BITS: u32 = 3;
const LOWEST: f64 = 1.0 / (1 << 24) as f64;
/// Leading bits that the second pass adds at most.
const FINE_BITS: u32 = 7;
/// Tables that the first pass adds to in turn.
const TABLES: usize = 4;
/// Positions whose ratios are computed together, so that the compiler can use vector instructions.
const CHUNK: usize = 32;

/// How finely to plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// Positions with more than this are handled one by one: with 0 the result is exact.
    pub threshold: f64,
    /// Acceptance that is not worth a second pass.
    pub negligible: f64,
    pub layout: Layout,
}

/// Tokens pooled on a grid, and the entry of each of its knots.
#[derive(Debug)]
struct Pool {
    grid: Grid,
    cells: Vec<Cell>,
    entries: Vec<u32>,
}

impl Pool {
    fn new() -> Self {
        Self { grid: Grid::new(COARSE_BITS, LOWEST, 1.0), cells: Vec::new(), entries: Vec::new() }
    }

    /// Empties the pool, for ratios from `low` to `high`.
    fn reset(&mut self, bits: u32, low: f64, high: f64) {
        self.grid = Grid::new(bits, low, high);
        self.cells.clear();
        self.cells.resize(self.grid.cells() + 1, Cell::default());
        self.entries.clear();
        self.entries.resize(self.grid.cells() + 1, 0);
    }

    /// The length of a knot: the lower part of its cell and the upper part of the cell below.
    fn length(&self, knot: usize) -> f64 {
        let below = if knot == 0 { 0.0 } else { self.cells[knot - 1].upper };
        self.cells[knot].lower() + below
    }
}

/// Where a position's length lies: on entry `lower`, and a `fraction` of it on entry `upper`.
#[derive(Debug, Clone, Copy)]
struct Split {
    lower: usize,
    upper: usize,
    fraction: f64,
}

/// The priorities of all positions 0.. of a draft's support. Reusable: making it again keeps the
/// memory.
#[derive(Debug)]
pub(super) struct Plan {
    /// The largest useful ratio: no token gets more of the selection than its length at the highest
    /// density.
    cap: f64,
    /// Positions with more than this are entries of their own.
    threshold: f64,
    coarse: Pool,
    fine: Pool,
    /// The ratios in [start, end) are on the fine grid.
    zone: (f64, f64),
    /// The positions with entries of their own, ascending, and these entries.
    individuals: Vec<u32>,
    individual_entries: Vec<u32>,
    /// The ratios of `individuals`, ascending, with the index there.
    order: Vec<(f64, u32)>,
    entries: Vec<Entry>,
    shares: Shares,
    /// Mass per length of each entry.
    gains: Vec<f64>,
    /// D inside each cell of the coarse grid, at most.
    peaks: Vec<f64>,
    /// More tables for the first pass, one after the other.
    tables: Vec<Cell>,
}

/// p/q up to a cap; 0/0 is 0.
#[inline(always)]
fn ratio(p: f64, q: f64, cap: f64) -> f64 {
    let ratio = p / if q > f64::MIN_POSITIVE { q } else { f64::MIN_POSITIVE };
    if ratio < cap { ratio } else { cap }
}

/// [`Plan::make`] with the vector instructions of this machine.
struct Make<'a, P> {
    plan: &'a mut Plan,
    p: &'a [f64],
    q: &'a [f64],
    profile: &'a P,
    detail: Detail,
}

impl<P: Profile> NullaryFnOnce for Make<'_, P> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.plan.compute(self.p, self.q, self.profile, self.detail);
    }
}

/// [`Plan::residual_mass`] with the vector instructions of this machine.
struct ResidualMass<'a> {
    plan: &'a Plan,
    p: &'a [f64],
    q: &'a [f64],
    scale: f64,
}

impl NullaryFnOnce for ResidualMass<'_> {
    type Output = f64;

    #[inline(always)]
    fn call(self) -> f64 {
        self.plan.sum_residual(self.p, self.q, self.scale)
    }
}

impl Plan {
    pub fn new() -> Self {
        Self {
            cap: 1.0,
            threshold: 0.0,
            coarse: Pool::new(),
            fine: Pool::new(),
            zone: (0.0, 0.0),
            individuals: Vec::new(),
            individual_entries: Vec::new(),
            order: Vec::new(),
            entries: Vec::new(),
            shares: Shares::default(),
            gains: Vec::new(),
            peaks: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Shares out `profile`, of length and mass 1, for draws from q with target p.
    pub fn make(&mut self, p: &[f64], q: &[f64], profile: &impl Profile, detail: Detail) {
        Arch::new().dispatch(Make { plan: self, p, q, profile, detail });
    }

    #[inline(always)]
    fn compute(&mut self, p: &[f64], q: &[f64], profile: &impl Profile, detail: Detail) {
        let Detail { threshold, negligible, layout } = detail;
        self.cap = profile.density(1.0);
        self.threshold = threshold;
        self.zone = (0.0, 0.0);
        self.individuals.clear();
        self.coarse.reset(COARSE_BITS, LOWEST, self.cap);
        if threshold > 0.0 {
            self.first_pass(p, q);
        } else {
            self.individuals.extend(q.iter().zip(0..).filter(|(q, _)| **q > 0.0).map(|(_, i)| i));
        }
        self.order.clear();
        self.order.extend(self.individuals.iter().zip(0..).map(|(&position, index)| {
            // Not capped: above the cap nothing is gained at this node, but nested shares keep the
            // order.
            (ratio(p[position as usize], q[position as usize], f64::INFINITY), index)
        }));
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        if threshold > 0.0
            && let Some((first, last)) = self.doubtful_cells(profile, q, negligible)
        {
            self.second_pass(p, q, first, last);
        }
        self.collect(q);
        self.shares.share(profile, &self.entries, layout);
        self.gains.clear();
        self.gains.extend(
            self.entries.iter().zip(self.shares.masses()).map(|(entry, mass)| mass / entry.length),
        );
    }

    /// Pools the light positions on the coarse grid and lists the others.
    #[inline(always)]
    fn first_pass(&mut self, p: &[f64], q: &[f64]) {
        let Pool { grid, cells, .. } = &mut self.coarse;
        // Neighbours often share a cell; with several tables one addition need not wait for the
        // other.
        let tables = &mut self.tables;
        tables.clear();
        tables.resize(cells.len() * TABLES, Cell::default());
        let width = cells.len();
        let (mut numbers, mut fractions) = ([0; CHUNK], [0.0; CHUNK]);
        for (chunk, (p, q)) in p.chunks(CHUNK).zip(q.chunks(CHUNK)).enumerate() {
            let places = numbers.iter_mut().zip(&mut fractions);
            for ((number, fraction), (&p, &q)) in places.zip(p.iter().zip(q)) {
                (*number, *fraction) = grid.place(ratio(p, q, self.cap));
            }
            for (index, &q) in q.iter().enumerate() {
                let (cell, fraction) = (numbers[index] as usize, fractions[index]);
                if q > self.threshold {
                    self.individuals.push((chunk * CHUNK + index) as u32);
                } else {
                    tables[index % TABLES * width + cell].add(q, fraction);
                }
            }
        }
        for table in tables.chunks(width) {
            cells.iter_mut().zip(table).for_each(|(cell, more)| *cell = cell.plus(*more));
        }
    }

    /// The cells, from first to last, inside which D could exceed its value at the end of any cell.
    fn doubtful_cells(
        &mut self,
        profile: &impl Profile,
        q: &[f64],
        negligible: f64,
    ) -> Option<(usize, usize)> {
        let (mut length, mut demand, mut known) = (0.0, 0.0, 0.0_f64);
        let mut individuals = self.order.iter().peekable();
        let d = |length: f64, demand: f64| profile.below(length) - demand;
        self.peaks.clear();
        for (index, cell) in self.coarse.cells.iter().enumerate().take(self.coarse.grid.cells()) {
            let (low, high) = (self.coarse.grid.knot(index), self.coarse.grid.knot(index + 1));
            let mut peak = f64::NEG_INFINITY;
            if cell.length > 0.0 {
                length += cell.lower();
                demand += cell.lower() * low;
                peak = d(length, demand);
            }
            while let Some((ratio, individual)) = individuals.next_if(|(ratio, _)| *ratio < high) {
                let own = q[self.individuals[*individual as usize] as usize];
                length += own;
                demand += own * ratio;
                peak = peak.max(d(length, demand));
            }
            length += cell.upper;
            demand += cell.upper * high;
            if peak > f64::NEG_INFINITY {
                known = known.max(d(length, demand));
            }
            self.peaks.push(if cell.length > 0.0 { peak } else { f64::NEG_INFINITY });
        }
        // Ratios below the lowest are too small to matter, and have no leading bits to refine.
        let doubtful = |peak: &f64| *peak > known + negligible;
        let first = self.peaks.iter().skip(1).position(doubtful)? + 1;
        let last = self.peaks.iter().rposition(doubtful)?;
        Some((first, last))
    }

    /// Moves the light positions of some cells to a finer grid.
    #[inline(always)]
    fn second_pass(&mut self, p: &[f64], q: &[f64], first: usize, last: usize) {
        let (start, end) = (self.coarse.grid.knot(first), self.coarse.grid.knot(last + 1));
        let added = FINE_BITS.saturating_sub((last + 1 - first).ilog2());
        if added == 0 {
            return;
        }
        self.zone = (start, end);
        self.coarse.cells[first..=last].fill(Cell::default());
        self.fine.reset(COARSE_BITS + added, start, end);
        // A product is cheaper than a quotient; the margin covers its rounding.
        let low = start * (1.0 - 1e-12);
        // Ratios above the cap count as the cap.
        let high = if end > self.cap { f64::MAX } else { end * (1.0 + 1e-12) };
        let (mut inside, mut near) = ([false; CHUNK], [0; CHUNK]);
        for (p, q) in p.chunks(CHUNK).zip(q.chunks(CHUNK)) {
            for (inside, (&p, &q)) in inside.iter_mut().zip(p.iter().zip(q)) {
                *inside = (p >= low * q) & (p <= high * q) & (q <= self.threshold);
            }
            // Without a branch: hits are too many to be rare and too few to be predicted.
            let mut found = 0;
            for (index, &inside) in inside[..p.len()].iter().enumerate() {
                near[found] = index;
                found += usize::from(inside);
            }
            for &index in &near[..found] {
                let ratio = ratio(p[index], q[index], self.cap);
                if ratio >= start && ratio < end {
                    let (cell, fraction) = self.fine.grid.place(ratio);
                    self.fine.cells[cell as usize].add(q[index], fraction);
                }
            }
        }
    }

    /// Lists all entries in order of their ratios, and where they are.
    fn collect(&mut self, q: &[f64]) {
        self.entries.clear();
        self.individual_entries.clear();
        self.individual_entries.resize(self.individuals.len(), 0);
        let mut individuals = self.order.iter().peekable();
        let (entries, ends) = (&mut self.entries, &mut self.individual_entries);
        let mut individuals_below = |entries: &mut Vec<Entry>, bound: f64| {
            while let Some((ratio, index)) = individuals.next_if(|(ratio, _)| *ratio < bound) {
                let length = q[self.individuals[*index as usize] as usize];
                ends[*index as usize] = entries.len() as u32;
                entries.push(Entry { length, demand: length * ratio });
            }
        };
        let pooled = self.threshold > 0.0;
        let mut knot = |pool: &mut Pool, index: usize| {
            let length = pool.length(index);
            if length > 0.0 {
                let ratio = pool.grid.knot(index);
                individuals_below(entries, ratio);
                pool.entries[index] = entries.len() as u32;
                entries.push(Entry { length, demand: length * ratio });
            }
        };
        for index in 0..if pooled { self.coarse.cells.len() } else { 0 } {
            // The fine knots lie between the coarse knots at the ends of the zone.
            if self.zone.1 > 0.0 && self.coarse.grid.knot(index) == self.zone.1 {
                (0..self.fine.cells.len()).for_each(|fine| knot(&mut self.fine, fine));
            }
            knot(&mut self.coarse, index);
        }
        individuals_below(&mut self.entries, f64::INFINITY);
    }

    /// Where position `position`, with these probabilities, has its length.
    fn split(&self, position: usize, p: f64, q: f64) -> Split {
        if q > self.threshold {
            let index = if self.individuals.get(position) == Some(&(position as u32)) {
                Ok(position)
            } else {
                self.individuals.binary_search(&(position as u32))
            };
            let entry = index.map_or(0, |index| self.individual_entries[index] as usize);
            return Split { lower: entry, upper: entry, fraction: 0.0 };
        }
        let ratio = ratio(p, q, self.cap);
        let pool =
            if ratio >= self.zone.0 && ratio < self.zone.1 { &self.fine } else { &self.coarse };
        let (cell, fraction) = pool.grid.place(ratio);
        let cell = cell as usize;
        Split {
            lower: pool.entries[cell] as usize,
            upper: pool.entries[cell + 1] as usize,
            fraction,
        }
    }

    /// The probability that the draft selected is this position.
    pub fn mass(&self, position: usize, p: f64, q: f64) -> f64 {
        if q <= 0.0 || self.gains.is_empty() {
            return 0.0;
        }
        let Split { lower, upper, fraction } = self.split(position, p, q);
        q * ((1.0 - fraction) * self.gains[lower] + fraction * self.gains[upper])
    }

    /// Σ (`scale`·p − [`mass`](Self::mass))+ over all positions.
    pub fn residual_mass(&self, p: &[f64], q: &[f64], scale: f64) -> f64 {
        Arch::new().dispatch(ResidualMass { plan: self, p, q, scale })
    }

    #[inline(always)]
    fn sum_residual(&self, p: &[f64], q: &[f64], scale: f64) -> f64 {
        if self.gains.is_empty() {
            return scale * p.iter().sum::<f64>();
        }
        let gain = |entry: &u32| self.gains[*entry as usize];
        let knots: Vec<f64> = self.coarse.entries.iter().map(gain).collect();
        let mut individuals = self.individual_entries.iter().map(gain);
        let (mut numbers, mut fractions, mut sum) = ([0; CHUNK], [0.0; CHUNK], 0.0);
        for (chunk, (p, q)) in p.chunks(CHUNK).zip(q.chunks(CHUNK)).enumerate() {
            let places = numbers.iter_mut().zip(&mut fractions);
            for ((number, fraction), (&p, &q)) in places.zip(p.iter().zip(q)) {
                (*number, *fraction) = self.coarse.grid.place(ratio(p, q, self.cap));
            }
            for (index, (&p, &q)) in p.iter().zip(q).enumerate() {
                let (cell, fraction) = (numbers[index] as usize, fractions[index]);
                let selected = if q > self.threshold {
                    q * individuals.next().unwrap_or(0.0)
                } else if self.zone.1 > 0.0
                    && (self.zone.0..self.zone.1).contains(&ratio(p, q, self.cap))
                {
                    self.mass(chunk * CHUNK + index, p, q)
                } else {
                    q * ((1.0 - fraction) * knots[cell] + fraction * knots[cell + 1])
                };
                sum += (scale * p - selected).max(0.0);
            }
        }
        sum
    }

    /// The distribution of the priority of a draft at this position; its pieces may overlap.
    pub fn pieces(&self, position: usize, p: f64, q: f64) -> impl Iterator<Item = Piece> + '_ {
        let Split { lower, upper, fraction } = self.split(position, p, q);
        let parts = [(lower, 1.0 - fraction), (upper, fraction)];
        parts.into_iter().filter(|part| part.1 > 0.0).flat_map(move |(entry, share)| {
            self.shares
                .pieces(entry)
                .map(move |piece| Piece { weight: share * piece.weight, ..piece })
        })
    }
}
