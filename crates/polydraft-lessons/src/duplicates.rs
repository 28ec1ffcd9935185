//! Detects samples that repeat earlier ones.
//!
//! A model that writes both sides of a conversation repeats its questions, and at low temperature
//! its answers: a head learns nothing new from repetitions, and validation samples must not occur
//! in the training set. All runs of [`RUN_TOKENS`] tokens are hashed, and a fixed quarter of the
//! hashes is stored. A sample is dropped if more than half of its stored runs occurred before, in
//! other samples or in itself.

use std::collections::HashSet;

use polydraft::Token;

/// Tokens per compared run.
const RUN_TOKENS: usize = 12;
/// One in this many runs is stored, selected by its hash.
const HASH_FRACTION: u64 = 4;

/// Hashes of the runs in earlier samples.
#[derive(Debug, Default)]
pub(crate) struct SeenSamples(HashSet<u64>);

impl SeenSamples {
    /// Returns whether a sample is new, and stores its runs if it is.
    pub fn insert_if_new(&mut self, tokens: &[Token]) -> bool {
        let runs: Vec<u64> = tokens
            .windows(RUN_TOKENS)
            .map(hash)
            .filter(|hash| hash.is_multiple_of(HASH_FRACTION))
            .collect();
        let mut new_runs = HashSet::new();
        let old = runs.iter().filter(|run| self.0.contains(run) || !new_runs.insert(**run)).count();
        let is_new = 2 * old <= runs.len();
        if is_new {
            self.0.extend(new_runs);
        }
        is_new
    }
}

/// FNV-1a, with the high bits mixed into the low ones.
fn hash(tokens: &[Token]) -> u64 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_samples_that_repeat_earlier_ones() {
        let sample = |from: Token| (from..from + 200).collect::<Vec<_>>();
        let mut seen = SeenSamples::default();
        assert!(seen.insert_if_new(&sample(0)));
        assert!(!seen.insert_if_new(&sample(0)));
        // One quarter is old, then three quarters.
        assert!(seen.insert_if_new(&sample(150)));
        assert!(!seen.insert_if_new(&sample(50)));
        // The dropped sample was not stored.
        assert!(seen.insert_if_new(&sample(1000)));
    }

    #[test]
    fn rejects_samples_that_repeat_themselves() {
        let cycle: Vec<Token> = (0..300).map(|i| i % 20).collect();
        assert!(!SeenSamples::default().insert_if_new(&cycle));
        assert!(SeenSamples::default().insert_if_new(&cycle[..25]));
    }
}
