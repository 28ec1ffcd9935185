//! The masses that entries get from a segment.
//!
//! Problem: among all masses that sets of the entries' lengths can have, find those with the
//! largest Σ min(demand, mass); among these, the ones most useful to the tokens drawn next.
//! Source: ours (`docs/theory.md`, theorem 6 and proposition 23). Entries come in order of rising
//! demand/length. With C_i the total mass of the first i entries and G_i the mass of the lowest
//! part of the segment of the same length, the only constraint is C ≥ G.
//! 1. The least concave majorant of the points (Σ demand, G) has falling slopes: up to where they
//!    fall below 1 there is excess mass, beyond that a shortage.
//! 2. Excess: masses are proportional to demands wherever C ≥ G allows, with the slopes of the
//!    majorant.
//! 3. Shortage: as many entries as possible get all that they demand, the others masses
//!    proportional to their lengths.
//!
//! Complexity: linear in the entries. Deviations: none.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::profile::{Entry, Profile};

/// Choice among the masses with the highest acceptance. It makes no difference at one node, but it
/// does for the tokens drawn next, most of all where the draft lacks tokens that the target has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Proportional to demands where there is excess, and to lengths where there is a shortage.
    #[default]
    Balanced,
    /// Proportional to demands everywhere: the nearest to the target.
    Target,
    /// Proportional to lengths everywhere: the nearest to the draft.
    Draft,
}

/// Consecutive entries with one slope of the majorant.
#[derive(Debug, Clone, Copy)]
struct Run {
    mass: f64,
    demand: f64,
    length: f64,
    /// Index of the first entry.
    first: usize,
}

impl Run {
    /// True if the slope of `next` is larger. Runs without demand are merged.
    fn joins(&self, next: &Self) -> bool {
        self.mass * next.demand < next.mass * self.demand
            || (self.demand <= 0.0 && next.demand <= 0.0)
    }
}

/// The masses of all entries. Computing them again reuses the memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Masses {
    /// The mass of each entry.
    pub by_entry: Vec<f64>,
    /// The mass of each entry's interval if all were laid out in order.
    pub in_order: Vec<f64>,
    /// True for the last entry of a block: up to its end, masses use up everything below.
    pub last: Vec<bool>,
    runs: Vec<Run>,
}

impl Masses {
    /// Computes the masses of the entries, whose lengths sum to that of the segment.
    pub fn compute(&mut self, profile: &impl Profile, entries: &[Entry], choice: Choice) {
        self.in_order.clear();
        let mut below = 0.0;
        for entry in entries {
            self.in_order.push(entry.length * profile.mean(below, entry.length));
            below += entry.length;
        }
        self.majorise(entries);
        self.by_entry.clear();
        self.by_entry.resize(entries.len(), 0.0);
        self.last.clear();
        self.last.resize(entries.len(), false);
        let satisfied = self.runs.iter().take_while(|run| run.mass >= run.demand).count();
        let rank = self.runs.get(satisfied).map_or(entries.len(), |run| run.first);
        match choice {
            Choice::Draft => self.raise(entries, rank),
            Choice::Balanced | Choice::Target => self.follow(entries, 0..satisfied),
        }
        match choice {
            Choice::Target => self.follow(entries, satisfied..self.runs.len()),
            Choice::Balanced | Choice::Draft => self.lower(entries, rank),
        }
    }

    /// Computes the runs of the least concave majorant: neighbours are merged until slopes fall.
    fn majorise(&mut self, entries: &[Entry]) {
        self.runs.clear();
        for (first, (entry, &mass)) in entries.iter().zip(&self.in_order).enumerate() {
            let mut run = Run { mass, demand: entry.demand, length: entry.length, first };
            while let Some(last) = self.runs.pop_if(|last| last.joins(&run)) {
                run = Run {
                    mass: last.mass + run.mass,
                    demand: last.demand + run.demand,
                    length: last.length + run.length,
                    first: last.first,
                };
            }
            self.runs.push(run);
        }
    }

    /// Sets masses by the slopes of the majorant.
    fn follow(&mut self, entries: &[Entry], runs: Range<usize>) {
        for index in runs {
            let run = self.runs[index];
            let end = self.runs.get(index + 1).map_or(entries.len(), |next| next.first);
            let slope = run.mass / run.demand;
            for (mass, entry) in
                self.by_entry[run.first..end].iter_mut().zip(&entries[run.first..end])
            {
                *mass = if slope.is_finite() {
                    slope * entry.demand
                } else {
                    run.mass * (entry.length / run.length)
                };
            }
            self.last[end - 1] = true;
        }
    }

    /// Sets the masses of the first `rank` entries, where there is excess: the entries with the
    /// lowest demand per length get a mass proportional to their length, the others what they
    /// demand.
    fn raise(&mut self, entries: &[Entry], rank: usize) {
        let entries = &entries[..rank];
        let excess: f64 =
            entries.iter().zip(&self.in_order).map(|(entry, mass)| mass - entry.demand).sum();
        let (mut demand, mut length, mut raised) = (excess.max(0.0), 0.0, 0);
        for entry in entries {
            if raised > 0 && entry.demand * length >= demand * entry.length {
                break;
            }
            demand += entry.demand;
            length += entry.length;
            raised += 1;
        }
        let level = demand / length;
        for (index, (mass, entry)) in self.by_entry.iter_mut().zip(entries).enumerate() {
            *mass = if index < raised { entry.length * level } else { entry.demand };
        }
        if rank > 0 {
            self.last[rank - 1] = true;
        }
    }

    /// Sets the masses of the entries from `rank` on, where there is a shortage: the entries with
    /// the highest demand per length get a mass proportional to their length, the others what they
    /// demand.
    fn lower(&mut self, entries: &[Entry], rank: usize) {
        let remaining = entries.iter().zip(&self.in_order).skip(rank);
        let shortage: f64 = remaining.map(|(entry, mass)| entry.demand - mass).sum();
        let (mut demand, mut length, mut lowered) = (-shortage.max(0.0), 0.0, entries.len());
        for (index, entry) in entries.iter().enumerate().skip(rank).rev() {
            if length > 0.0 && demand > 0.0 && entry.demand * length <= demand * entry.length {
                break;
            }
            demand += entry.demand;
            length += entry.length;
            lowered = index;
        }
        let level = demand.max(0.0) / length;
        for (index, (mass, entry)) in self.by_entry.iter_mut().zip(entries).enumerate().skip(rank) {
            *mass = if index >= lowered { entry.length * level } else { entry.demand };
        }
        if let Some(last) = self.last.last_mut() {
            *last = true;
        }
    }
}
