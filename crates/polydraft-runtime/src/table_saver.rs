//! Stores tables of n-grams that learn from a model's output.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use polydraft_engine::drafter::ngram::{LearningNgrams, NgramTable};

/// Writes a table atomically.
pub(crate) fn store(file: &Path, table: &NgramTable) -> Result<()> {
    polydraft_files::write_atomically(file, &table.to_bytes())
        .with_context(|| format!("cannot store the n-grams in {}", file.display()))
}

/// Interval at which a table is stored.
const STORE_INTERVAL: Duration = Duration::from_secs(300);

/// Stores a learning table from its own thread, at an interval and when it is dropped.
#[derive(Debug)]
pub struct TableSaver {
    /// Sends nothing: dropping it ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl TableSaver {
    /// Stores the n-grams in `file`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn new(ngrams: LearningNgrams, file: PathBuf) -> Result<Self> {
        let (end, ended) = channel();
        // Before the thread starts, which on a busy machine may be after the first output.
        let mut stored = ngrams.learned();
        let run = move || {
            loop {
                let is_end = ended.recv_timeout(STORE_INTERVAL) != Err(RecvTimeoutError::Timeout);
                let learned = ngrams.learned();
                let result = if learned == stored { Ok(()) } else { store(&file, &ngrams.table()) };
                if is_end {
                    return result;
                }
                // If the disk is full, a later attempt may succeed.
                if result.is_ok() {
                    stored = learned;
                }
            }
        };
        let thread = std::thread::Builder::new().name("n-grams".to_owned()).spawn(run)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }

    /// Stores the table and ends the thread.
    ///
    /// # Errors
    /// A file that cannot be written.
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
        // Callers who need the error use `close`.
        let _ = self.finish();
    }
}
