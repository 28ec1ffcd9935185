//! Lists of the tokens that a draft may propose.
//!
//! Source: Zhao et al. 2025 (FR-Spec): a draft's output matrix is most of what it reads for a
//! token, and text is made of few tokens; rows of the others are left out. The target can still
//! emit tokens that the draft then cannot.

use std::collections::BTreeSet;
use std::path::Path;

use polydraft::Token;

use crate::error::{Error, Result};
use crate::weights::pickle;

/// Reads token ids: a JSON list, or a list as PyTorch saves it, in which form FR-Spec publishes its
/// own.
///
/// # Errors
/// A file that is missing or holds something else; a token that is not below `vocabulary`.
pub fn read_tokens(path: &Path, vocabulary: usize) -> Result<Vec<Token>> {
    let wrong = |problem: String| Error::File { path: path.to_owned(), problem };
    let bytes = polydraft_files::read(path, polydraft_files::FileKind::TOKENIZER)
        .map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let ids: Vec<usize> = match bytes.starts_with(b"PK") {
        true => pickle::integers(path)?,
        false => serde_json::from_slice(&bytes)
            .map_err(|e| wrong(format!("expected a JSON list of token ids, {}", e)))?,
    };
    if let Some(got) = ids.iter().find(|id| **id >= vocabulary) {
        return Err(wrong(format!("expected tokens below {vocabulary}, got {got}")));
    }
    if ids.is_empty() {
        return Err(wrong("expected at least one token, got none".to_owned()));
    }
    let ids: BTreeSet<Token> = ids.into_iter().map(|id| id as Token).collect();
    Ok(ids.into_iter().collect())
}
