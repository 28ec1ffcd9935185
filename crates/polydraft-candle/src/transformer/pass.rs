//! The tokens of one pass, and what each of them sees.

use std::ops::Range;

use crate::cache::Cache;

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

/// The slots that a token sees, its own the last of them. In their order they hold the text up to the token.
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

    /// What it sees where a token sees only so many, itself included.
    pub fn within(&self, window: Option<usize>) -> (Range<usize>, &[usize]) {
        let first = window.map_or(0, |window| (self.position() + 1).saturating_sub(window));
        (first.min(self.context)..self.context, &self.path[first.saturating_sub(self.context)..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_leaves_the_last_tokens() {
        let sight = Sight { context: 10, path: vec![12, 17, 18] };
        assert_eq!(sight.position(), 12);
        assert_eq!(sight.within(None), (0..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(13)), (0..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(5)), (8..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(3)), (10..10, &[12, 17, 18][..]));
        assert_eq!(sight.within(Some(2)), (10..10, &[17, 18][..]));
    }
}
