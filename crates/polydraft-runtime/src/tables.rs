//! Tables of n-grams as files.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner, NgramTable};

use crate::keeper::store;

/// Whether a file is a table of n-grams.
pub fn is_table(file: &Path) -> bool {
    let mut begin = Vec::new();
    let read = polydraft_files::open(file)
        .and_then(|file| file.take(NgramTable::MAGIC_LENGTH as u64).read_to_end(&mut begin));
    read.is_ok() && NgramTable::is_table(&begin)
}

/// Reads a table.
///
/// # Errors
/// A file that cannot be read, or holds no table.
pub fn read(file: &Path) -> Result<NgramTable> {
    let what = || format!("cannot read the n-grams {}", file.display());
    let bytes =
        polydraft_files::read(file, polydraft_files::FileKind::NGRAMS).with_context(what)?;
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
