//! Tables of n-grams that are learned while a model writes, stored in their files.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramTable};

/// Writes a table, whole or not at all.
pub(crate) fn store(file: &Path, table: &NgramTable) -> Result<()> {
    polydraft_files::write_atomically(file, &table.to_bytes())
        .with_context(|| format!("cannot store the n-grams in {}", file.display()))
}

/// How often what is being learned is stored; and at the end.
const STORED: Duration = Duration::from_secs(300);

/// Stores what is being learned, on a thread of its own: now and then, and when it is dropped.
#[derive(Debug)]
pub struct TableSaver {
    /// Nothing is sent: that it is gone says that it is the end.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl TableSaver {
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

impl Drop for TableSaver {
    fn drop(&mut self) {
        // Who wants to know of errors closes it.
        let _ = self.finish();
    }
}
