//! Samples that say again what was said.
//!
//! A model that asks itself asks the same again, and at low temperature answers the same: a head
//! learns nothing new from that, and what is kept for validation would be no test. Looked at are
//! all runs of [`RUN`] tokens, of which one in four counts, by its hash; a text of which more than
//! half was there before, in others or in itself, is left out.

use std::collections::HashSet;

use polydraft::Token;

/// Tokens that are compared as one.
const RUN: usize = 12;
/// One run in so many is remembered, by its hash: always the same ones.
const KEPT: u64 = 4;

/// What was said.
#[derive(Debug, Default)]
pub(crate) struct SeenSamples(HashSet<u64>);

impl SeenSamples {
    /// Whether a text is new. If it is, it has been said from now on.
    pub fn is_new(&mut self, tokens: &[Token]) -> bool {
        let runs: Vec<u64> =
            tokens.windows(RUN).map(hash).filter(|hash| hash.is_multiple_of(KEPT)).collect();
        let mut own = HashSet::new();
        let old = runs.iter().filter(|run| self.0.contains(run) || !own.insert(**run)).count();
        let is_new = 2 * old <= runs.len();
        if is_new {
            self.0.extend(own);
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
    fn what_was_said_before_is_not_new() {
        let text = |from: Token| (from..from + 200).collect::<Vec<_>>();
        let mut said = SeenSamples::default();
        assert!(said.is_new(&text(0)));
        assert!(!said.is_new(&text(0)));
        // A quarter is old, then three quarters.
        assert!(said.is_new(&text(150)));
        assert!(!said.is_new(&text(50)));
        // What was left out was not said.
        assert!(said.is_new(&text(1000)));
    }

    #[test]
    fn a_text_that_turns_in_circles_is_not_new() {
        let circle: Vec<Token> = (0..300).map(|i| i % 20).collect();
        assert!(!SeenSamples::default().is_new(&circle));
        assert!(SeenSamples::default().is_new(&circle[..25]));
    }
}
