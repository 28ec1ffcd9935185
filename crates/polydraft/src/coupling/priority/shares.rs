//! Sharing out a stretch of priorities so that demands are met as well as they can be.
//!
//! Problem: a stretch [0, T] carries mass with a rising density; G(t), the mass of its lowest t, is convex. Entries
//! with lengths (sum T) and demands share it out: each gets a set of its length, and Σ min(demand, mass of its set)
//! is to be as large as possible.
//! Source: ours, priority coupling (`docs/algorithms.md`). The optimal masses come from running maxima of
//! D_j = G(T_j) − P_j over the entries in order of demand/length; the sets from a walk that gives each entry the one
//! interval *of what is still free* that has its length and its mean density.
//! Complexity: linear in the entries, one root of a monotone function each.
//! Deviations: (1) the masses reported are those of the sets really laid out, so that rounding, and any demands at
//! all, cost acceptance only.

/// A stretch of priorities [0, T] with a rising density of mass.
pub trait Profile {
    /// T.
    fn length(&self) -> f64;

    /// The density at t: the slope of G.
    fn density(&self, t: f64) -> f64;

    /// The mean density on [start, start + length]; the density at `start` if `length` is 0.
    fn mean(&self, start: f64, length: f64) -> f64;

    /// Where the density is about this large: a first guess for a search.
    fn guess(&self, density: f64) -> f64;
}

/// The stretch [0, 1] with G(t) = t^n: the mass is the law of the highest of n independent priorities.
#[derive(Debug, Clone, Copy)]
pub struct Highest {
    count: i32,
}

impl Highest {
    /// The highest of `count` priorities.
    pub fn new(count: usize) -> Self {
        Self { count: i32::try_from(count).unwrap_or(i32::MAX) }
    }
}

impl Profile for Highest {
    fn length(&self) -> f64 {
        1.0
    }

    #[inline]
    fn density(&self, t: f64) -> f64 {
        f64::from(self.count) * t.powi(self.count - 1)
    }

    #[inline]
    fn mean(&self, start: f64, length: f64) -> f64 {
        let end = start + length;
        if self.count <= 16 {
            // Σ end^k start^(n−1−k): (end^n − start^n)/length without the cancellation.
            let (mut sum, mut power) = (1.0, 1.0);
            for _ in 1..self.count {
                power *= end;
                sum = sum * start + power;
            }
            sum
        } else if length > 0.0 {
            let count = f64::from(self.count);
            -end.powi(self.count) * (count * (-length / end).ln_1p()).exp_m1() / length
        } else {
            self.density(start)
        }
    }

    fn guess(&self, density: f64) -> f64 {
        match self.count {
            ..=1 => 0.0,
            2 => 0.5 * density,
            3 => (density / 3.0).sqrt(),
            n => (density / f64::from(n)).powf(1.0 / f64::from(n - 1)),
        }
    }
}

/// What an entry has to get: `length` of the stretch, and if possible `demand` of its mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Length of its set.
    pub length: f64,
    /// The mass that it can use; more is wasted.
    pub demand: f64,
}

/// An interval of the stretch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub start: f64,
    /// Length.
    pub length: f64,
}

/// The sets of all entries. Reusable: sharing again keeps the memory.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    intervals: Vec<Interval>,
    ends: Vec<usize>,
    masses: Vec<f64>,
    gaps: Vec<Interval>,
}

impl Shares {
    /// The intervals of an entry, in the order of the entries given to [`Shares::share`].
    pub fn intervals(&self, entry: usize) -> &[Interval] {
        let start = if entry == 0 { 0 } else { self.ends[entry - 1] };
        &self.intervals[start..self.ends[entry]]
    }

    /// The mass of every entry's set.
    pub fn masses(&self) -> &[f64] {
        &self.masses
    }

    /// Shares the stretch. The entries come in order of rising demand/length, lengths summing to T. Demands may sum
    /// to less than the mass of the stretch.
    pub fn share(&mut self, profile: &impl Profile, entries: &[Entry]) {
        self.optimal_masses(profile, entries);
        self.intervals.clear();
        self.ends.clear();
        self.gaps.clear();
        let mut frontier = 0.0;
        for (index, entry) in entries.iter().enumerate() {
            if entry.length > 0.0 {
                let first = self.intervals.len();
                frontier = self.lay_out(profile, frontier, entry.length, self.masses[index]);
                let own = &self.intervals[first..];
                self.masses[index] =
                    own.iter().map(|own| own.length * profile.mean(own.start, own.length)).sum();
            } else {
                self.masses[index] = 0.0;
            }
            self.ends.push(self.intervals.len());
        }
    }

    /// The masses that maximise Σ min(demand, mass) over all ways to share.
    ///
    /// Up to the maximum of D they exceed the demands by the rises of D's running maximum from the left; beyond it
    /// they fall short by the falls of its running maximum from the right.
    ///
    /// Only the distance of D from its running maximum is kept: differences of D itself would lose the digits of
    /// entries much smaller than D.
    fn optimal_masses(&mut self, profile: &impl Profile, entries: &[Entry]) {
        let masses = &mut self.masses;
        masses.clear();
        let (mut below, mut d, mut top, mut rank) = (0.0, 0.0, 0.0, 0);
        for (index, entry) in entries.iter().enumerate() {
            // In place first: the mass of the interval that it would get if all were laid out in order.
            masses.push(entry.length * profile.mean(below, entry.length));
            below += entry.length;
            d += masses[index] - entry.demand;
            if d > top {
                (top, rank) = (d, index + 1);
            }
        }
        let mut distance = 0.0;
        for (index, (entry, mass)) in entries.iter().zip(&mut *masses).enumerate().take(rank) {
            let after = distance - (*mass - entry.demand);
            if after <= 0.0 || index + 1 == rank {
                *mass -= distance;
                distance = 0.0;
            } else {
                *mass = entry.demand;
                distance = after;
            }
        }
        distance = 0.0;
        for (entry, mass) in entries.iter().zip(masses).skip(rank).rev() {
            let after = distance + (*mass - entry.demand);
            if after <= 0.0 {
                *mass += distance;
                distance = 0.0;
            } else {
                *mass = entry.demand;
                distance = after;
            }
        }
    }

    /// Finds a set of this length and mass for one entry and returns the new frontier: everything above it is free,
    /// below it the gaps are.
    fn lay_out(&mut self, profile: &impl Profile, frontier: f64, length: f64, mass: f64) -> f64 {
        let end = profile.length();
        let room = end - frontier;
        if length <= NOTHING * end {
            self.intervals.push(Interval { start: frontier, length });
            return frontier + length;
        }
        let missing = mass - length * profile.mean(frontier, length);
        if length <= room && missing >= -TOLERANCE * mass {
            let mut start = frontier;
            if missing > TOLERANCE * mass {
                let slid = slide(profile, frontier, end - length, length, mass / length);
                // A gap of a rounding error would only be in the way.
                if slid - frontier > SNAP * end {
                    self.gaps.push(Interval { start: frontier, length: slid - frontier });
                    start = slid;
                }
            }
            self.intervals.push(Interval { start, length });
            return start + length;
        }
        // Its mean is below that at the frontier: take from the gaps, nearest first, and the rest at the frontier.
        let (mut length, mut mass) = (length, mass);
        while let Some(gap) = self.gaps.last_mut() {
            let whole = gap.length * profile.mean(gap.start, gap.length);
            if gap.length <= length {
                let rest = length - gap.length;
                if rest > room || whole + rest * profile.mean(frontier, rest) >= mass {
                    self.intervals.push(*gap);
                    self.gaps.pop();
                    (length, mass) = (rest, mass - whole);
                    continue;
                }
            }
            let taken = cut(profile, *gap, frontier, room, length, mass);
            let taken = if gap.length >= length && length - taken <= SNAP * end { length } else { taken };
            if taken > 0.0 {
                gap.length -= taken;
                self.intervals.push(Interval { start: gap.start + gap.length, length: taken });
                length -= taken;
                if gap.length <= 0.0 {
                    self.gaps.pop();
                }
            }
            break;
        }
        if length <= 0.0 {
            return frontier;
        }
        self.intervals.push(Interval { start: frontier, length });
        frontier + length
    }
}

/// Relative error at which a search stops: it costs at most that much acceptance.
const TOLERANCE: f64 = 1e-14;
/// Lengths of this part of the stretch are rounding errors.
const SNAP: f64 = 1e-15;
/// Entries this short stay where the frontier is: they carry nothing, and their mean has lost its digits if their length
/// is a subnormal number.
const NOTHING: f64 = 1e-25;

/// The start in [low, high] of the interval of this length with this mean.
fn slide(profile: &impl Profile, low: f64, high: f64, length: f64, mean: f64) -> f64 {
    search(low, high, profile.guess(mean) - 0.5 * length, |start| {
        let slope = (profile.density(start + length) - profile.density(start)) / length;
        (profile.mean(start, length) - mean, slope, TOLERANCE * mean)
    })
}

/// How much to take from the top of `gap`, the rest of `length` coming from the frontier, to get this mass.
fn cut(profile: &impl Profile, gap: Interval, frontier: f64, room: f64, length: f64, mass: f64) -> f64 {
    let least = (length - room).max(0.0).min(gap.length);
    let most = gap.length.min(length);
    let end = gap.start + gap.length;
    // Negated, to be rising.
    search(least, most, 0.5 * (least + most), |taken| {
        let rest = length - taken;
        let got = taken * profile.mean(end - taken, taken) + rest * profile.mean(frontier, rest);
        let slope = profile.density(frontier + rest) - profile.density(end - taken);
        (mass - got, slope, TOLERANCE * mass)
    })
}

/// The root of a rising function in [low, high], or the end where it is nearest to 0: Newton's method inside a
/// bracket. `evaluate` gives value, slope, and the size of value to accept.
fn search(low: f64, high: f64, guess: f64, evaluate: impl Fn(f64) -> (f64, f64, f64)) -> f64 {
    let (mut low, mut high) = (low, high);
    if low >= high {
        return low;
    }
    let mut x = if guess > low && guess < high { guess } else { 0.5 * (low + high) };
    for _ in 0..80 {
        let (value, slope, tolerance) = evaluate(x);
        if value.abs() <= tolerance {
            break;
        }
        if value < 0.0 {
            low = x
        } else {
            high = x
        }
        let newton = x - value / slope;
        let next = if newton > low && newton < high { newton } else { 0.5 * (low + high) };
        if (next - x).abs() <= 1e-16 * x.abs() {
            break;
        }
        x = next;
    }
    x
}
