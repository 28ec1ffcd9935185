//! The masses that entries shall get of a segment.
//!
//! Problem: of all masses that sets of the entries' lengths can have, those with the largest
//! Σ min(demand, mass); and among these, those of which the tokens drawn next can make most.
//! Source: ours (`docs/theory.md`, theorem 6 and proposition 23). Entries come in order of rising
//! demand/length. With C_i the mass of the first i and G_i the mass of the lowest so much of the
//! segment, C ≥ G is all that is asked.
//! 1. The least concave majorant of the points (Σ demand, G) has falling slopes: up to where they
//!    fall below 1 there is too much, beyond too little.
//! 2. Too much: masses are in proportion to demands wherever C ≥ G allows, which are the slopes of
//!    the majorant.
//! 3. Too little: as many entries as need it least get all that they demand, the others masses in
//!    proportion to their lengths.
//!
//! Complexity: linear in the entries. Deviations: none.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::profile::{Entry, Profile};

/// Which of the masses with the largest acceptance entries get. At one node it is no matter; for
/// the tokens drawn next it is, most of all where the draft lacks tokens that the target wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Where there is too much, in proportion to demands; where there is too little, in proportion
    /// to lengths.
    #[default]
    Balanced,
    /// In proportion to demands everywhere: the nearest to the target.
    Target,
    /// In proportion to lengths everywhere: the nearest to the draft.
    Draft,
}

/// Consecutive entries with one slope of the majorant.
#[derive(Debug, Clone, Copy)]
struct Run {
    mass: f64,
    demand: f64,
    length: f64,
    /// The number of its first entry.
    first: usize,
}

impl Run {
    /// Whether the slope of `next` is larger. Runs without demand are one.
    fn joins(&self, next: &Self) -> bool {
        self.mass * next.demand < next.mass * self.demand
            || (self.demand <= 0.0 && next.demand <= 0.0)
    }
}

/// The masses of all entries. Reusable: making it again keeps the memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Masses {
    /// By entry.
    pub own: Vec<f64>,
    /// The mass of the interval that each entry would get if all were laid out in order.
    pub in_order: Vec<f64>,
    /// Whether an entry is the last of its block: up to its end, masses use up all that is below.
    pub last: Vec<bool>,
    runs: Vec<Run>,
}

impl Masses {
    /// Makes the masses of the entries, whose lengths sum to that of the segment.
    pub fn make(&mut self, profile: &impl Profile, entries: &[Entry], choice: Choice) {
        self.in_order.clear();
        let mut below = 0.0;
        for entry in entries {
            self.in_order.push(entry.length * profile.mean(below, entry.length));
            below += entry.length;
        }
        self.majorise(entries);
        self.own.clear();
        self.own.resize(entries.len(), 0.0);
        self.last.clear();
        self.last.resize(entries.len(), false);
        let enough = self.runs.iter().take_while(|run| run.mass >= run.demand).count();
        let rank = self.runs.get(enough).map_or(entries.len(), |run| run.first);
        match choice {
            Choice::Draft => self.raise(entries, rank),
            Choice::Balanced | Choice::Target => self.follow(entries, 0..enough),
        }
        match choice {
            Choice::Target => self.follow(entries, enough..self.runs.len()),
            Choice::Balanced | Choice::Draft => self.lower(entries, rank),
        }
    }

    /// The runs of the least concave majorant: neighbours are joined until slopes fall.
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

    /// Masses with the slopes of the majorant.
    fn follow(&mut self, entries: &[Entry], runs: Range<usize>) {
        for index in runs {
            let run = self.runs[index];
            let end = self.runs.get(index + 1).map_or(entries.len(), |next| next.first);
            let slope = run.mass / run.demand;
            for (mass, entry) in self.own[run.first..end].iter_mut().zip(&entries[run.first..end]) {
                *mass = if slope.is_finite() {
                    slope * entry.demand
                } else {
                    run.mass * (entry.length / run.length)
                };
            }
            self.last[end - 1] = true;
        }
    }

    /// Of the first `rank` entries, which get too much, those that demand least for their length
    /// get a mass in proportion to it, and the others what they demand.
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
        for (index, (mass, entry)) in self.own.iter_mut().zip(entries).enumerate() {
            *mass = if index < raised { entry.length * level } else { entry.demand };
        }
        if rank > 0 {
            self.last[rank - 1] = true;
        }
    }

    /// Of the entries from `rank` on, which get too little, those that demand most for their length
    /// get a mass in proportion to it, and the others what they demand.
    fn lower(&mut self, entries: &[Entry], rank: usize) {
        let lacking = entries.iter().zip(&self.in_order).skip(rank);
        let lack: f64 = lacking.map(|(entry, mass)| entry.demand - mass).sum();
        let (mut demand, mut length, mut lowered) = (-lack.max(0.0), 0.0, entries.len());
        for (index, entry) in entries.iter().enumerate().skip(rank).rev() {
            if length > 0.0 && demand > 0.0 && entry.demand * length <= demand * entry.length {
                break;
            }
            demand += entry.demand;
            length += entry.length;
            lowered = index;
        }
        let level = demand.max(0.0) / length;
        for (index, (mass, entry)) in self.own.iter_mut().zip(entries).enumerate().skip(rank) {
            *mass = if index >= lowered { entry.length * level } else { entry.demand };
        }
        if let Some(last) = self.last.last_mut() {
            *last = true;
        }
    }
}
