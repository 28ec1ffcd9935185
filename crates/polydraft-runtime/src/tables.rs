//! Tables of n-grams as files: read, and those that are learned while a model writes stored.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use polydraft_engine::Vocabulary;
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramLearner, NgramTable};

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

/// Writes a table, whole or not at all.
fn store(file: &Path, table: &NgramTable) -> Result<()> {
    let partial = file.with_extension("partial");
    let written = fs::write(&partial, table.to_bytes()).and_then(|()| fs::rename(&partial, file));
    written.with_context(|| format!("cannot store the n-grams in {}", file.display()))
}

/// How often what is being learned is stored; and at the end.
const STORED: Duration = Duration::from_secs(300);

/// Stores what is being learned, on a thread of its own: now and then, and when it is dropped.
#[derive(Debug)]
pub struct TableKeeper {
    /// Nothing is sent: that it is gone says that it is the end.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl TableKeeper {
    /// Of this file.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn new(ngrams: LearningNgrams, file: PathBuf) -> Result<Self> {
        let (end, ended) = channel();
        let keep = move || {
            let mut stored = ngrams.learned();
            loop {
                let is_end = ended.recv_timeout(STORED) != Err(RecvTimeoutError::Timeout);
                let learned = ngrams.learned();
                let done = if learned == stored { Ok(()) } else { store(&file, &ngrams.table()) };
                if is_end {
                    return done;
                }
                // A full disk may have room the next time.
                if done.is_ok() {
                    stored = learned;
                }
            }
        };
        let thread = std::thread::Builder::new().name("n-grams".to_owned()).spawn(keep)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }

    /// Stores what was learned.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        drop(self.end.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(anyhow!("the thread that stores n-grams panicked")))
    }
}

impl Drop for TableKeeper {
    fn drop(&mut self) {
        // Who wants to know of errors closes it.
        let _ = self.finish();
    }
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
                    "--learn FILE: n-grams that learn are the only draft: give no --draft beside it",
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
