//! Segments of a sequence: what attention computes apart and joins afterwards. They are the same
//! for every token.

use std::ops::Range;

use super::mask::Mask;

/// Where the first segments of a sequence begin: threads share a short one too.
const FIRST: [usize; 4] = [0, 64, 128, 256];
/// Positions of every later one: few enough for their scores to stay in a core's cache.
const SEGMENT: usize = 512;

/// Where a segment begins.
pub(super) fn beginning(segment: usize) -> usize {
    FIRST.get(segment).copied().unwrap_or_else(|| (segment + 1 - FIRST.len()) * SEGMENT)
}

/// The number of the segment that a position is in.
pub(super) fn segment_at(place: usize) -> usize {
    match place < SEGMENT {
        true => FIRST.partition_point(|first| *first <= place) - 1,
        false => FIRST.len() - 1 + place / SEGMENT,
    }
}

/// The numbers of the segments that some tokens see.
pub(super) fn segments(masks: &[Mask], window: Option<usize>) -> Range<usize> {
    let first = masks.iter().map(|mask| mask.first(window)).min().unwrap_or(0);
    let last = masks.iter().map(Mask::position).max().unwrap_or(0);
    segment_at(first)..segment_at(last) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_in_one_segment() {
        for place in 0..3000 {
            let segment = segment_at(place);
            assert!(
                (beginning(segment)..beginning(segment + 1)).contains(&place),
                "{place} in {segment}"
            );
        }
    }
}
