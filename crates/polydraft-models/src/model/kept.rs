//! What was computed for texts that are closed, for later ones that begin alike.

use polydraft::Token;

use super::limits::SequenceLimits;
use super::text::{Text, common};
use crate::cache::Cache;

/// Closed texts, the one used last at the end.
#[derive(Debug)]
pub(super) struct Kept {
    texts: Vec<(Vec<Token>, Cache)>,
    limits: SequenceLimits,
}

impl Kept {
    pub fn new(limits: SequenceLimits) -> Self {
        Self { texts: Vec::new(), limits }
    }

    pub fn limits(&self) -> SequenceLimits {
        self.limits
    }

    pub fn limit(&mut self, limits: SequenceLimits) {
        self.limits = limits;
        self.shrink();
    }

    pub fn bytes(&self) -> usize {
        self.texts.iter().map(|(_, cache)| cache.bytes()).sum()
    }

    /// The text used last stays, however large: a conversation is that of its own next turn.
    fn shrink(&mut self) {
        let many = |kept: &Self| kept.texts.len() > 1 && kept.bytes() > kept.limits.closed_bytes;
        while self.texts.len() > self.limits.closed || many(self) {
            self.texts.remove(0);
        }
    }

    /// Keeps what a text that is closed has computed.
    pub fn keep(&mut self, text: Text) {
        let (held, mut cache) = text.into_held();
        if held.is_empty() {
            return;
        }
        cache.shorten(held.len());
        // What is the beginning of another is of no use beside it.
        if let Some(longer) = self.texts.iter().position(|(other, _)| other.starts_with(&held)) {
            let longer = self.texts.remove(longer);
            self.texts.push(longer);
            return;
        }
        self.texts.retain(|(other, _)| !held.starts_with(other));
        self.texts.push((held, cache));
        self.shrink();
    }

    /// Of how many of the first of `tokens` some text here has keys and values.
    pub fn known(&self, tokens: &[Token]) -> usize {
        self.texts.iter().map(|(held, _)| common(held, tokens)).max().unwrap_or(0)
    }

    /// The text that knows the most of them: itself, if that is most of it, otherwise its
    /// beginning. So a text goes over to its continuation, but what many begin with is not taken
    /// from one that is much longer.
    pub fn take(&mut self, tokens: &[Token]) -> Option<(Vec<Token>, Cache)> {
        let best = (0..self.texts.len()).max_by_key(|&i| common(&self.texts[i].0, tokens));
        let (held, cache) = self.texts.remove(best?);
        let known = common(&held, tokens);
        if 2 * known >= held.len() {
            return Some((held, cache));
        }
        let shared = cache.share(known);
        self.texts.push((held, cache));
        Some((tokens[..known].to_vec(), shared))
    }
}
