//! Prefix cache: KV caches of closed sequences, for later ones with a common prefix.
//!
//! Problem: a conversation's next turn begins with all that was said before, and many prompts begin
//! with the same instructions. What a model computed for a token depends on the tokens before it
//! alone, so it serves every sequence that begins so.
//! Method: a list of closed sequences, the one used last at the end, searched by the length of the
//! common beginning.
//! 1. A prefix of another one is of no use beside it, and is evicted.
//! 2. A sequence goes over to its continuation: where most of it is used, it leaves the list. A
//!    prefix of many sequences is not taken from one that is much longer: there the prefix is
//!    copied.
//! 3. A state that cannot be cut (of recurrent models) is of use as a whole or not at all, and only
//!    for a longer sequence: the logits after its last token are not part of it.
//!
//! Complexity: a comparison of tokens for each closed sequence, of which there are few.

use polydraft::Token;

use crate::Sequence;

/// The length of the common prefix of two sequences.
pub fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The part of a closed sequence that can serve another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// Any prefix of it: of a KV cache.
    #[default]
    AnyPrefix,
    /// All of it, and only for a longer one: of a state that cannot be cut.
    FullOnly,
}

/// Closed sequences with their KV caches or states.
///
/// ```
/// use polydraft_engine::prefix::{Cached, PrefixCache, Reuse};
///
/// let mut cache = PrefixCache::new(Reuse::AnyPrefix);
/// cache.insert(vec![1, 2, 3, 4, 5], "long");
/// assert_eq!(cache.longest_match(&[1, 2, 9]), 2);
/// // Two of five tokens: they are copied, and the sequence stays.
/// assert_eq!(cache.take(&[1, 2, 9]), Some(Cached::Prefix(2, &"long")));
/// // Nearly all of them: the sequence goes over to its continuation.
/// assert_eq!(cache.take(&[1, 2, 3, 4]), Some(Cached::Removed(vec![1, 2, 3, 4, 5], "long")));
/// assert!(cache.is_empty());
/// ```
#[derive(Debug)]
pub struct PrefixCache<T> {
    /// The one used last at the end.
    entries: Vec<(Vec<Token>, T)>,
    reuse: Reuse,
}

/// What a cache has for a prefix.
#[derive(Debug, PartialEq)]
pub enum Cached<'c, T> {
    /// All of a sequence, of which this is most: its tokens and its state, which are no longer in
    /// the cache. It may differ after the common prefix.
    Removed(Vec<Token>, T),
    /// So many of the first tokens of a much longer one, which stays in the cache.
    Prefix(usize, &'c T),
}

/// Where most of a prefix is computed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In another sequence that is open: so many tokens.
    Open(Sequence, usize),
    /// In the cache.
    Cache,
}

impl<T> PrefixCache<T> {
    /// An empty one. It has no limit: its owner evicts sequences, by [`evict`](Self::evict).
    pub fn new(reuse: Reuse) -> Self {
        Self { entries: Vec::new(), reuse }
    }

    /// How many sequences it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The state of each sequence.
    pub fn states(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, state)| state)
    }

    /// Inserts a closed sequence of these tokens. Returns the states of no further use: those of
    /// its prefixes, or its own, if it is empty or the prefix of another one.
    pub fn insert(&mut self, tokens: Vec<Token>, state: T) -> Vec<T> {
        if tokens.is_empty() {
            return vec![state];
        }
        let longer = match self.reuse {
            Reuse::AnyPrefix => {
                self.entries.iter().position(|(cached, _)| cached.starts_with(&tokens))
            }
            Reuse::FullOnly => None,
        };
        if let Some(longer) = longer {
            self.entries[longer..].rotate_left(1);
            return vec![state];
        }
        let is_useless = |cached: &[Token]| match self.reuse {
            Reuse::AnyPrefix => tokens.starts_with(cached),
            Reuse::FullOnly => tokens == cached,
        };
        let useless = self.entries.extract_if(.., |(cached, _)| is_useless(cached));
        let useless = useless.map(|(_, state)| state).collect();
        self.entries.push((tokens, state));
        useless
    }

    /// Evicts the least recently used sequence.
    pub fn evict(&mut self) -> Option<T> {
        (!self.entries.is_empty()).then(|| self.entries.remove(0).1)
    }

    /// How many of the first of `tokens` some sequence here can serve.
    pub fn longest_match(&self, tokens: &[Token]) -> usize {
        self.entries.iter().map(|(cached, _)| self.usable(cached, tokens)).max().unwrap_or(0)
    }

    /// The sequence that serves the most of them, used last from now on: itself, if that is most of
    /// it, otherwise its prefix. None where nothing serves.
    pub fn take(&mut self, tokens: &[Token]) -> Option<Cached<'_, T>> {
        let shared = |(cached, _): &(Vec<Token>, T)| self.usable(cached, tokens);
        let (best, shared) =
            self.entries.iter().map(shared).enumerate().max_by_key(|(_, shared)| *shared)?;
        if shared == 0 {
            return None;
        }
        if 2 * shared >= self.entries[best].0.len() {
            let (cached, state) = self.entries.remove(best);
            return Some(Cached::Removed(cached, state));
        }
        self.entries[best..].rotate_left(1);
        self.entries.last().map(|(_, state)| Cached::Prefix(shared, state))
    }

    /// Where most of the prefix of `tokens` is computed, if that is more than `own` of them: in one
    /// of the `open` sequences, of each of which the computed tokens are given, or here. Of both
    /// the cache, which can be used up.
    pub fn source<'t>(
        &self,
        tokens: &[Token],
        computed: usize,
        open: impl Iterator<Item = (Sequence, &'t [Token])>,
    ) -> Option<Source> {
        let open = open
            .map(|(sequence, cached)| (sequence, common_prefix(cached, tokens)))
            .max_by_key(|(_, shared)| *shared);
        let (cached, in_open) = (self.longest_match(tokens), open.map_or(0, |(_, shared)| shared));
        match open {
            _ if cached.max(in_open) <= computed => None,
            Some((sequence, shared)) if shared > cached => Some(Source::Open(sequence, shared)),
            _ => Some(Source::Cache),
        }
    }

    fn usable(&self, cached: &[Token], tokens: &[Token]) -> usize {
        let shared = common_prefix(cached, tokens);
        match self.reuse {
            Reuse::FullOnly if shared < cached.len() || shared == tokens.len() => 0,
            _ => shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(reuse: Reuse, sequences: &[&[Token]]) -> PrefixCache<usize> {
        let mut cache = PrefixCache::new(reuse);
        for (number, tokens) in sequences.iter().enumerate() {
            cache.insert(tokens.to_vec(), number);
        }
        cache
    }

    #[test]
    fn beginnings_of_others_are_given_up() {
        let mut cache = cache(Reuse::AnyPrefix, &[&[1, 2], &[3, 4, 5]]);
        assert_eq!(cache.insert(vec![], 9), [9]);
        assert_eq!(cache.insert(vec![3, 4], 9), [9]);
        assert_eq!(cache.insert(vec![1, 2, 7], 2), [0]);
        assert_eq!(cache.states().copied().collect::<Vec<_>>(), [1, 2]);
        // What a new one begins like was used last.
        assert_eq!(cache.insert(vec![3], 9), [9]);
        assert_eq!((cache.evict(), cache.evict(), cache.evict()), (Some(2), Some(1), None));
    }

    #[test]
    fn a_state_serves_as_a_whole_and_only_what_is_longer() {
        let mut cache = cache(Reuse::FullOnly, &[&[1, 2], &[1, 2, 3, 4]]);
        assert_eq!(
            [&[1, 2, 3][..], &[1, 2], &[1]].map(|tokens| cache.longest_match(tokens)),
            [2, 0, 0]
        );
        assert_eq!(cache.take(&[1]), None);
        // A beginning of another is of use where that one cannot be cut.
        assert_eq!(cache.insert(vec![1], 2), [0; 0]);
        assert_eq!(cache.take(&[1, 2, 3, 4, 5]), Some(Cached::Removed(vec![1, 2, 3, 4], 1)));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn the_cache_is_used_before_what_is_open() {
        let cache = cache(Reuse::AnyPrefix, &[&[1, 2, 3]]);
        let source = |computed, cached: &[Token]| {
            cache.source(&[1, 2, 3, 4], computed, [(Sequence::new(5), cached)].into_iter())
        };
        assert_eq!(source(0, &[1, 2]), Some(Source::Cache));
        assert_eq!(source(0, &[1, 2, 3]), Some(Source::Cache));
        assert_eq!(source(3, &[1, 2, 3, 4]), Some(Source::Open(Sequence::new(5), 4)));
        assert_eq!(source(3, &[1, 2, 3]), None);
        assert_eq!(source(4, &[1, 2, 3, 4]), None);
    }
}
