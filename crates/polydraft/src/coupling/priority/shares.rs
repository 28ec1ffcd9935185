//! Sharing out a segment of priorities so that demands are met as well as they can be.
//!
//! Problem: a segment [0, T] carries mass with a rising density; G(t), the mass of its lowest t, is
//! convex. Entries with lengths (sum T) and demands share it out: each gets a set of its length,
//! and Σ min(demand, mass of its set) is to be as large as possible.
//! Source: ours, priority coupling (`docs/theory.md`). The optimal masses come from `masses`; the
//! sets from a walk that gives each entry the one interval *of what is still free* that has its
//! length and its mean density.
//! Complexity: linear in the entries, one root of a monotone function each.
//! Deviations: (1) the masses reported are those of the sets really laid out, so that rounding, and
//! any demands at all, cost acceptance only; (2) where the masses leave a choice, entries get thin
//! shares of a whole block instead of intervals ([`Layout::Spread`]).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::masses::{Choice, Masses};
pub use super::profile::{Entry, Highest, Interval, Profile};
use crate::priorities::WeightedInterval;

/// Which of the sets with the optimal masses an entry gets. One node's acceptance is the same; but
/// the wider a token's priorities spread, the more its own next tokens can make of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Between two places where the masses use up all that is below, every entry has the same part
    /// of everything, as large as the masses allow, and intervals make up the rest.
    #[default]
    Spread,
    /// One interval of what is free, for each entry in turn.
    Intervals,
}

/// Consecutive entries that together fill one interval.
#[derive(Debug, Clone, Copy)]
struct Block {
    whole: Interval,
    /// The part of each entry that is in intervals of its own; the rest is spread over the whole
    /// block.
    own: f64,
}

/// The shares of all entries. Reusable: sharing again keeps the memory.
#[derive(Debug, Clone)]
pub struct Shares {
    /// Relative error of a mass at which a search stops: it costs at most that much acceptance.
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
            tolerance: FINEST,
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
    /// [`Shares::share`]. Its intervals may overlap; their weights sum to 1.
    pub fn intervals(&self, entry: usize) -> impl Iterator<Item = WeightedInterval> + '_ {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        let intervals = &self.intervals[start..self.ends[entry]];
        let Block { whole, own } = self.blocks[self.block[entry] as usize];
        let spread =
            WeightedInterval { start: whole.start, length: whole.length, weight: 1.0 - own };
        let total: f64 = intervals.iter().map(|interval| interval.length).sum();
        let intervals = intervals.iter().map(move |interval| WeightedInterval {
            start: interval.start,
            length: interval.length,
            weight: own * interval.length / total,
        });
        intervals.chain((own < 1.0).then_some(spread))
    }

    /// The mass of every entry's set.
    pub fn masses(&self) -> &[f64] {
        &self.masses.own
    }

    /// Shares the segment. The entries come in order of rising demand/length, lengths summing to T.
    /// Demands may sum to less than the mass of the segment.
    pub fn share(
        &mut self,
        profile: &impl Profile,
        entries: &[Entry],
        choice: Choice,
        layout: Layout,
    ) {
        self.masses.make(profile, entries, choice);
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

    /// Shares out one block, which begins at `start`; returns its end.
    fn fill_block(
        &mut self,
        profile: &impl Profile,
        entries: &[Entry],
        range: Range<usize>,
        start: f64,
        layout: Layout,
    ) -> f64 {
        let length: f64 = entries[range.clone()].iter().map(|entry| entry.length).sum();
        let whole = Interval { start, length };
        let mean = self.masses.own[range.clone()].iter().sum::<f64>() / length;
        let own = match layout {
            Layout::Spread if range.len() > 1 && length > 0.0 => {
                self.own_part(entries, range.clone(), mean)
            }
            _ => 1.0,
        };
        let spread_mean = if own < 1.0 { profile.mean(start, length) } else { 0.0 };
        self.gaps.clear();
        let mut frontier = start;
        for index in range {
            let entry = entries[index];
            let mut mass = 0.0;
            if entry.length > 0.0 && own > 0.0 {
                // What is left to intervals once the spread part has its mean.
                let wanted =
                    ((self.masses.own[index] - (1.0 - own) * entry.length * mean) / own).max(0.0);
                (frontier, mass) =
                    self.lay_out(profile, frontier, start + length, entry.length, wanted);
            }
            self.masses.own[index] = own * mass + (1.0 - own) * entry.length * spread_mean;
            self.ends.push(self.intervals.len());
            self.block.push(self.blocks.len() as u32);
        }
        self.blocks.push(Block { whole, own });
        start + length
    }

    /// The smallest part of each entry's length in a block that has to be in intervals of its own.
    ///
    /// With a part λ the intervals need the masses (m − (1 − λ)·mean·length)/λ. These exist if for
    /// every prefix of the entries they sum to at least the mass of the lowest so much of the
    /// block: with e what the prefix lacks of its proportional mass, and d what it has more than
    /// the lowest so much, if λ ≥ e/(e + d).
    fn own_part(&self, entries: &[Entry], range: Range<usize>, mean: f64) -> f64 {
        let (mut own, mut lacks, mut above) = (0.0_f64, 0.0, 0.0);
        // At the end of the block both are 0 up to rounding.
        let prefixes = range.start..range.end - 1;
        let in_order = &self.masses.in_order[prefixes.clone()];
        let masses = self.masses.own[prefixes.clone()].iter().zip(in_order);
        for (entry, (mass, in_order)) in entries[prefixes].iter().zip(masses) {
            lacks += entry.length * mean - mass;
            above += mass - in_order;
            if lacks > 0.0 && lacks >= own * (lacks + above.max(0.0)) {
                own = lacks / (lacks + above.max(0.0));
            }
        }
        // Next to nothing, and next to everything, are rounding.
        match own {
            ..1e-9 => 0.0,
            own if own > 1.0 - 1e-9 => 1.0,
            own => own,
        }
    }

    /// Finds a set of this length and mass for one entry. Returns the new frontier: everything
    /// above it, up to `end`, is free, below it the gaps are; and the mass that the set has.
    fn lay_out(
        &mut self,
        profile: &impl Profile,
        frontier: f64,
        end: f64,
        length: f64,
        mass: f64,
    ) -> (f64, f64) {
        let (room, tolerance) = (end - frontier, self.tolerance * mass);
        let at_frontier = length * profile.mean(frontier, length);
        if length <= NOTHING * end {
            self.intervals.push(Interval { start: frontier, length });
            return (frontier + length, at_frontier);
        }
        let missing = mass - at_frontier;
        if length <= room && missing >= -tolerance {
            let (mut start, mut got) = (frontier, at_frontier);
            if missing > tolerance {
                let slid = slide(profile, (frontier, end - length), length, mass, tolerance);
                // A gap of a rounding error would only be in the way.
                if slid.place - frontier > SNAP * end {
                    let gap = slid.place - frontier;
                    self.gaps.push(Interval { start: frontier, length: gap });
                    (start, got) = (slid.place, mass + length * slid.value);
                }
            }
            self.intervals.push(Interval { start, length });
            return (start + length, got);
        }
        // Its mean is below that at the frontier: take from the gaps, nearest first, and the rest
        // at the frontier.
        let (mut left, mut wanted, mut got) = (length, mass, 0.0);
        // The mass of what is left, were it all at the frontier.
        let mut at_frontier = at_frontier;
        while let Some(gap) = self.gaps.last_mut() {
            let whole = gap.length * profile.mean(gap.start, gap.length);
            if gap.length <= left {
                let rest = left - gap.length;
                let of_rest = rest * profile.mean(frontier, rest);
                if rest > room || whole + of_rest >= wanted {
                    self.intervals.push(*gap);
                    self.gaps.pop();
                    (left, wanted, got) = (rest, wanted - whole, got + whole);
                    at_frontier = of_rest;
                    continue;
                }
            }
            let excess = at_frontier - wanted;
            let places = (frontier, room);
            let taken = cut(profile, *gap, places, (left, wanted), (excess, tolerance));
            let taken = if gap.length >= left && left - taken <= SNAP * end { left } else { taken };
            if taken > 0.0 {
                gap.length -= taken;
                let start = gap.start + gap.length;
                self.intervals.push(Interval { start, length: taken });
                got += taken * profile.mean(start, taken);
                left -= taken;
                if gap.length <= 0.0 {
                    self.gaps.pop();
                }
            }
            break;
        }
        if left <= 0.0 {
            return (frontier, got);
        }
        self.intervals.push(Interval { start: frontier, length: left });
        (frontier + left, got + left * profile.mean(frontier, left))
    }
}

/// The smallest useful tolerance.
pub(super) const FINEST: f64 = 1e-14;
/// After so many evaluations it stops in any case.
const TRIES: usize = 80;
/// Lengths of this part of the segment are rounding errors.
const SNAP: f64 = 1e-15;
/// Entries this short stay where the frontier is: they carry nothing, and their mean has lost its
/// digits if their length is a subnormal number.
const NOTHING: f64 = 1e-25;

/// The start in [low, high] of the interval of this length with this mass. The value found is by
/// how much its mean is too large.
fn slide(
    profile: &impl Profile,
    (low, high): (f64, f64),
    length: f64,
    mass: f64,
    tolerance: f64,
) -> Found {
    let mean = mass / length;
    search(low, high, profile.guess(mean) - 0.5 * length, |start| {
        let slope = (profile.density(start + length) - profile.density(start)) / length;
        (profile.mean(start, length) - mean, slope, tolerance / length)
    })
}

/// How much to take from the top of `gap`, the rest of `length` coming from the frontier, to get
/// this mass to a tolerance. With nothing taken it would be `excess` more.
fn cut(
    profile: &impl Profile,
    gap: Interval,
    (frontier, room): (f64, f64),
    (length, mass): (f64, f64),
    (excess, tolerance): (f64, f64),
) -> f64 {
    let least = (length - room).max(0.0).min(gap.length);
    let most = gap.length.min(length);
    let end = gap.start + gap.length;
    let slope =
        |taken: f64| profile.density(frontier + (length - taken)) - profile.density(end - taken);
    // From nothing taken on along the slope there; negated, to be rising.
    search(least, most, excess / slope(0.0), |taken| {
        let rest = length - taken;
        let got = taken * profile.mean(end - taken, taken) + rest * profile.mean(frontier, rest);
        (mass - got, slope(taken), tolerance)
    })
    .place
}

/// Where a search ended, and the value there.
struct Found {
    place: f64,
    value: f64,
}

/// The root of a rising function in [low, high], or the end where it is nearest to 0: Newton's
/// method inside a bracket. `evaluate` gives value, slope, and the size of value to accept.
fn search(low: f64, high: f64, guess: f64, evaluate: impl Fn(f64) -> (f64, f64, f64)) -> Found {
    let (mut low, mut high) = (low, high);
    if low >= high {
        return Found { place: low, value: evaluate(low).0 };
    }
    let mut place = if guess > low && guess < high { guess } else { 0.5 * (low + high) };
    let mut tries = 0;
    loop {
        let (value, slope, tolerance) = evaluate(place);
        tries += 1;
        if value.abs() <= tolerance || tries == TRIES {
            return Found { place, value };
        }
        if value < 0.0 {
            low = place
        } else {
            high = place
        }
        let newton = place - value / slope;
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        if (next - place).abs() <= 1e-16 * place.abs() {
            return Found { place, value };
        }
        place = next;
    }
}
