//! Hashes of contexts.

use std::hash::Hasher;

use polydraft::Token;

/// Returns a hash of the tokens and their number. Table files contain these hashes, so it must not
/// change.
pub fn key(context: &[Token]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ context.len() as u64;
    for &token in context {
        hash = (hash ^ u64::from(token)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
    }
    hash
}

/// Hasher for keys that are hashes already.
#[derive(Default)]
pub struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}
