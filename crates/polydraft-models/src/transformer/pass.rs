//! The tokens of one pass, and what each of them sees.

use polydraft_kernels::{Mask, Rows};

use crate::cache::Cache;
use crate::error::Result;

/// One sequence's tokens in a pass.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub cache: &'a mut Cache,
    /// The slot of the first token; the others follow it.
    pub start: usize,
    pub tokens: Vec<u32>,
    /// Of each token.
    pub masks: Vec<Mask>,
    /// So many of the last tokens want logits.
    pub wanted: usize,
    /// So many tokens of the sequence are decided and have no logits to give.
    pub settled: usize,
}

impl Part<'_> {
    /// The slots up to the last token's.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// Makes all parts' caches ready for their tokens.
pub(crate) fn begin(parts: &mut [Part]) -> Result<()> {
    for part in parts {
        part.cache.begin(part.start, &part.masks, part.settled)?;
    }
    Ok(())
}

/// Makes decided tokens part of the states that recurrent layers keep.
pub(crate) fn end(parts: &mut [Part]) {
    for part in parts {
        part.cache.end(part.wanted == 0);
    }
}

/// The tokens of all parts.
pub(crate) fn tokens(parts: &[Part]) -> Vec<u32> {
    parts.iter().flat_map(|part| &part.tokens).copied().collect()
}

/// The positions of the tokens of all parts.
pub(crate) fn positions(parts: &[Part]) -> Vec<usize> {
    parts.iter().flat_map(|part| part.masks.iter().map(Mask::position)).collect()
}

/// Of rows of all tokens those whose logits are wanted; `None` if none are.
pub(crate) fn wanted(x: Rows, parts: &[Part]) -> Option<Rows> {
    let mut wanted: Vec<usize> = Vec::new();
    let mut end = 0;
    for part in parts {
        end += part.tokens.len();
        wanted.extend(end - part.wanted..end);
    }
    match wanted.len() {
        0 => None,
        all if all == end => Some(x),
        _ => Some(x.select(&wanted)),
    }
}
