//! Selection by a race: shares of what was drawn at several nodes whose expectation is known.
//!
//! Problem: tokens were drawn at some nodes, each by independent draws or as a pair without
//! replacement. Divide a unit among the drawn tokens such that the expected share of token y at
//! node x is close to a demand `d_xy`, and is known exactly.
//! Source: ours (`docs/theory.md`, pooled layers). For one node and a pair it reaches the best
//! acceptance of any rule within 1e-5; the bound is that of Hu et al. 2025.
//! Method: every token has a clock of rate `u = e^a`; a share is the probability that the clock of
//! a drawn token rings first. With φ_y(s) = e^(−u_y·s), the share of y is ∫ u_y Π φ(s) ds over
//! the drawn tokens, and its expectation ∫ u_y·E[1(y drawn) Π φ(s)] ds, a product over the nodes
//! of functions that have a closed form for these draws. The integral is a fixed sum over points s
//! (`table`), and the sum, not the integral, is the definition: then shares and expectations agree
//! to rounding, and no share is above 1.
//! 1. Potentials lie on a grid. A token between two points has both, in proportion, so that its
//!    expected share is nearly linear in its place.
//! 2. Best responses: with the expected shares of all places given, every token takes the place at
//!    which its share is its demand. Repeated at most [`ROUNDS`] times on groups of tokens with
//!    about the same ratio d/q, then once for every token.
//! 3. Shares are scaled by min(1, demand/expectation), so that no demand is exceeded (the canonical
//!    form of Khisti et al.). Places that are not the best cost acceptance, never exactness.
//!
//! Complexity: three passes over the support of each node, and `ROUNDS` times the size of the table
//! for each node.

mod entry;
mod groups;
pub(crate) mod layer;
mod place;
mod table;

use rayon::prelude::*;

use entry::{Entry, Ignored};
use table::{POINTS, table};

/// Maximum best responses on groups, and the way of all places, times demands, below which they
/// end.
const ROUNDS: usize = 8;
const SETTLED: f64 = 2e-3;

/// Tokens of all entries from which on several threads pay.
const PARALLEL: usize = 1 << 11;

/// Draws at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Independent draws, with their number.
    Independent(usize),
    /// Two draws without replacement.
    Pair,
}

/// Nodes whose draws share one unit, with buffers that are used again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Race {
    entries: Vec<Entry>,
    used: usize,
    /// By entry: the product over all other entries at every point.
    others: Vec<[f64; POINTS]>,
}

impl Race {
    /// Removes all entries.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds draws of this kind. The function fills in the probability of each token in a draw and
    /// the demand for it, both of the same length, and returns the tokens that get no share;
    /// demands of all entries sum to at most 1.
    pub fn add(&mut self, kind: Kind, fill: impl FnOnce(&mut Vec<f64>, &mut Vec<f64>) -> Ignored) {
        if self.entries.len() == self.used {
            self.entries.push(Entry::default());
        }
        let entry = &mut self.entries[self.used];
        self.used += 1;
        entry.start(kind, fill);
    }

    /// Chooses all potentials and computes the expected shares.
    pub fn prepare(&mut self) {
        self.each(|entry, _| entry.collect());
        for _ in 0..ROUNDS {
            self.multiply();
            let entries = self.entries[..self.used].iter_mut().zip(&self.others);
            if entries.map(|(entry, others)| entry.respond(others)).sum::<f64>() < SETTLED {
                break;
            }
        }
        self.multiply();
        self.each(Entry::place);
        self.multiply();
        self.each(Entry::settle);
    }

    /// Calls `work` for every entry with the product over all others; on the caller's threads where
    /// that pays.
    fn each(&mut self, work: impl Fn(&mut Entry, &[f64; POINTS]) + Sync) {
        let entries = &mut self.entries[..self.used];
        self.others.resize(entries.len(), [1.0; POINTS]);
        let tokens: usize = entries.iter().map(Entry::len).sum();
        if entries.len() > 1 && tokens > PARALLEL && rayon::current_num_threads() > 1 {
            let all = entries.par_iter_mut().zip(&self.others);
            all.for_each(|(entry, others)| work(entry, others));
        } else {
            entries.iter_mut().zip(&self.others).for_each(|(entry, others)| work(entry, others));
        }
    }

    /// Computes the products over all other entries.
    fn multiply(&mut self) {
        let entries = &self.entries[..self.used];
        self.others.clear();
        let mut before = [1.0; POINTS];
        for entry in entries {
            self.others.push(before);
            before.iter_mut().zip(entry.generating()).for_each(|(product, g)| *product *= g);
        }
        let mut after = [1.0; POINTS];
        for (entry, others) in entries.iter().zip(&mut self.others).rev() {
            others.iter_mut().zip(&after).for_each(|(product, g)| *product *= g);
            after.iter_mut().zip(entry.generating()).for_each(|(product, g)| *product *= g);
        }
    }

    /// Sum of the expected shares of an entry's tokens.
    pub fn accepted(&self, entry: usize) -> f64 {
        self.entries[entry].accepted()
    }

    /// What the expected shares of an entry leave of its demand, by token.
    pub fn left(&self, entry: usize) -> &[f64] {
        self.entries[entry].left()
    }

    /// Probabilities of an entry's tokens in a draw.
    pub fn probabilities(&self, entry: usize) -> &[f64] {
        self.entries[entry].probabilities()
    }

    /// The shares of drawn tokens, of which there are pairs of an entry and an index in it. They
    /// sum to at most 1.
    pub fn shares(&self, drawn: &[(usize, usize)], shares: &mut Vec<f64>) {
        let table = table();
        let all: Vec<_> =
            drawn.iter().map(|&(entry, index)| self.entries[entry].clock(index, table)).collect();
        shares.clear();
        shares.extend(all.iter().enumerate().map(|(number, clock)| {
            let product = |point: usize| {
                let others = all.iter().enumerate().filter(|(other, _)| *other != number);
                others.fold(clock.first[point], |product, (_, other)| product * other.waits[point])
            };
            clock.fraction * (0..POINTS).map(product).sum::<f64>()
        }));
    }
}

#[cfg(test)]
mod tests;
