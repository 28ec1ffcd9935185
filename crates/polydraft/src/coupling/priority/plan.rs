//! The division of priorities among all tokens of a draft's support.
//!
//! Problem: see [`super`]. Tokens that carry mass are entries of their own; the rest is pooled on a
//! grid of ratios.
//! Source: ours. Complexity: O(k log k) for k individual tokens; at most three passes over p and q
//! for the others, or a sort. The acceptance of the pooled form is 1 − max D over its entries. Its
//! curve of D agrees with the exact one at the ends of all cells and lies above it inside, so only
//! cells in which it exceeds the lower bound of max D can cost acceptance. These are cut and filled
//! again, finely enough for evenly spread tokens, and a second time finely enough for the worst
//! case. Where that would take more parts than pay off, all tokens are handled individually.

use pulp::{Arch, NullaryFnOnce};

use super::grid::Cell;
use super::masses::Choice;
use super::pool::{Individual, Pool, Spread, TooFine};
use super::shares::{Entry, Layout, MIN_TOLERANCE, Profile, Shares};
use crate::priorities::WeightedInterval;

/// Number of tables that the first pass adds to in turn.
const TABLES: usize = 4;
/// Positions whose ratios are computed in one loop, for vector instructions.
const CHUNK: usize = 32;

/// Precision and choices of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// Positions with a larger q are handled individually; with 0 the result is exact.
    pub threshold: f64,
    /// Maximum acceptance lost.
    pub negligible: f64,
    pub choice: Choice,
    pub layout: Layout,
    /// Fraction of the target that can be used.
    pub scale: f64,
}

/// Assignment of a position's length: to entry `lower`, and a `fraction` of it to entry `upper`.
#[derive(Debug, Clone, Copy)]
struct Split {
    lower: usize,
    upper: usize,
    fraction: f64,
}

/// The division of priorities among all positions 0.. of a draft's support. Preparing it again
/// reuses the memory.
#[derive(Debug)]
pub(super) struct Plan {
    /// The largest useful ratio: the selection gives no token more mass than its length at the
    /// highest density.
    cap: f64,
    /// Positions with a larger q are entries of their own.
    threshold: f64,
    /// Fraction of the target that can be used.
    scale: f64,
    pool: Pool,
    /// Ratios outside [start, end) lie in uncut cells.
    zone: (f64, f64),
    /// The positions with entries of their own, ascending, and these entries.
    individuals: Vec<u32>,
    individual_entries: Vec<u32>,
    /// The ratios of `individuals`, ascending, with their indices.
    order: Vec<(f64, u32)>,
    entries: Vec<Entry>,
    shares: Shares,
    /// Mass per length of each entry.
    gains: Vec<f64>,
    /// Ratio and length of the positions in `order`, for the pool.
    values: Vec<Individual>,
    /// Tables of the first pass, one after the other.
    tables: Vec<Cell>,
}

/// p/q up to a cap; 0/0 is 0.
#[inline(always)]
fn ratio(p: f64, q: f64, cap: f64) -> f64 {
    let ratio = p / if q > f64::MIN_POSITIVE { q } else { f64::MIN_POSITIVE };
    if ratio < cap { ratio } else { cap }
}

/// [`Plan::prepare`] with the vector instructions of this machine.
struct Prepare<'a, P> {
    plan: &'a mut Plan,
    p: &'a [f64],
    q: &'a [f64],
    profile: &'a P,
    detail: Detail,
}

impl<P: Profile> NullaryFnOnce for Prepare<'_, P> {
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
            scale: 1.0,
            pool: Pool::new(),
            zone: (0.0, 0.0),
            individuals: Vec::new(),
            individual_entries: Vec::new(),
            order: Vec::new(),
            entries: Vec::new(),
            shares: Shares::default(),
            gains: Vec::new(),
            values: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Divides `profile`, of length and mass 1, for draws from q with target p.
    pub fn prepare(&mut self, p: &[f64], q: &[f64], profile: &impl Profile, detail: Detail) {
        Arch::new().dispatch(Prepare { plan: self, p, q, profile, detail });
    }

    #[inline(always)]
    fn compute(&mut self, p: &[f64], q: &[f64], profile: &impl Profile, detail: Detail) {
        let Detail { threshold, negligible, choice, layout, scale } = detail;
        self.cap = profile.density(1.0);
        self.threshold = threshold;
        self.scale = scale;
        self.zone = (0.0, 0.0);
        self.individuals.clear();
        self.pool.reset(self.cap);
        if threshold > 0.0 {
            self.first_pass(p, q);
            self.sort_individuals(p, q);
            if self.refine(p, q, profile, negligible) == Err(TooFine) {
                self.threshold = 0.0;
                self.individuals.clear();
            }
        }
        if self.threshold <= 0.0 {
            self.individuals.extend(q.iter().zip(0..).filter(|(q, _)| **q > 0.0).map(|(_, i)| i));
            self.sort_individuals(p, q);
        }
        self.collect(q);
        // A negligible fraction of the loss that is allowed anyway.
        self.shares.tolerance = (1e-7 * negligible).max(MIN_TOLERANCE);
        self.shares.share(profile, &self.entries, choice, layout);
        self.gains.clear();
        self.gains.extend(
            self.entries.iter().zip(self.shares.masses()).map(|(entry, mass)| mass / entry.length),
        );
    }

    /// Sorts the individually handled positions by ratio.
    fn sort_individuals(&mut self, p: &[f64], q: &[f64]) {
        self.order.clear();
        self.order.extend(self.individuals.iter().zip(0..).map(|(&position, index)| {
            // Not capped: above the cap nothing is gained at this node, but nested shares depend on
            // the order.
            let (p, q) = (p[position as usize], q[position as usize]);
            (ratio(self.scale * p, q, f64::INFINITY), index)
        }));
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// The ratio of a pooled position.
    #[inline(always)]
    fn ratio(&self, p: f64, q: f64) -> f64 {
        ratio(self.scale * p, q, self.cap)
    }

    /// Pools the positions of small probability on the coarse grid and lists the others.
    #[inline(always)]
    fn first_pass(&mut self, p: &[f64], q: &[f64]) {
        let grid = self.pool.grid;
        // Neighbours often share a cell; with several tables their additions are independent.
        let tables = &mut self.tables;
        tables.clear();
        let width = grid.cells();
        tables.resize(width * TABLES, Cell::default());
        let (mut numbers, mut fractions) = ([0; CHUNK], [0.0; CHUNK]);
        for (chunk, (p, q)) in p.chunks(CHUNK).zip(q.chunks(CHUNK)).enumerate() {
            let positions = numbers.iter_mut().zip(&mut fractions);
            for ((number, fraction), (&p, &q)) in positions.zip(p.iter().zip(q)) {
                (*number, *fraction) = grid.locate(ratio(self.scale * p, q, self.cap));
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
        tables.chunks(width).for_each(|table| self.pool.add_table(table));
    }

    /// Cuts cells of the pool until at most `negligible` of acceptance is lost.
    #[inline(always)]
    fn refine(
        &mut self,
        p: &[f64],
        q: &[f64],
        profile: &impl Profile,
        negligible: f64,
    ) -> Result<(), TooFine> {
        self.values.clear();
        self.values.extend(
            self.order
                .iter()
                .map(|&(ratio, index)| (ratio, q[self.individuals[index as usize] as usize])),
        );
        self.pool.bound(profile, &self.values);
        let Some(zone) = self.pool.cut(Spread::Even, negligible, q.len())? else { return Ok(()) };
        self.zone = zone;
        self.fill(p, q, zone);
        self.pool.bound_cut_cells(profile, &self.values);
        if let Some(zone) = self.pool.cut(Spread::Any, negligible, q.len())? {
            self.fill(p, q, zone);
        }
        Ok(())
    }

    /// Adds the pooled positions of the cells that were just cut, which lie in `zone`.
    #[inline(always)]
    fn fill(&mut self, p: &[f64], q: &[f64], (start, end): (f64, f64)) {
        // A product is cheaper than a quotient; the margin covers its rounding.
        let low = start * (1.0 - 1e-12);
        // Ratios above the cap count as the cap.
        let high = if end > self.cap { f64::MAX } else { end * (1.0 + 1e-12) };
        let (mut inside, mut near) = ([false; CHUNK], [0; CHUNK]);
        for (p, q) in p.chunks(CHUNK).zip(q.chunks(CHUNK)) {
            for (inside, (&p, &q)) in inside.iter_mut().zip(p.iter().zip(q)) {
                let p = self.scale * p;
                *inside = (p >= low * q) & (p <= high * q) & (q <= self.threshold);
            }
            // Branch-free, because hits are neither rare nor predictable.
            let mut found = 0;
            for (index, &inside) in inside[..p.len()].iter().enumerate() {
                near[found] = index;
                found += usize::from(inside);
            }
            for &index in &near[..found] {
                let ratio = self.ratio(p[index], q[index]);
                if ratio >= start && ratio < end {
                    let position = self.pool.grid.locate(ratio);
                    if self.pool.was_cut(position.0) {
                        self.pool.add(position, q[index]);
                    }
                }
            }
        }
    }

    /// Lists all entries in order of their ratios, and the entries of all positions.
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
        if self.threshold > 0.0 {
            let mut knot_entries = std::mem::take(&mut self.pool.entries);
            knot_entries.clear();
            for (ratio, length) in self.pool.knots() {
                let mut entry = 0;
                if length > 0.0 {
                    individuals_below(entries, ratio);
                    entry = entries.len() as u32;
                    entries.push(Entry { length, demand: length * ratio });
                }
                knot_entries.push(entry);
            }
            self.pool.entries = knot_entries;
        }
        individuals_below(entries, f64::INFINITY);
    }

    /// The entries that hold the length of `position`, with these probabilities.
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
        let (part, fraction) = self.pool.part(self.pool.grid.locate(self.ratio(p, q)));
        let [lower, upper] = [part, part + 1].map(|knot| self.pool.entries[knot] as usize);
        Split { lower, upper, fraction }
    }

    /// The probability that the selected draft is at this position.
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
        // Gains at the ends of coarse cells. They are 0 if nothing is pooled: then only tokens
        // without draft probability look them up.
        let pooled = self.threshold > 0.0;
        let knot_gain =
            |cell| if pooled { gain(&self.pool.entries[self.pool.first_knot(cell)]) } else { 0.0 };
        let knots: Vec<f64> = (0..=self.pool.grid.cells()).map(knot_gain).collect();
        let mut individuals = self.individual_entries.iter().map(gain);
        let (mut numbers, mut fractions, mut sum) = ([0; CHUNK], [0.0; CHUNK], 0.0);
        for (chunk, (p, q)) in p.chunks(CHUNK).zip(q.chunks(CHUNK)).enumerate() {
            let positions = numbers.iter_mut().zip(&mut fractions);
            for ((number, fraction), (&p, &q)) in positions.zip(p.iter().zip(q)) {
                (*number, *fraction) = self.pool.grid.locate(self.ratio(p, q));
            }
            for (index, (&p, &q)) in p.iter().zip(q).enumerate() {
                let (cell, fraction) = (numbers[index] as usize, fractions[index]);
                let selected = if q > self.threshold {
                    q * individuals.next().unwrap_or(0.0)
                } else if self.zone.1 > 0.0
                    && (self.zone.0..self.zone.1).contains(&self.ratio(p, q))
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

    /// The distribution of the priority of a draft at this position; its intervals may overlap.
    pub fn intervals(
        &self,
        position: usize,
        p: f64,
        q: f64,
    ) -> impl Iterator<Item = WeightedInterval> + '_ {
        let Split { lower, upper, fraction } = self.split(position, p, q);
        let parts = [(lower, 1.0 - fraction), (upper, fraction)];
        parts.into_iter().filter(|part| part.1 > 0.0).flat_map(move |(entry, share)| {
            self.shares.intervals(entry).map(move |interval| WeightedInterval {
                weight: share * interval.weight,
                ..interval
            })
        })
    }
}
