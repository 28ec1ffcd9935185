//! Table files of n-grams.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner, NgramTable};

use crate::table_saver::store;

/// Returns whether a file is a table of n-grams.
pub fn is_table(file: &Path) -> bool {
    let mut begin = Vec::new();
    let read = polydraft_files::open(file)
        .and_then(|file| file.take(NgramTable::MAGIC_LENGTH as u64).read_to_end(&mut begin));
    read.is_ok() && NgramTable::is_table(&begin)
}

/// Reads a table.
///
/// # Errors
/// A file that cannot be read, or is not a table.
pub fn read(file: &Path) -> Result<NgramTable> {
    let what = || format!("cannot read the n-grams {}", file.display());
    let bytes =
        polydraft_files::read(file, polydraft_files::FileKind::NGRAMS).with_context(what)?;
    NgramTable::from_bytes(&bytes).with_context(what)
}

/// Opens a table that continues learning, or creates an empty one if the file is missing.
///
/// # Errors
/// A file that is not a table, or has a different vocabulary; a missing folder.
pub(crate) fn open_learning(file: &Path, vocabulary: &Vocabulary) -> Result<LearningNgrams> {
    let learner = match file.exists() {
        true => NgramLearner::from_table(&read(file)?, vocabulary)
            .with_context(|| format!("continuing {}", file.display()))?,
        false => NgramLearner::new(vocabulary),
    };
    // Checks that the file can be written before hours of learning are lost.
    store(file, &learner.table())?;
    Ok(LearningNgrams::new(learner))
}
