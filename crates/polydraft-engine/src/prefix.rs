//! Prefix cache: KV caches of closed sequences, reused by later ones with a common prefix.
//!
//! Problem: a conversation's next turn begins with all earlier turns, and many prompts begin with
//! the same instructions. The KV cache of a token depends only on this token and those before it,
//! so every sequence with the same prefix can reuse it.
//! Method: a list of closed sequences, the most recently used one last, searched for the longest
//! common prefix.
//! 1. A sequence that is a prefix of another one is redundant, and is evicted.
//! 2. If most of a sequence is reused, it is removed from the list and continued. A short prefix of
//!    a much longer sequence is copied instead, because other sequences may share it.
//! 3. A state that cannot be truncated (of recurrent models) can only be reused in full, and only
//!    for a longer sequence: the logits after its last token are not part of it.
//!
//! Complexity: one comparison of the tokens with each closed sequence, of which there are few.

use polydraft::Token;

use crate::Sequence;

/// Returns the length of the common prefix of two sequences.
pub fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Part of a closed sequence that can be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// Any prefix of it, as of a KV cache.
    #[default]
    AnyPrefix,
    /// The full sequence, and only for a longer one: for states that cannot be truncated.
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
/// // Two of five tokens: the prefix can be copied, and the sequence stays.
/// assert_eq!(cache.take(&[1, 2, 9]), Some(Cached::Prefix(2, &"long")));
/// // Nearly all of them: the sequence is removed and can be continued.
/// assert_eq!(cache.take(&[1, 2, 3, 4]), Some(Cached::Removed(vec![1, 2, 3, 4, 5], "long")));
/// assert!(cache.is_empty());
/// ```
#[derive(Debug)]
pub struct PrefixCache<T> {
    /// Closed sequences with their states, the most recently used last.
    entries: Vec<(Vec<Token>, T)>,
    reuse: Reuse,
}

/// A match in the cache.
#[derive(Debug, PartialEq)]
pub enum Cached<'c, T> {
    /// A sequence of which at least half is reused: its tokens and its state, removed from the
    /// cache. It may differ after the common prefix.
    Removed(Vec<Token>, T),
    /// Number of reused tokens of a much longer sequence, which stays in the cache.
    Prefix(usize, &'c T),
}

/// Source of an already computed prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Another open sequence, with its number of common tokens.
    Open(Sequence, usize),
    /// The cache.
    Cache,
}

impl<T> PrefixCache<T> {
    /// Creates an empty cache without a limit: its owner evicts sequences with
    /// [`evict`](Self::evict).
    pub fn new(reuse: Reuse) -> Self {
        Self { entries: Vec::new(), reuse }
    }

    /// Returns the number of cached sequences.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the states of the cached sequences.
    pub fn states(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, state)| state)
    }

    /// Inserts a closed sequence with these tokens. Returns the redundant states: those of its
    /// prefixes, or its own if it is empty or the prefix of another sequence.
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
        let is_redundant = |cached: &[Token]| match self.reuse {
            Reuse::AnyPrefix => tokens.starts_with(cached),
            Reuse::FullOnly => tokens == cached,
        };
        let redundant = self.entries.extract_if(.., |(cached, _)| is_redundant(cached));
        let redundant = redundant.map(|(_, state)| state).collect();
        self.entries.push((tokens, state));
        redundant
    }

    /// Evicts the least recently used sequence.
    pub fn evict(&mut self) -> Option<T> {
        (!self.entries.is_empty()).then(|| self.entries.remove(0).1)
    }

    /// Returns how many of the first tokens a cached sequence can provide.
    pub fn longest_match(&self, tokens: &[Token]) -> usize {
        self.entries.iter().map(|(cached, _)| self.usable(cached, tokens)).max().unwrap_or(0)
    }

    /// Takes the sequence that provides most tokens, and marks it as used last. Returns the
    /// sequence itself if at least half of it is reused, otherwise its prefix; `None` if none
    /// matches.
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

    /// Returns where most of the prefix of `tokens` is computed, if that is more than `computed`
    /// tokens: in one of the `open` sequences, given with their computed tokens, or in the cache.
    /// On a tie the cache is preferred, because its sequence can be removed.
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
    fn evicts_prefixes_of_other_sequences() {
        let mut cache = cache(Reuse::AnyPrefix, &[&[1, 2], &[3, 4, 5]]);
        assert_eq!(cache.insert(vec![], 9), [9]);
        assert_eq!(cache.insert(vec![3, 4], 9), [9]);
        assert_eq!(cache.insert(vec![1, 2, 7], 2), [0]);
        assert_eq!(cache.states().copied().collect::<Vec<_>>(), [1, 2]);
        // A sequence that was inserted again as a prefix counts as used last.
        assert_eq!(cache.insert(vec![3], 9), [9]);
        assert_eq!((cache.evict(), cache.evict(), cache.evict()), (Some(2), Some(1), None));
    }

    #[test]
    fn full_only_states_serve_only_longer_sequences() {
        let mut cache = cache(Reuse::FullOnly, &[&[1, 2], &[1, 2, 3, 4]]);
        assert_eq!(
            [&[1, 2, 3][..], &[1, 2], &[1]].map(|tokens| cache.longest_match(tokens)),
            [2, 0, 0]
        );
        assert_eq!(cache.take(&[1]), None);
        // A prefix of another sequence is not redundant if that one cannot be truncated.
        assert_eq!(cache.insert(vec![1], 2), [0; 0]);
        assert_eq!(cache.take(&[1, 2, 3, 4, 5]), Some(Cached::Removed(vec![1, 2, 3, 4], 1)));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn prefers_the_cache_to_open_sequences() {
        let cache = cache(Reuse::AnyPrefix, &[&[1, 2, 3]]);
        let source = |computed, open: &[Token]| {
            cache.source(&[1, 2, 3, 4], computed, [(Sequence::new(5), open)].into_iter())
        };
        assert_eq!(source(0, &[1, 2]), Some(Source::Cache));
        assert_eq!(source(0, &[1, 2, 3]), Some(Source::Cache));
        assert_eq!(source(3, &[1, 2, 3, 4]), Some(Source::Open(Sequence::new(5), 4)));
        assert_eq!(source(3, &[1, 2, 3]), None);
        assert_eq!(source(4, &[1, 2, 3, 4]), None);
    }
}
