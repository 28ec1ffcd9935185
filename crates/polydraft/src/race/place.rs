//! Places of tokens on the grid of potentials, and the shares that are expected there.

use super::table::GRID;

/// Index of the last place but one.
pub(super) const LAST: usize = GRID - 2;

/// Place on the grid: between `lower` and the next point, a `fraction` of the way.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Place {
    pub lower: usize,
    pub fraction: f64,
}

impl Place {
    pub fn new(place: f64) -> Self {
        let lower = (place as usize).min(LAST);
        Self { lower, fraction: (place - lower as f64).clamp(0.0, 1.0) }
    }

    /// The place at which a share that grows from place to place is `demand`; the search begins at
    /// `near`.
    #[inline]
    pub fn where_share_is(demand: f64, near: usize, share: impl Fn(usize) -> f64) -> Self {
        let mut lower = near;
        let (mut low, mut high) = (share(lower), share(lower + 1));
        while lower < LAST && demand > high {
            lower += 1;
            (low, high) = (high, share(lower + 1));
        }
        while lower > 0 && demand < low {
            lower -= 1;
            (low, high) = (share(lower), low);
        }
        let width = high - low;
        let fraction = if width > 0.0 { ((demand - low) / width).clamp(0.0, 1.0) } else { 0.0 };
        Self { lower, fraction }
    }

    /// Distance of two places.
    pub fn way_to(self, other: Self) -> f64 {
        let [from, to] = [self, other].map(|place| place.lower as f64 + place.fraction);
        (to - from).abs()
    }

    /// Value of a function on the grid at this place.
    #[inline]
    pub fn of(self, values: &[f64; GRID]) -> f64 {
        let (low, high) = (values[self.lower], values[self.lower + 1]);
        low + self.fraction * (high - low)
    }
}

/// Expected shares at the points of the grid: of a token with `q` and `r`, r·first + q·second −
/// 2·q·r·same.
#[derive(Debug, Clone, Default)]
pub(super) struct Response {
    pub first: [f64; GRID],
    pub second: [f64; GRID],
    pub same: [f64; GRID],
    /// Like `same` for a token at two neighbouring points: the sum of both orders.
    pub mixed: [f64; GRID],
}

impl Response {
    /// Expected share at a point of the grid. The token's own part of the sums is the one of the
    /// place where it is, which slows it down a little.
    #[inline]
    pub fn near(&self, first: f64, second: f64, same: f64, place: usize) -> f64 {
        let sums = second * self.first[place] + first * self.second[place];
        sums - 2.0 * same * self.same[place]
    }
}
