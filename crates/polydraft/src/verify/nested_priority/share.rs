//! Shares: distributions of the priorities of the paths through a node.
//!
//! Problem: a node's share of [0, 1] is a piecewise uniform distribution of its paths' priority. To
//! divide it among next tokens it is laid out as a segment of length 1, lowest priorities first,
//! whose density is that of the highest of K priorities; a token's part of the segment is a
//! distribution of the priority again.
//! Source: ours (`super`). Complexity: constant per look-up for the few intervals that occur;
//! logarithmic in general.
//! Deviations: none.

use crate::coupling::priority::shares::{Highest, Profile};
use crate::priorities::WeightedInterval;

/// A piecewise uniform distribution of priorities.
#[derive(Debug, Clone, Default)]
pub(super) struct Share {
    /// Disjoint, ascending intervals; the weights sum to 1.
    intervals: Vec<WeightedInterval>,
    /// Total weight below each interval.
    below: Vec<f64>,
    /// Length of priorities per unit of weight, per interval.
    slopes: Vec<f64>,
    /// Fraction of the probability of being selected that lies below each interval.
    selected: Vec<f64>,
    /// Mean density of the highest priority under this distribution: probability of being selected
    /// per probability of being drawn.
    mean: f64,
    /// The parts of the parent's segment that make up this share; scratch buffer of
    /// [`set_part`](Self::set_part).
    parts: Vec<WeightedInterval>,
    /// The ends of the parts, ascending; scratch buffer.
    ends: Vec<f64>,
}

impl Share {
    /// Sets the root's share: all priorities.
    pub fn set_all(&mut self, highest: Highest) {
        self.intervals.clear();
        self.intervals.push(WeightedInterval { start: 0.0, length: 1.0, weight: 1.0 });
        self.finish(highest);
    }

    /// True if the share is all priorities.
    pub fn is_all(&self) -> bool {
        matches!(self.intervals[..], [WeightedInterval { start: 0.0, length: 1.0, .. }])
    }

    /// Sets the share to `parts` of the segment of `parent`, which may overlap, converted to
    /// priorities.
    ///
    /// Ends are compared within the segment, where 1 is the probability of the parent: positions in
    /// [0, 1] would lose the digits of a deep node's share.
    pub fn set_part(
        &mut self,
        parent: &Self,
        parts: impl Iterator<Item = WeightedInterval>,
        highest: Highest,
    ) {
        self.parts.clear();
        self.parts.extend(parts.filter(|part| part.weight > 0.0));
        self.parts.sort_unstable_by(|a, b| a.start.total_cmp(&b.start));
        self.intervals.clear();
        self.ends.clear();
        for part in &self.parts {
            self.ends.extend([part.start, part.start + part.length]);
        }
        self.ends.sort_unstable_by(f64::total_cmp);
        self.ends.dedup();
        let mut from = self.parts.first().map_or(0.0, |part| part.start);
        let mut index = parent.locate(from);
        for end in 0..self.ends.len() {
            let to = self.ends[end];
            while to > from {
                let next = parent.below.get(index + 1).copied().unwrap_or(f64::INFINITY);
                let until = to.min(next);
                if until > from {
                    let inside = self.parts.iter().take_while(|part| part.start <= from);
                    let inside = inside.filter(|part| part.start + part.length >= until);
                    let weight: f64 = inside.map(|part| part.weight / part.length).sum();
                    let interval =
                        parent.priorities_at(index, from, until - from, weight * (until - from));
                    push(&mut self.intervals, interval);
                    from = until;
                }
                index += usize::from(until == next);
            }
            // Parts too short for an end of their own.
            for part in self
                .parts
                .iter()
                .skip_while(|part| part.start < to)
                .take_while(|part| part.start == to)
            {
                if part.start + part.length == part.start {
                    let interval =
                        parent.priorities_at(index, part.start, part.length, part.weight);
                    push(&mut self.intervals, interval);
                }
            }
        }
        self.finish(highest);
    }

    /// The priorities at [from, from + length] of the segment, which lies in interval `index`.
    fn priorities_at(&self, index: usize, from: f64, length: f64, weight: f64) -> WeightedInterval {
        let slope = self.slopes[index];
        let start = self.intervals[index].start + (from - self.below[index]) * slope;
        WeightedInterval { start, length: length * slope, weight }
    }

    /// Normalises the weights and computes the derived values.
    fn finish(&mut self, highest: Highest) {
        let total: f64 = self.intervals.iter().map(|interval| interval.weight).sum();
        self.below.clear();
        self.slopes.clear();
        self.selected.clear();
        self.mean = 0.0;
        let mut below = 0.0;
        for interval in &mut self.intervals {
            interval.weight /= total;
            self.below.push(below);
            self.slopes.push(interval.length / interval.weight);
            self.selected.push(self.mean);
            below += interval.weight;
            self.mean += interval.weight * highest.mean(interval.start, interval.length);
        }
        if self.mean < f64::MIN_POSITIVE && !self.is_all() {
            // The share's probability of being selected underflows, so any valid share will do.
            return self.set_all(highest);
        }
        self.selected.iter_mut().for_each(|selected| *selected /= self.mean);
    }

    /// The intervals of the distribution.
    pub fn intervals(&self) -> impl Iterator<Item = WeightedInterval> + '_ {
        self.intervals.iter().copied()
    }

    /// (highest − lowest density) / mean density of the highest priority.
    pub fn variation(&self, highest: Highest) -> f64 {
        let (Some(first), Some(last)) = (self.intervals.first(), self.intervals.last()) else {
            return 0.0;
        };
        (highest.density(last.start + last.length) - highest.density(first.start)) / self.mean
    }

    /// The index of the interval at position `t` of the segment.
    fn locate(&self, t: f64) -> usize {
        self.below.partition_point(|below| *below <= t).saturating_sub(1)
    }

    /// The share laid out as a segment.
    pub fn profile(&self, highest: Highest) -> Segment<'_> {
        Segment { share: self, highest }
    }
}

/// Appends an interval, merged with the last one if it continues there with the same density.
fn push(intervals: &mut Vec<WeightedInterval>, interval: WeightedInterval) {
    match intervals.last_mut() {
        _ if interval.weight <= 0.0 => {}
        Some(last) if continues(*last, interval) => {
            last.length += interval.length;
            last.weight += interval.weight;
        }
        _ => intervals.push(interval),
    }
}

/// True if `next` starts where `interval` ends, with the same density up to rounding.
fn continues(interval: WeightedInterval, next: WeightedInterval) -> bool {
    let gap = next.start - (interval.start + interval.length);
    gap.abs() <= 1e-15 * next.length.min(interval.length)
        && (interval.weight * next.length - next.weight * interval.length).abs()
            <= 1e-14 * interval.weight * next.length
}

/// A share laid out as a segment of length and mass 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    share: &'a Share,
    highest: Highest,
}

impl Segment<'_> {
    /// The priority at position `t`, which lies in interval `index`.
    fn priority(&self, index: usize, t: f64) -> f64 {
        self.share.intervals[index].start + (t - self.share.below[index]) * self.share.slopes[index]
    }
}

impl Profile for Segment<'_> {
    fn length(&self) -> f64 {
        1.0
    }

    fn density(&self, t: f64) -> f64 {
        self.highest.density(self.priority(self.share.locate(t), t)) / self.share.mean
    }

    fn mean(&self, start: f64, length: f64) -> f64 {
        if length <= 0.0 {
            return self.density(start);
        }
        let (mut from, mut left, mut mass) = (start, length, 0.0);
        let mut index = self.share.locate(start);
        loop {
            let last = index + 1 == self.share.intervals.len();
            let inside =
                if last { left } else { left.min(self.share.below[index + 1] - from).max(0.0) };
            let width = inside * self.share.slopes[index];
            mass += inside * self.highest.mean(self.priority(index, from), width);
            left -= inside;
            if last || left <= 0.0 {
                return mass / length / self.share.mean;
            }
            index += 1;
            from = self.share.below[index];
        }
    }

    fn below(&self, t: f64) -> f64 {
        let index = self.share.locate(t);
        let (start, inside) = (self.share.intervals[index].start, t - self.share.below[index]);
        let mean = self.highest.mean(start, inside * self.share.slopes[index]);
        self.share.selected[index] + inside * mean / self.share.mean
    }

    fn guess(&self, density: f64) -> f64 {
        let priority = self.highest.guess(density * self.share.mean);
        let index = self
            .share
            .intervals
            .partition_point(|interval| interval.start <= priority)
            .saturating_sub(1);
        let interval = self.share.intervals[index];
        let inside =
            ((priority - interval.start) / interval.length.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        self.share.below[index] + inside * interval.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::tree::random_pair;
    use crate::coupling::priority::selection::Selection;
    use crate::coupling::priority::{Form, Settings};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Along random sequences, the children's shares partition their parent's, and a child's mean
    /// density agrees with the probability of its token under the selection.
    #[test]
    fn shares_of_children_partition_the_parent_share() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut children = Vec::new();
        for round in 0..400 {
            let (vocabulary, paths) = ([2, 3, 5, 20][round % 4], [2, 3, 8][round % 3]);
            let form = [Form::Exact, Form::Pooled][round / 4 % 2];
            let settings = Settings {
                form,
                individual_above: [1e-3, 0.3, 1.0][round % 3],
                ..Settings::default()
            };
            let highest = Highest::new(paths);
            let (mut parent, mut selection) = (Share::default(), Selection::new());
            parent.set_all(highest);
            for depth in 0..4 {
                let pair = random_pair(vocabulary, 0, 0.3, round % 2 == 1, &mut rng).unwrap();
                let (target, draft) = (&pair.target[&[][..]], &pair.draft[&[][..]]);
                selection.prepare(target, draft, &parent.profile(highest), 1.0, &settings);
                children.clear();
                let mut total = 0.0;
                for (token, q) in draft.support() {
                    let mut child = Share::default();
                    child.set_part(&parent, selection.intervals(target, draft, token), highest);
                    let m = selection.probability(target, draft, token);
                    let from_share = q * child.mean / parent.mean;
                    let tolerance = 1e-12 + 1e-15 * highest.density(1.0) / parent.mean;
                    assert!(
                        (m - from_share).abs() < tolerance,
                        "round {round}, depth {depth}, token {token} with {q}: {m} \
                         {from_share}\n{parent:?}\n{child:?}"
                    );
                    total += m;
                    children.push((child, q));
                }
                // A share selected for a sliver of its priorities is known only to the rounding of
                // its length.
                let tolerance = 1e-12 + 1e-15 * highest.density(1.0) / parent.mean;
                assert!((total - 1.0).abs() < tolerance, "round {round}, depth {depth}: {total}");
                // The weight below any position is the sum over the children, where a position is
                // known to the rounding of a priority. Deep down that rounding may be a large part
                // of a share: 36 neighbouring numbers near 0.7 may be all of it. This is harmless:
                // the distribution consists of weights, lengths and densities, which keep all their
                // digits, and no density changes over a rounding.
                // `tiny_draft_probabilities_keep_the_distribution_exact` enumerates it.
                let below = |share: &Share, position: f64| -> f64 {
                    let part = |interval: &WeightedInterval| match interval.length {
                        0.0 => f64::from(u8::from(interval.start < position)),
                        length => ((position - interval.start) / length).clamp(0.0, 1.0),
                    };
                    share.intervals.iter().map(|interval| interval.weight * part(interval)).sum()
                };
                for step in 0..20 {
                    let position = f64::from(step) / 20.0;
                    let sum: f64 =
                        children.iter().map(|(child, q)| q * below(child, position)).sum();
                    let rounding = 2.0 * f64::EPSILON * position;
                    let expected =
                        [-rounding, rounding].map(|moved| below(&parent, position + moved));
                    assert!(
                        expected[0] - 1e-11 < sum && sum < expected[1] + 1e-11,
                        "{round} {depth} at {position}: {sum} {expected:?}"
                    );
                }
                let next = rng.next_u32() as usize % children.len();
                parent = children.swap_remove(next).0;
            }
        }
    }
}
