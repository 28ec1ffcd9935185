//! Attention masks.

use std::ops::Range;

/// Slots of the KV cache that a token sees: the sequence up to and including the token, in order.
///
/// A slot of the context holds the token at the same position. In a tree, slots of the path do not:
/// position `context + i` is in slot `path[i]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Number of leading slots that the token sees.
    pub context: usize,
    /// Further slots, ascending. The last one is the token's own.
    pub path: Vec<usize>,
}

impl Mask {
    /// Returns the token's position in the sequence.
    pub fn position(&self) -> usize {
        self.context + self.path.len() - 1
    }

    /// Returns the first visible position, given a sliding window.
    pub(crate) fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| (self.position() + 1).saturating_sub(window))
    }

    /// Returns the visible slots at the given positions: a range of the context, and a part of the
    /// path.
    pub(crate) fn within(
        &self,
        window: Option<usize>,
        positions: &Range<usize>,
    ) -> (Range<usize>, &[usize]) {
        let end = positions.end.min(self.position() + 1);
        let first = self.first(window).max(positions.start).min(end);
        let path = first.saturating_sub(self.context)..end.saturating_sub(self.context);
        (first.min(self.context)..end.min(self.context), &self.path[path])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_limits_visible_slots_to_last_positions() {
        let mask = Mask { context: 10, path: vec![12, 17, 18] };
        assert_eq!(mask.position(), 12);
        let all = 0..usize::MAX;
        assert_eq!(mask.within(None, &all), (0..10, &[12, 17, 18][..]));
        assert_eq!(mask.within(Some(13), &all), (0..10, &[12, 17, 18][..]));
        assert_eq!(mask.within(Some(5), &all), (8..10, &[12, 17, 18][..]));
        assert_eq!(mask.within(Some(3), &all), (10..10, &[12, 17, 18][..]));
        assert_eq!(mask.within(Some(2), &all), (10..10, &[17, 18][..]));
    }

    #[test]
    fn visible_slots_within_positions() {
        let mask = Mask { context: 10, path: vec![12, 17, 18] };
        assert_eq!(mask.within(None, &(0..8)), (0..8, &[][..]));
        assert_eq!(mask.within(None, &(8..12)), (8..10, &[12, 17][..]));
        assert_eq!(mask.within(None, &(12..16)), (10..10, &[18][..]));
        assert_eq!(mask.within(None, &(16..20)), (10..10, &[][..]));
        assert_eq!(mask.within(Some(5), &(0..9)), (8..9, &[][..]));
        assert_eq!(mask.within(Some(2), &(0..8)).1, &[][..] as &[usize]);
        assert!(mask.within(Some(2), &(0..8)).0.is_empty());
    }
}
