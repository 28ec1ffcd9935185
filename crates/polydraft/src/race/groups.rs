//! Tokens of about the same ratio of demand to probability, as one.

use super::place::{Place, Response};
use super::table::place_of;

/// Groups for each doubling of the ratio, as a power of two.
const FINENESS: u32 = 4;
/// Ratios from 2^−LIMIT to 2^LIMIT have groups of their own.
const LIMIT: u64 = 24;
/// Number of groups; the first has no demand.
pub(super) const GROUPS: usize = ((2 * LIMIT) << FINENESS) as usize + 2;

/// Sums over the tokens of a group.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    /// Σ q, Σ q/(1 − q) and Σ q²/(1 − q).
    pub first: f64,
    pub second: f64,
    pub same: f64,
    /// Σ d.
    pub demand: f64,
    pub place: Place,
}

/// Group of a token.
#[inline]
pub(super) fn group_of(demand: f64, probability: f64) -> usize {
    let ratio = demand / probability;
    // The bits of a positive number grow with it, and by as much for each doubling.
    let steps = (ratio.to_bits() >> (52 - FINENESS)) as i64;
    let lowest = ((1023 - LIMIT) << FINENESS) as i64;
    if ratio > 0.0 { (steps - lowest).clamp(0, GROUPS as i64 - 2) as usize + 1 } else { 0 }
}

impl Group {
    /// First place: a rate of the square of the ratio of demand to the probability of being drawn.
    pub fn start(&mut self, draws: f64) {
        let ratio = self.demand / (draws * self.first).max(f64::MIN_POSITIVE);
        self.place = Place::new(place_of(2.0 * ratio.max(f64::MIN_POSITIVE).ln()));
    }

    /// Moves to the place at which the expected share is the demand. Returns the way, times the
    /// demand.
    pub fn respond(&mut self, response: &Response) -> f64 {
        let share = |place| response.near(self.first, self.second, self.same, place);
        let place = Place::where_share_is(self.demand, self.place.lower, share);
        let way = self.place.way_to(place);
        self.place = place;
        way * self.demand
    }
}
