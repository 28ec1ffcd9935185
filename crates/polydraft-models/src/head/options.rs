//! Options of loading a draft head.

use std::collections::BTreeSet;
use std::path::Path;

use polydraft::Token;

use crate::error::{Error, Result};
use crate::precision::Precision;

/// Options of loading a draft head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeadOptions {
    /// Type of the weight matrices.
    pub precision: Precision,
    /// Layers of the target whose inputs it reads, if its files differ from its training (files
    /// number layers in two conventions). Wrong layers lower the acceptance rate.
    pub layers: Option<Vec<usize>>,
    /// Tokens that the draft head may propose; `None` for its full draft vocabulary.
    pub tokens: Option<Vec<Token>>,
    /// Maximum bytes; `None` is the free memory that the system reports, or no limit if it reports
    /// none.
    pub memory: Option<u64>,
}

impl HeadOptions {
    /// Allowed tokens of a vocabulary, ascending.
    pub(super) fn allowed_tokens(&self, path: &Path, vocabulary: usize) -> Result<Vec<Token>> {
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
