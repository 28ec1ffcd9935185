//! The prefix cache: KV caches of closed sequences, for later ones with the same prefix, within
//! limits of number and bytes.

use polydraft_engine::PrefixCache;
use polydraft_engine::prefix::Reuse;

use super::limits::SequenceLimits;
use super::sequence::SequenceState;
use crate::cache::Cache;

#[derive(Debug)]
pub(super) struct ClosedSequences {
    pub cache: PrefixCache<Cache>,
    limits: SequenceLimits,
}

impl ClosedSequences {
    pub fn new(limits: SequenceLimits) -> Self {
        Self { cache: PrefixCache::new(Reuse::AnyPrefix), limits }
    }

    pub fn limits(&self) -> SequenceLimits {
        self.limits
    }

    pub fn set_limits(&mut self, limits: SequenceLimits) {
        self.limits = limits;
        self.evict();
    }

    pub fn bytes(&self) -> usize {
        self.cache.states().map(Cache::bytes).sum()
    }

    /// Evicts sequences until the limits hold. The most recently used sequence stays, however
    /// large: the next turn of a conversation begins with it.
    fn evict(&mut self) {
        let exceeds_limits = |all: &Self| {
            all.cache.len() > all.limits.closed
                || all.cache.len() > 1 && all.bytes() > all.limits.closed_bytes
        };
        while exceeds_limits(self) {
            self.cache.evict();
        }
    }

    /// Caches the state of a closed sequence.
    pub fn insert(&mut self, state: SequenceState) {
        let (tokens, mut cache) = state.into_cached();
        if !tokens.is_empty() {
            cache.truncate(tokens.len());
            self.cache.insert(tokens, cache);
            self.evict();
        }
    }
}
