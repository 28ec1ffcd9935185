//! The mask of a token: what it sees of its sequence.

use std::ops::Range;

/// The slots that a token sees, its own the last of them. In their order they hold the sequence up
/// to the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// All slots before this one,
    pub context: usize,
    /// and these, which ascend.
    pub path: Vec<usize>,
}

impl Mask {
    /// The token's position in the sequence.
    pub fn position(&self) -> usize {
        self.context + self.path.len() - 1
    }

    /// The first position that it sees where a token sees only so many, itself included.
    pub(crate) fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| (self.position() + 1).saturating_sub(window))
    }

    /// What it sees of these positions: slots of the context, and slots of the path.
    pub(crate) fn within(
        &self,
        window: Option<usize>,
        places: &Range<usize>,
    ) -> (Range<usize>, &[usize]) {
        let end = places.end.min(self.position() + 1);
        let first = self.first(window).max(places.start).min(end);
        let path = first.saturating_sub(self.context)..end.saturating_sub(self.context);
        (first.min(self.context)..end.min(self.context), &self.path[path])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_leaves_the_last_tokens() {
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
    fn places_are_those_of_the_sequence() {
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
