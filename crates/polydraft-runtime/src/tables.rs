//! Tables of n-grams as files.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use polydraft_engine::drafter::ngram::NgramTable;

use crate::Usage;
use crate::models::{FALLBACK, ModelOptions};

/// Whether a file is a table of n-grams.
pub fn is_table(file: &Path) -> bool {
    let mut begin = Vec::new();
    let read = polydraft_files::open(file)
        .and_then(|file| file.take(NgramTable::BEGINNING as u64).read_to_end(&mut begin));
    read.is_ok() && NgramTable::is_table(&begin)
}

/// Reads a table.
///
/// # Errors
/// A file that cannot be read, or holds no table.
pub fn read(file: &Path) -> Result<NgramTable> {
    let what = || format!("cannot read the n-grams {}", file.display());
    let bytes = polydraft_files::read(file, polydraft_files::Kind::NGRAMS).with_context(what)?;
    NgramTable::from_bytes(&bytes).with_context(what)
}

impl ModelOptions {
    /// The same where a table that is named as a draft is what it is: n-grams with a corpus.
    ///
    /// # Errors
    /// [`Usage`] where there would be two corpora.
    pub(crate) fn with_tables(&self) -> Result<Self> {
        let mut options = self.clone();
        for name in options.draft.iter_mut().chain(&mut options.further_drafts) {
            if !is_table(Path::new(name)) {
                continue;
            }
            let file = std::mem::replace(name, FALLBACK.to_owned());
            if options.corpus.replace(file.into()).is_some() {
                return Err(Usage::error(
                    "--draft FILE.ngrams: expected one table of n-grams, and no --corpus beside it",
                ));
            }
        }
        Ok(options)
    }
}
