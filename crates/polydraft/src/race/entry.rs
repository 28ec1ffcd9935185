//! Draws at one node in a race.
//!
//! Let φ(s) be a token's expected wait over its two places. For k independent draws the generating
//! function is E Π φ = (Σ qφ)^k. For a pair without replacement, with r = q/(1 − q), it is
//! Σ_{i≠j} q_i r_j φ_i φ_j = (Σ qφ)(Σ rφ) − Σ q r φ². Tokens of large q stay out of the sums, and
//! their products are added one by one: r has no bound, and the difference would lose all digits.

use super::Kind;
use super::groups::{GROUPS, Group, group_of};
use super::place::{LAST, Place, Response};
use super::table::{GRID, POINTS, Table, place_of, table};
use crate::drafting::hit_probability;

/// Tokens of larger q are handled one by one.
const HEAVY: f64 = 1.0 / 64.0;

/// A token of large probability in a pair.
#[derive(Debug, Clone, Copy, Default)]
struct Heavy {
    index: usize,
    first: f64,
    second: f64,
    place: Place,
    /// Σ qφ and Σ rφ of the tokens before it.
    rest: (f64, f64),
    /// Probability that it is drawn.
    drawn: f64,
    /// Expected shares at the points of the grid, and with inertia.
    shares: [f64; GRID],
    slowed: [f64; GRID],
    share: f64,
}

impl Heavy {
    /// Adds a point of the integral to the expected shares, where the others wait with this
    /// probability and the token is drawn.
    ///
    /// If two tokens that are always drawn together both take their best places, they move twice as
    /// far apart as they should. Inertia is another token like itself that stays where it is.
    fn expect(&mut self, others: f64, point: usize, table: &Table) {
        let itself = self.drawn * self.drawn * self.place.of(&table.waits[point]);
        for place in 0..GRID {
            let (ring, wait) = (table.rings[point][place], table.waits[point][place]);
            self.shares[place] += ring * others;
            self.slowed[place] += ring * (others + itself - self.drawn * self.drawn * wait);
        }
    }
}

/// Sums over tokens by the point of the grid.
#[derive(Debug, Clone, Default)]
struct Sums {
    first: [f64; GRID],
    second: [f64; GRID],
    same: [f64; GRID],
    mixed: [f64; GRID],
}

impl Sums {
    #[inline]
    fn add(&mut self, place: Place, first: f64, second: f64, same: f64) {
        let Place { lower, fraction } = place;
        let rest = 1.0 - fraction;
        self.first[lower] += rest * first;
        self.first[lower + 1] += fraction * first;
        self.second[lower] += rest * second;
        self.second[lower + 1] += fraction * second;
        self.same[lower] += rest * rest * same;
        self.same[lower + 1] += fraction * fraction * same;
        self.mixed[lower] += 2.0 * rest * fraction * same;
    }
}

/// Tokens that get no share: Σ q, Σ q/(1 − q) and Σ q²/(1 − q).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ignored {
    first: f64,
    second: f64,
    same: f64,
}

impl Ignored {
    /// Adds a token of this probability.
    #[inline]
    pub fn add(&mut self, probability: f64) {
        let second = odds(probability);
        self.first += probability;
        self.second += second;
        self.same += probability * second;
    }
}

/// Clock of a drawn token.
pub(super) struct Clock {
    /// Part of its share that is within the demand.
    pub fraction: f64,
    pub waits: [f64; POINTS],
    pub first: [f64; POINTS],
}

/// Draws at one node.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    kind: Kind,
    /// By token: its probability in a draw, the demand, and the place.
    probabilities: Vec<f64>,
    demand: Vec<f64>,
    /// Tokens without a clock.
    rest: Ignored,
    places: Vec<f32>,
    heavy: Vec<Heavy>,
    groups: Vec<Group>,
    /// Σ qφ and Σ rφ at every point, without heavy tokens, and the generating function.
    first: [f64; POINTS],
    second: [f64; POINTS],
    generating: [f64; POINTS],
    response: Response,
    accepted: f64,
    left: Vec<f64>,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            kind: Kind::Independent(1),
            probabilities: Vec::new(),
            demand: Vec::new(),
            rest: Ignored::default(),
            places: Vec::new(),
            heavy: Vec::new(),
            groups: Vec::new(),
            first: [0.0; POINTS],
            second: [0.0; POINTS],
            generating: [1.0; POINTS],
            response: Response::default(),
            accepted: 0.0,
            left: Vec::new(),
        }
    }
}

/// Sum of products, in four lanes.
#[inline]
fn dot(left: &[f64; GRID], right: &[f64; GRID]) -> f64 {
    let mut lanes = [0.0; 4];
    for (left, right) in left.as_chunks::<4>().0.iter().zip(right.as_chunks::<4>().0) {
        for lane in 0..4 {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    lanes[0] + lanes[1] + (lanes[2] + lanes[3])
}

/// q/(1 − q).
#[inline]
fn odds(probability: f64) -> f64 {
    probability / (1.0 - probability)
}

impl Entry {
    pub fn start(
        &mut self,
        kind: Kind,
        fill: impl FnOnce(&mut Vec<f64>, &mut Vec<f64>) -> Ignored,
    ) {
        self.kind = kind;
        self.probabilities.clear();
        self.demand.clear();
        self.rest = fill(&mut self.probabilities, &mut self.demand);
        debug_assert_eq!(self.probabilities.len(), self.demand.len());
    }

    /// Number of tokens that get shares.
    pub fn len(&self) -> usize {
        self.probabilities.len()
    }

    fn is_pair(&self) -> bool {
        self.kind == Kind::Pair
    }

    /// Sums up the groups, and gives them their first places.
    pub fn collect(&mut self) {
        self.heavy.clear();
        self.groups.clear();
        self.groups.resize(GROUPS, Group::default());
        let is_pair = self.is_pair();
        for (index, (&first, &demand)) in self.probabilities.iter().zip(&self.demand).enumerate() {
            if first <= 0.0 {
                continue;
            }
            if first > HEAVY {
                self.heavy.push(Heavy { index, first, ..Heavy::default() });
                continue;
            }
            let group = &mut self.groups[group_of(demand, first)];
            let second = if is_pair { odds(first) } else { 0.0 };
            group.first += first;
            group.second += second;
            group.same += first * second;
            group.demand += demand;
        }
        self.groups.retain(|group| group.first > 0.0);
        self.start_heavy();
        let mut sums = Sums::default();
        for group in &self.groups {
            sums.add(group.place, group.first, group.second, group.same);
        }
        self.generate(&sums);
    }

    /// Completes what is known of heavy tokens, and gives them their first places.
    fn start_heavy(&mut self) {
        let light = self.groups.iter().map(|group| group.first).sum::<f64>() + self.rest.first;
        if self.is_pair() {
            for number in 0..self.heavy.len() {
                let others = self.heavy.iter().enumerate().filter(|(other, _)| *other != number);
                let rest = light + others.map(|(_, other)| other.first).sum::<f64>();
                let heavy = &mut self.heavy[number];
                heavy.second = heavy.first / rest.max(f64::MIN_POSITIVE);
            }
        }
        let light = self.groups.iter().map(|group| group.second).sum::<f64>() + self.rest.second;
        for number in 0..self.heavy.len() {
            let others = self.heavy.iter().enumerate().filter(|(other, _)| *other != number);
            let second = light + others.map(|(_, other)| other.second).sum::<f64>();
            let heavy = &mut self.heavy[number];
            heavy.drawn = match self.kind {
                Kind::Independent(count) => hit_probability(heavy.first, count),
                Kind::Pair => heavy.first * (1.0 + second),
            };
            let ratio = self.demand[heavy.index] / heavy.drawn;
            heavy.place = Place::new(place_of(2.0 * ratio.max(f64::MIN_POSITIVE).ln()));
        }
        let all = light + self.heavy.iter().map(|heavy| heavy.second).sum::<f64>();
        let draws = match self.kind {
            Kind::Independent(count) => count as f64,
            Kind::Pair => 1.0 + all,
        };
        self.groups.iter_mut().for_each(|group| group.start(draws));
    }

    /// Computes the generating function.
    fn generate(&mut self, sums: &Sums) {
        let table = table();
        for point in 0..POINTS {
            let waits = &table.waits[point];
            let has_light = !self.groups.is_empty();
            let sum_of = |sums: &[f64; GRID]| if has_light { dot(sums, waits) } else { 0.0 };
            let light = sum_of(&sums.first) + self.rest.first;
            self.first[point] = light;
            if let Kind::Independent(count) = self.kind {
                let heavy = self.heavy.iter().map(|heavy| heavy.first * heavy.place.of(waits));
                self.first[point] += heavy.sum::<f64>();
                self.generating[point] = self.first[point].powi(count as i32);
                continue;
            }
            let second = sum_of(&sums.second) + self.rest.second;
            let mut same = self.rest.same;
            if has_light {
                let squares: [f64; GRID] = std::array::from_fn(|place| waits[place] * waits[place]);
                let next =
                    |place: usize| waits.get(place + 1).map_or(0.0, |next| waits[place] * next);
                let mixed: [f64; GRID] = std::array::from_fn(next);
                same += dot(&sums.same, &squares) + dot(&sums.mixed, &mixed);
            }
            let mut pairs = (light * second - same).max(0.0);
            let (mut first, mut all_second) = (light, second);
            for heavy in &self.heavy {
                let wait = heavy.place.of(waits);
                pairs += wait * (heavy.first * all_second + heavy.second * first);
                first += heavy.first * wait;
                all_second += heavy.second * wait;
            }
            self.second[point] = second;
            self.generating[point] = pairs;
        }
    }

    pub fn generating(&self) -> &[f64; POINTS] {
        &self.generating
    }

    /// Computes the expected shares at the points of the grid.
    fn expect(&mut self, others: &[f64; POINTS]) {
        let table = table();
        let mut response = Response::default();
        for heavy in &mut self.heavy {
            (heavy.shares, heavy.slowed) = ([0.0; GRID], [0.0; GRID]);
        }
        for point in 0..POINTS {
            let (rings, waits) = (&table.rings[point], &table.waits[point]);
            let others = others[point];
            let (first, second) = match self.kind {
                Kind::Independent(count) => {
                    let rest = self.first[point].powi(count as i32 - 1);
                    let one = count as f64 * rest * others;
                    for heavy in &mut self.heavy {
                        heavy.expect(heavy.first * one, point, table);
                    }
                    (0.0, one)
                }
                Kind::Pair => {
                    let (first, second) = self.expect_heavy(point, others, table);
                    if self.groups.is_empty() {
                        continue;
                    }
                    for place in 0..GRID {
                        response.same[place] += rings[place] * waits[place] * others;
                    }
                    for place in 0..GRID - 1 {
                        let both =
                            rings[place] * waits[place + 1] + rings[place + 1] * waits[place];
                        response.mixed[place] += both * others;
                    }
                    (first * others, second * others)
                }
            };
            let shares = response.first.iter_mut().zip(&mut response.second);
            for ((of_first, of_second), ring) in shares.zip(rings) {
                *of_first += ring * first;
                *of_second += ring * second;
            }
        }
        self.response = response;
    }

    /// Adds one point to the expected shares of heavy tokens. Returns Σ qφ and Σ rφ of all tokens.
    fn expect_heavy(&mut self, point: usize, others: f64, table: &Table) -> (f64, f64) {
        let waits = &table.waits[point];
        // Without the token itself: its own part would not cancel.
        let mut sums = (self.first[point], self.second[point]);
        for heavy in &mut self.heavy {
            heavy.rest = sums;
            let wait = heavy.place.of(waits);
            sums = (sums.0 + heavy.first * wait, sums.1 + heavy.second * wait);
        }
        let mut after = (0.0, 0.0);
        for heavy in self.heavy.iter_mut().rev() {
            let (first, second) = (heavy.rest.0 + after.0, heavy.rest.1 + after.1);
            let pair = (heavy.second * first + heavy.first * second) * others;
            heavy.expect(pair, point, table);
            let wait = heavy.place.of(waits);
            after = (after.0 + heavy.first * wait, after.1 + heavy.second * wait);
        }
        sums
    }

    /// Moves the groups to their best places. Returns the sum of their ways, times their demands.
    pub fn respond(&mut self, others: &[f64; POINTS]) -> f64 {
        self.expect(others);
        let mut sums = Sums::default();
        let mut ways = self.respond_heavy();
        for group in &mut self.groups {
            ways += group.respond(&self.response);
            sums.add(group.place, group.first, group.second, group.same);
        }
        self.generate(&sums);
        ways
    }

    fn respond_heavy(&mut self) -> f64 {
        let mut ways = 0.0;
        for heavy in &mut self.heavy {
            let (demand, shares) = (self.demand[heavy.index], &heavy.slowed);
            let place = Place::where_share_is(demand, heavy.place.lower, |place| shares[place]);
            ways += heavy.place.way_to(place) * demand;
            heavy.place = place;
        }
        ways
    }

    /// Gives every token its place.
    pub fn place(&mut self, others: &[f64; POINTS]) {
        self.expect(others);
        let (is_pair, response) = (self.is_pair(), &self.response);
        let mut sums = Sums::default();
        let mut near = vec![usize::MAX; GROUPS];
        self.places.clear();
        for (&first, &demand) in self.probabilities.iter().zip(&self.demand) {
            if first <= 0.0 || first > HEAVY {
                self.places.push(0.0);
                continue;
            }
            let second = if is_pair { odds(first) } else { 0.0 };
            let same = first * second;
            let share = |place| response.near(first, second, same, place);
            let hint = &mut near[group_of(demand, first)];
            let start = if *hint == usize::MAX { LAST / 2 } else { *hint };
            let place = Place::where_share_is(demand, start, share);
            *hint = place.lower;
            // As it is stored, so that the sums are those of the places that are used.
            let stored = place.lower as f32 + place.fraction as f32;
            self.places.push(stored);
            sums.add(Place::new(f64::from(stored)), first, second, same);
        }
        self.respond_heavy();
        self.generate(&sums);
    }

    /// Computes the expected shares, and what they leave of the demand.
    pub fn settle(&mut self, others: &[f64; POINTS]) {
        self.expect(others);
        for heavy in &mut self.heavy {
            heavy.share = heavy.place.of(&heavy.shares);
        }
        self.accepted = 0.0;
        let mut left = std::mem::take(&mut self.left);
        left.clear();
        for (index, &demand) in self.demand.iter().enumerate() {
            let share = self.share(index).min(demand);
            self.accepted += share;
            left.push(demand - share);
        }
        self.left = left;
    }

    /// Expected share of a token.
    fn share(&self, index: usize) -> f64 {
        let first = self.probabilities[index];
        if first <= 0.0 {
            return 0.0;
        }
        if first > HEAVY {
            let heavy = self.heavy.iter().find(|heavy| heavy.index == index);
            return heavy.map_or(0.0, |heavy| heavy.share);
        }
        let place = Place::new(f64::from(self.places[index]));
        let (response, Place { lower, fraction }) = (&self.response, place);
        if !self.is_pair() {
            return first * place.of(&response.second);
        }
        let (second, rest) = (odds(first), 1.0 - fraction);
        let same = rest * rest * response.same[lower]
            + rest * fraction * response.mixed[lower]
            + fraction * fraction * response.same[lower + 1];
        let both = second * place.of(&response.first) + first * place.of(&response.second);
        (both - 2.0 * first * second * same).max(0.0)
    }

    fn place_at(&self, index: usize) -> Place {
        let heavy = self.heavy.iter().find(|heavy| heavy.index == index);
        let heavy = heavy.filter(|_| self.probabilities[index] > HEAVY);
        heavy.map_or_else(|| Place::new(f64::from(self.places[index])), |heavy| heavy.place)
    }

    pub fn accepted(&self) -> f64 {
        self.accepted
    }

    pub fn probabilities(&self) -> &[f64] {
        &self.probabilities
    }

    pub fn left(&self) -> &[f64] {
        &self.left
    }

    /// Clock of a drawn token.
    pub fn clock(&self, index: usize, table: &Table) -> Clock {
        let (place, share, demand) = (self.place_at(index), self.share(index), self.demand[index]);
        let fraction =
            if share > demand { demand / share } else { f64::from(u8::from(share > 0.0)) };
        let mut clock = Clock { fraction, waits: [0.0; POINTS], first: [0.0; POINTS] };
        for point in 0..POINTS {
            clock.waits[point] = place.of(&table.waits[point]);
            clock.first[point] = place.of(&table.rings[point]);
        }
        clock
    }
}
