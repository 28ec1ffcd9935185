//! Segments: fixed ranges of positions that attention computes separately and then joins. They are
//! the same for every token.

use std::ops::Range;

use super::mask::Mask;

/// First positions of the first segments. They are shorter, so that threads can share a short
/// sequence.
const FIRST: [usize; 4] = [0, 64, 128, 256];
/// Length of all later segments. Their scores fit into the cache of a core.
const LENGTH: usize = 512;

/// Returns the first position of a segment.
pub(super) fn segment_start(segment: usize) -> usize {
    FIRST.get(segment).copied().unwrap_or_else(|| (segment + 1 - FIRST.len()) * LENGTH)
}

/// Returns the segment of a position.
pub(super) fn segment_at(position: usize) -> usize {
    match position < LENGTH {
        true => FIRST.partition_point(|first| *first <= position) - 1,
        false => FIRST.len() - 1 + position / LENGTH,
    }
}

/// Returns the segments that at least one of the tokens sees.
pub(super) fn segments(masks: &[Mask], window: Option<usize>) -> Range<usize> {
    let first = masks.iter().map(|mask| mask.first(window)).min().unwrap_or(0);
    let last = masks.iter().map(Mask::position).max().unwrap_or(0);
    segment_at(first)..segment_at(last) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_in_its_segment() {
        for position in 0..3000 {
            let segment = segment_at(position);
            assert!(
                (segment_start(segment)..segment_start(segment + 1)).contains(&position),
                "{position} in {segment}"
            );
        }
    }
}
