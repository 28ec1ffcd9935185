//! Division of a segment of priorities that meets demands as well as possible.
//!
//! Problem: a segment [0, T] carries mass with a rising density; G(t), the mass of its lowest t, is
//! convex. Entries with lengths (sum T) and demands divide it: each gets a set of its length, such
//! that Σ min(demand, mass of its set) is maximal.
//! Source: ours, priority coupling (`docs/theory.md`). The optimal masses come from `masses`; the
//! sets from a walk that gives each entry the one interval *of the free part* that has its length
//! and its mean density.
//! Complexity: linear in the entries, with one root of a monotone function each.
//! Deviations: (1) the masses reported are those of the sets actually laid out, so that rounding,
//! and inconsistent demands, cost acceptance only; (2) where the masses leave a choice, entries get
//! thin shares of a block instead of intervals ([`Layout::Spread`]).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::masses::{Choice, Masses};
pub use super::profile::{Entry, Highest, Interval, Profile};
use crate::priorities::WeightedInterval;

/// Choice among the sets with the optimal masses. It does not affect one node's acceptance, but the
/// wider a token's priorities are spread, the more its next tokens can use them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Within each block (between two positions where the masses use up everything below), every
    /// entry has the same fraction of everything, as large as the masses allow, and intervals make
    /// up the rest.
    #[default]
    Spread,
    /// One interval of the free part for each entry in turn.
    Intervals,
}

/// Consecutive entries that fill one interval.
#[derive(Debug, Clone, Copy)]
struct Block {
    interval: Interval,
    /// Fraction of each entry that lies in intervals of its own; the rest is spread over the block.
    own_fraction: f64,
}

/// The shares of all entries. Dividing again reuses the memory.
#[derive(Debug, Clone)]
pub struct Shares {
    /// Relative error of a mass at which a search stops: an upper bound of the acceptance lost.
    pub(super) tolerance: f64,
    intervals: Vec<Interval>,
    ends: Vec<usize>,
    masses: Masses,
    gaps: Vec<Interval>,
    blocks: Vec<Block>,
    /// The block of each entry.
    block: Vec<u32>,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            tolerance: MIN_TOLERANCE,
            intervals: Vec::new(),
            ends: Vec::new(),
            masses: Masses::default(),
            gaps: Vec::new(),
            blocks: Vec::new(),
            block: Vec::new(),
        }
    }
}

impl Shares {
    /// An entry's share as a distribution on the segment, in the order of the entries given to
    /// [`Shares::share`]. Intervals may overlap; their weights sum to 1.
    pub fn intervals(&self, entry: usize) -> impl Iterator<Item = WeightedInterval> + '_ {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        let intervals = &self.intervals[start..self.ends[entry]];
        let Block { interval: block, own_fraction } = self.blocks[self.block[entry] as usize];
        let spread = WeightedInterval {
            start: block.start,
            length: block.length,
            weight: 1.0 - own_fraction,
        };
        let total: f64 = intervals.iter().map(|interval| interval.length).sum();
        let intervals = intervals.iter().map(move |interval| WeightedInterval {
            start: interval.start,
            length: interval.length,
            weight: own_fraction * interval.length / total,
        });
        intervals.chain((own_fraction < 1.0).then_some(spread))
    }

    /// The mass of every entry's set.
    pub fn masses(&self) -> &[f64] {
        &self.masses.by_entry
    }

    /// Divides the segment. The entries come in order of rising demand/length, and their lengths
    /// sum to T. Demands may sum to less than the mass of the segment.
    pub fn share(
        &mut self,
        profile: &impl Profile,
        entries: &[Entry],
        choice: Choice,
        layout: Layout,
    ) {
        self.masses.compute(profile, entries, choice);
        self.intervals.clear();
        self.ends.clear();
        self.blocks.clear();
        self.block.clear();
        let (mut start, mut first) = (0.0, 0);
        for index in 0..entries.len() {
            if self.masses.last[index] || index + 1 == entries.len() {
                start = self.fill_block(profile, entries, first..index + 1, start, layout);
                first = index + 1;
            }
        }
    }

    /// Divides one block, which starts at `start`; returns its end.
    fn fill_block(
        &mut self,
        profile: &impl Profile,
        entries: &[Entry],
        range: Range<usize>,
        start: f64,
        layout: Layout,
    ) -> f64 {
        let length: f64 = entries[range.clone()].iter().map(|entry| entry.length).sum();
        let interval = Interval { start, length };
        let mean = self.masses.by_entry[range.clone()].iter().sum::<f64>() / length;
        let own_fraction = match layout {
            Layout::Spread if range.len() > 1 && length > 0.0 => {
                self.min_own_fraction(entries, range.clone(), mean)
            }
            _ => 1.0,
        };
        let spread_mean = if own_fraction < 1.0 { profile.mean(start, length) } else { 0.0 };
        self.gaps.clear();
        let mut frontier = start;
        for index in range {
            let entry = entries[index];
            let mut mass = 0.0;
            if entry.length > 0.0 && own_fraction > 0.0 {
                // The mass needed from intervals, given the mean of the spread part.
                let demand = ((self.masses.by_entry[index]
                    - (1.0 - own_fraction) * entry.length * mean)
                    / own_fraction)
                    .max(0.0);
                (frontier, mass) =
                    self.lay_out(profile, frontier, start + length, entry.length, demand);
            }
            self.masses.by_entry[index] =
                own_fraction * mass + (1.0 - own_fraction) * entry.length * spread_mean;
            self.ends.push(self.intervals.len());
            self.block.push(self.blocks.len() as u32);
        }
        self.blocks.push(Block { interval, own_fraction });
        start + length
    }

    /// The smallest fraction of each entry's length in a block that must lie in intervals of its
    /// own.
    ///
    /// With a fraction λ the intervals need the masses (m − (1 − λ)·mean·length)/λ. These exist if
    /// for every prefix of the entries they sum to at least the mass of the lowest part of the
    /// block of the same length: with e the shortfall of the prefix from its proportional mass, and
    /// d its excess over that lowest part, if λ ≥ e/(e + d).
    fn min_own_fraction(&self, entries: &[Entry], range: Range<usize>, mean: f64) -> f64 {
        let (mut fraction, mut shortfall, mut above) = (0.0_f64, 0.0, 0.0);
        // At the end of the block both are 0 up to rounding.
        let prefixes = range.start..range.end - 1;
        let in_order = &self.masses.in_order[prefixes.clone()];
        let masses = self.masses.by_entry[prefixes.clone()].iter().zip(in_order);
        for (entry, (mass, in_order)) in entries[prefixes].iter().zip(masses) {
            shortfall += entry.length * mean - mass;
            above += mass - in_order;
            if shortfall > 0.0 && shortfall >= fraction * (shortfall + above.max(0.0)) {
                fraction = shortfall / (shortfall + above.max(0.0));
            }
        }
        // Values next to 0 or 1 are rounding errors.
        match fraction {
            ..1e-9 => 0.0,
            fraction if fraction > 1.0 - 1e-9 => 1.0,
            fraction => fraction,
        }
    }

    /// Finds a set of this length and mass for one entry. Returns the new frontier (everything
    /// above it, up to `end`, is free; below it, only the gaps are) and the mass of the set.
    fn lay_out(
        &mut self,
        profile: &impl Profile,
        frontier: f64,
        end: f64,
        length: f64,
        mass: f64,
    ) -> (f64, f64) {
        let (free_length, tolerance) = (end - frontier, self.tolerance * mass);
        let at_frontier = length * profile.mean(frontier, length);
        if length <= NEGLIGIBLE * end {
            self.intervals.push(Interval { start: frontier, length });
            return (frontier + length, at_frontier);
        }
        let missing = mass - at_frontier;
        if length <= free_length && missing >= -tolerance {
            let (mut start, mut got) = (frontier, at_frontier);
            if missing > tolerance {
                let slid = slide(profile, (frontier, end - length), length, mass, tolerance);
                // A gap of the size of a rounding error would only slow down later searches.
                if slid.position - frontier > ROUNDING * end {
                    let gap = slid.position - frontier;
                    self.gaps.push(Interval { start: frontier, length: gap });
                    (start, got) = (slid.position, mass + length * slid.value);
                }
            }
            self.intervals.push(Interval { start, length });
            return (start + length, got);
        }
        // The required mean density is below the density at the frontier: take length from the
        // gaps, nearest first, and the rest at the frontier.
        let (mut remaining, mut wanted, mut got) = (length, mass, 0.0);
        // The mass of the remaining length if it were all at the frontier.
        let mut at_frontier = at_frontier;
        while let Some(gap) = self.gaps.last_mut() {
            let gap_mass = gap.length * profile.mean(gap.start, gap.length);
            if gap.length <= remaining {
                let rest = remaining - gap.length;
                let rest_mass = rest * profile.mean(frontier, rest);
                if rest > free_length || gap_mass + rest_mass >= wanted {
                    self.intervals.push(*gap);
                    self.gaps.pop();
                    (remaining, wanted, got) = (rest, wanted - gap_mass, got + gap_mass);
                    at_frontier = rest_mass;
                    continue;
                }
            }
            let excess = at_frontier - wanted;
            let free = (frontier, free_length);
            let taken = cut(profile, *gap, free, (remaining, wanted), (excess, tolerance));
            let taken = if gap.length >= remaining && remaining - taken <= ROUNDING * end {
                remaining
            } else {
                taken
            };
            if taken > 0.0 {
                gap.length -= taken;
                let start = gap.start + gap.length;
                self.intervals.push(Interval { start, length: taken });
                got += taken * profile.mean(start, taken);
                remaining -= taken;
                if gap.length <= 0.0 {
                    self.gaps.pop();
                }
            }
            break;
        }
        if remaining <= 0.0 {
            return (frontier, got);
        }
        self.intervals.push(Interval { start: frontier, length: remaining });
        (frontier + remaining, got + remaining * profile.mean(frontier, remaining))
    }
}

/// The smallest useful tolerance.
pub(super) const MIN_TOLERANCE: f64 = 1e-14;
/// Maximum number of evaluations of a search.
const MAX_EVALUATIONS: usize = 80;
/// Lengths below this fraction of the segment are rounding errors.
const ROUNDING: f64 = 1e-15;
/// Entries shorter than this stay at the frontier: they carry no mass, and their mean has lost its
/// digits if their length is subnormal.
const NEGLIGIBLE: f64 = 1e-25;

/// Finds the start in [low, high] of the interval of this length with this mass. The function value
/// at the root is the error of the mean density.
fn slide(
    profile: &impl Profile,
    (low, high): (f64, f64),
    length: f64,
    mass: f64,
    tolerance: f64,
) -> Root {
    let mean = mass / length;
    search(low, high, profile.guess(mean) - 0.5 * length, |start| {
        let slope = (profile.density(start + length) - profile.density(start)) / length;
        (profile.mean(start, length) - mean, slope, tolerance / length)
    })
}

/// Finds the length to take from the top of `gap`, with the rest of `length` at the frontier, to
/// get this mass to a tolerance. With nothing taken the mass would be `excess` larger.
fn cut(
    profile: &impl Profile,
    gap: Interval,
    (frontier, free_length): (f64, f64),
    (length, mass): (f64, f64),
    (excess, tolerance): (f64, f64),
) -> f64 {
    let min = (length - free_length).max(0.0).min(gap.length);
    let max = gap.length.min(length);
    let end = gap.start + gap.length;
    let slope =
        |taken: f64| profile.density(frontier + (length - taken)) - profile.density(end - taken);
    // Starts at 0 and follows the slope there; the function is negated to be rising.
    search(min, max, excess / slope(0.0), |taken| {
        let rest = length - taken;
        let got = taken * profile.mean(end - taken, taken) + rest * profile.mean(frontier, rest);
        (mass - got, slope(taken), tolerance)
    })
    .position
}

/// End of a search, and the value there.
struct Root {
    position: f64,
    value: f64,
}

/// Finds the root of a rising function in [low, high], or the end where it is nearest to 0:
/// Newton's method inside a bracket. `evaluate` returns the value, the slope, and the tolerance of
/// the value.
fn search(low: f64, high: f64, guess: f64, evaluate: impl Fn(f64) -> (f64, f64, f64)) -> Root {
    let (mut low, mut high) = (low, high);
    if low >= high {
        return Root { position: low, value: evaluate(low).0 };
    }
    let mut position = if guess > low && guess < high { guess } else { 0.5 * (low + high) };
    let mut tries = 0;
    loop {
        let (value, slope, tolerance) = evaluate(position);
        tries += 1;
        if value.abs() <= tolerance || tries == MAX_EVALUATIONS {
            return Root { position, value };
        }
        if value < 0.0 {
            low = position
        } else {
            high = position
        }
        let newton = position - value / slope;
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        if (next - position).abs() <= 1e-16 * position.abs() {
            return Root { position, value };
        }
        position = next;
    }
}
