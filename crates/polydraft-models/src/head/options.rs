//! How a head is loaded.

use std::collections::BTreeSet;
use std::path::Path;

use polydraft::Token;

use crate::error::{Error, Result};
use crate::precision::Precision;

/// How to load a head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeadOptions {
    /// The type of its weight matrices.
    pub precision: Precision,
    /// The layers of the target whose inputs it reads, where its files say something else than it
    /// was trained with. Files number the same layers in two conventions. A wrong choice costs
    /// acceptance.
    pub layers: Option<Vec<usize>>,
    /// Tokens that it may draft, of those that it can; all if none.
    pub tokens: Option<Vec<Token>>,
    /// Bytes that it may take; `None` is what the system says is free, if it says.
    pub memory: Option<u64>,
}

impl HeadOptions {
    /// The tokens that may be drafted, ascending.
    pub(super) fn drafted(&self, path: &Path, vocabulary: usize) -> Result<Vec<Token>> {
        let all = 0..vocabulary as Token;
        let Some(allowed) = &self.tokens else { return Ok(all.collect()) };
        let allowed: BTreeSet<Token> = allowed.iter().copied().collect();
        let ids: Vec<Token> = all.filter(|id| allowed.contains(id)).collect();
        match ids.is_empty() {
            false => Ok(ids),
            true => {
                let problem =
                    "expected at least one token that may be drafted, got none".to_owned();
                Err(Error::File { path: path.to_owned(), problem })
            }
        }
    }
}
