//! The tokens of one pass, and what each of them sees.

use std::ops::Range;

use candle_core::Result;

use crate::cache::Cache;
use crate::rows::Rows;

/// One text's tokens in a pass.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub cache: &'a mut Cache,
    /// The slot of the first token; the others follow it.
    pub start: usize,
    pub tokens: Vec<u32>,
    /// Of each token.
    pub sights: Vec<Sight>,
    /// So many of the last tokens want logits.
    pub wanted: usize,
}

impl Part<'_> {
    /// The slots up to the last token's.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// The slots that a token sees, its own the last of them. In their order they hold the text up to
/// the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sight {
    /// All slots before this one,
    pub context: usize,
    /// and these, which ascend.
    pub path: Vec<usize>,
}

impl Sight {
    /// The token's place in the text.
    pub fn position(&self) -> usize {
        self.context + self.path.len() - 1
    }

    /// The first place of the text that it sees where a token sees only so many, itself included.
    pub fn first(&self, window: Option<usize>) -> usize {
        window.map_or(0, |window| (self.position() + 1).saturating_sub(window))
    }

    /// What it sees of these places of the text: slots of the context, and slots of the path.
    pub fn within(&self, window: Option<usize>, places: &Range<usize>) -> (Range<usize>, &[usize]) {
        let end = places.end.min(self.position() + 1);
        let first = self.first(window).max(places.start).min(end);
        let path = first.saturating_sub(self.context)..end.saturating_sub(self.context);
        (first.min(self.context)..end.min(self.context), &self.path[path])
    }
}

/// The tokens of all parts.
pub(crate) fn tokens(parts: &[Part]) -> Vec<u32> {
    parts.iter().flat_map(|part| &part.tokens).copied().collect()
}

/// The places of the tokens of all parts.
pub(crate) fn positions(parts: &[Part]) -> Vec<usize> {
    parts.iter().flat_map(|part| part.sights.iter().map(Sight::position)).collect()
}

/// Of rows of all tokens those whose logits are wanted; `None` if none are.
pub(crate) fn wanted(x: Rows, parts: &[Part]) -> Result<Option<Rows>> {
    let mut wanted: Vec<usize> = Vec::new();
    let mut end = 0;
    for part in parts {
        end += part.tokens.len();
        wanted.extend(end - part.wanted..end);
    }
    match wanted.len() {
        0 => Ok(None),
        all if all == end => Ok(Some(x)),
        _ => x.select(&wanted).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_leaves_the_last_tokens() {
        let sight = Sight { context: 10, path: vec![12, 17, 18] };
        assert_eq!(sight.position(), 12);
        let all = 0..usize::MAX;
        assert_eq!(sight.within(None, &all), (0..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(13), &all), (0..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(5), &all), (8..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(3), &all), (10..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(2), &all), (10..10, &[17, 18][..]));
    }

    #[test]
    fn places_are_those_of_the_text() {
        let sight = Sight { context: 10, path: vec![12, 17, 18] };
        assert_eq!(sight.within(None, &(0..8)), (0..8, &[][..]));
        assert_eq!(sight.within(None, &(8..12)), (8..10, &[12, 17][..]));
        assert_eq!(sight.within(None, &(12..16)), (10..10, &[18][..]));
        assert_eq!(sight.within(None, &(16..20)), (10..10, &[][..]));
        assert_eq!(sight.within(Some(5), &(0..9)), (8..9, &[][..]));
        assert_eq!(sight.within(Some(2), &(0..8)).1, &[][..] as &[usize]);
        assert!(sight.within(Some(2), &(0..8)).0.is_empty());
    }
}
