//! Lists of the tokens that a draft may propose.
//!
//! Source: Zhao et al. 2025 (FR-Spec): most of the weights that a draft model reads per token are
//! in its output matrix, and most text uses few different tokens; the rows of rare tokens are
//! dropped. The target can still emit them.

use std::collections::BTreeSet;
use std::path::Path;

use polydraft::Token;

use crate::error::{Error, Result};
use crate::weights::pickle;

/// Reads token ids from a JSON list, or from a list that PyTorch saved, the format of FR-Spec's
/// published lists.
///
/// # Errors
/// A missing or invalid file; a token that is not below `vocabulary`.
pub fn read_tokens(path: &Path, vocabulary: usize) -> Result<Vec<Token>> {
    let invalid = |problem: String| Error::File { path: path.to_owned(), problem };
    let bytes = polydraft_files::read(path, polydraft_files::FileKind::TOKENIZER)
        .map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let ids: Vec<usize> = match bytes.starts_with(b"PK") {
        true => pickle::integers(path)?,
        false => serde_json::from_slice(&bytes)
            .map_err(|e| invalid(format!("expected a JSON list of token ids: {e}")))?,
    };
    if let Some(got) = ids.iter().find(|id| **id >= vocabulary) {
        return Err(invalid(format!("expected tokens below {vocabulary}, got {got}")));
    }
    if ids.is_empty() {
        return Err(invalid("expected at least one token, got none".to_owned()));
    }
    let ids: BTreeSet<Token> = ids.into_iter().map(|id| id as Token).collect();
    Ok(ids.into_iter().collect())
}
