//! The prefix cache: what was computed for closed sequences, for later ones with the same
//! beginning, within limits of number and bytes.

use polydraft_engine::PrefixCache;
use polydraft_engine::prefix::Reuse;

use super::limits::SequenceLimits;
use super::text::Text;
use crate::cache::Cache;

#[derive(Debug)]
pub(super) struct Kept {
    pub closed: PrefixCache<Cache>,
    limits: SequenceLimits,
}

impl Kept {
    pub fn new(limits: SequenceLimits) -> Self {
        Self { closed: PrefixCache::new(Reuse::AnyPrefix), limits }
    }

    pub fn limits(&self) -> SequenceLimits {
        self.limits
    }

    pub fn limit(&mut self, limits: SequenceLimits) {
        self.limits = limits;
        self.shrink();
    }

    pub fn bytes(&self) -> usize {
        self.closed.states().map(Cache::bytes).sum()
    }

    /// The sequence used last stays, however large: the next turn of a conversation begins with it.
    fn shrink(&mut self) {
        let is_large = |kept: &Self| {
            kept.closed.len() > kept.limits.closed
                || kept.closed.len() > 1 && kept.bytes() > kept.limits.closed_bytes
        };
        while is_large(self) {
            self.closed.evict();
        }
    }

    /// Caches what was computed for a closed sequence.
    pub fn keep(&mut self, text: Text) {
        let (held, mut cache) = text.into_held();
        if !held.is_empty() {
            cache.shorten(held.len());
            self.closed.insert(held, cache);
            self.shrink();
        }
    }
}
