//! Tables of n-grams as files.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner, NgramTable};

use crate::Usage;
use crate::keeper::store;
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

/// What goes on learning where a table in a file has stopped, or with nothing where there is none.
///
/// # Errors
/// A file that holds no table, or one of another vocabulary; a folder that is not there.
pub(crate) fn learning(file: &Path, vocabulary: &Vocabulary) -> Result<LearningNgrams> {
    let learner = match file.exists() {
        true => NgramLearner::from_table(&read(file)?, vocabulary)
            .with_context(|| format!("going on with {}", file.display()))?,
        false => NgramLearner::new(vocabulary),
    };
    // Before hours of it are lost.
    store(file, &learner.table())?;
    Ok(LearningNgrams::new(learner))
}

impl ModelOptions {
    /// The same where a table that is named as a draft is what it is: n-grams with a corpus.
    ///
    /// # Errors
    /// [`Usage`] where there would be two corpora.
    pub(crate) fn with_tables(&self) -> Result<Self> {
        let mut options = self.clone();
        if options.learn.is_some() {
            if options.draft.as_deref().is_some_and(|draft| draft != FALLBACK)
                || !options.further_drafts.is_empty()
            {
                return Err(Usage::error(
                    "--learn FILE: n-grams that learn are the only draft: give no --draft beside \
                     it",
                ));
            }
            if options.corpus.as_deref().is_some_and(is_table) {
                return Err(Usage::error(
                    "--learn FILE: expected no second table of n-grams as --corpus; name that one \
                     to learn on",
                ));
            }
            options.draft = Some(FALLBACK.to_owned());
        }
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
