//! Downloads several files in parallel, resumes interrupted ones and verifies their hashes.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ring::digest::{self, SHA256};
use ureq::http::StatusCode;

use super::cache::Repository;
use super::client::{Client, Failure, RemoteFile};
use super::reference::Reference;
use crate::listen::Listener;

/// Number of parallel downloads: one connection does not saturate a fast network.
const CONNECTIONS: usize = 4;
/// Maximum number of consecutive attempts without progress, and the first backoff, which doubles.
const ATTEMPTS: u32 = 5;
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// Bytes read at a time.
const CHUNK: usize = 256 << 10;
/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Download of a commit's files.
pub struct Download<'a> {
    pub client: &'a Client,
    pub cache: &'a Repository,
    pub reference: &'a Reference,
    pub commit: &'a str,
    pub files: &'a [RemoteFile],
}

/// Progress of all files.
#[derive(Default)]
struct Progress {
    next: AtomicUsize,
    /// Bytes present, and how many of them were present before.
    done: AtomicU64,
    found: AtomicU64,
    /// Whether another program is downloading a file.
    is_waiting: AtomicBool,
    stopped: AtomicBool,
}

impl Progress {
    /// Counts bytes that were present before.
    fn count_found(&self, bytes: u64) {
        self.found.fetch_add(bytes, Ordering::Relaxed);
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Reason why a transfer stopped.
enum TransferError {
    /// A retry may succeed.
    Retryable(String),
    Final(anyhow::Error),
}

impl Download<'_> {
    /// Downloads the missing files.
    ///
    /// # Errors
    /// A hub that stays unreachable after several attempts; files that cannot be written, or whose
    /// hash differs from the hub's.
    pub fn run(&self, listener: &dyn Listener) -> Result<()> {
        let (progress, start) = (Progress::default(), Instant::now());
        let error = Mutex::new(None);
        let work = || {
            while !progress.stopped.load(Ordering::Relaxed) {
                let Some(file) = self.files.get(progress.next.fetch_add(1, Ordering::Relaxed))
                else {
                    return;
                };
                if let Err(reason) = self.download_file(file, &progress) {
                    progress.stopped.store(true, Ordering::Relaxed);
                    let mut error = error.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    error.get_or_insert(
                        reason.context(format!("{}: {}", self.reference, file.path)),
                    );
                }
            }
        };
        thread::scope(|scope| {
            let workers = CONNECTIONS.min(self.files.len());
            let all: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let mut last_report = start;
            while !all.iter().all(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(PROGRESS_INTERVAL / 10);
                if last_report.elapsed() >= PROGRESS_INTERVAL {
                    last_report = Instant::now();
                    if !self.report_progress(&progress, start, listener) {
                        progress.stopped.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        let total = self.bytes() as usize;
        listener.download_progress("", total, total);
        match error.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            Some(error) => Err(error),
            None if progress.stopped.into_inner() => bail!("stopped"),
            None => Ok(()),
        }
    }

    /// Returns the total size of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.size).sum()
    }

    /// Reports the progress; returns whether to continue.
    fn report_progress(
        &self,
        progress: &Progress,
        start: Instant,
        listener: &dyn Listener,
    ) -> bool {
        let (done, total) = (progress.done.load(Ordering::Relaxed), self.bytes());
        let received = done.saturating_sub(progress.found.load(Ordering::Relaxed));
        let rate = received as f64 / start.elapsed().as_secs_f64();
        let mut what = format!("{}: {} of {}", self.reference, size(done), size(total));
        if progress.is_waiting.load(Ordering::Relaxed) {
            what += ", another program is downloading it";
        } else if received > 0 {
            let left = Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate);
            what += &format!(" at {}/s, {} left", size(rate as u64), time(left));
        }
        // The last byte is not the end: verification follows.
        let total = total.max(done + 1);
        listener.download_progress(&what, done.max(1) as usize, total as usize)
    }

    /// Downloads one file into the cache, and links it.
    fn download_file(&self, file: &RemoteFile, progress: &Progress) -> Result<()> {
        let (blob, incomplete) = self.cache.blob(&file.blob)?;
        let lock =
            self.cache.lock(&file.blob, || progress.is_waiting.store(true, Ordering::Relaxed))?;
        progress.is_waiting.store(false, Ordering::Relaxed);
        if blob.is_file() {
            progress.count_found(blob.metadata().map_or(0, |meta| meta.len()));
        } else {
            let mut partial = PartialFile::open(&incomplete, file)?;
            progress.count_found(partial.length);
            self.complete(&mut partial, file, progress)?;
            if let Err(error) = partial.check(file) {
                // A retry must not resume from invalid contents.
                let _ = fs::remove_file(&incomplete);
                return Err(error);
            }
            drop(partial);
            fs::rename(&incomplete, &blob)
                .with_context(|| format!("cannot write {}", blob.display()))?;
        }
        drop(lock);
        self.cache.link_file(&blob, self.commit, &file.path)
    }

    fn complete(
        &self,
        partial: &mut PartialFile,
        file: &RemoteFile,
        progress: &Progress,
    ) -> Result<()> {
        let (mut longest, mut failures, mut backoff) = (partial.length, 0, FIRST_BACKOFF);
        while file.size != Some(partial.length) {
            let reason = match self.append_response(partial, file, progress) {
                Ok(()) if file.size.is_none_or(|size| size == partial.length) => return Ok(()),
                Ok(()) => "the response ended too early".to_owned(),
                Err(TransferError::Retryable(reason)) => reason,
                Err(TransferError::Final(error)) => return Err(error),
            };
            if progress.stopped.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if partial.length > longest {
                (longest, failures, backoff) = (partial.length, 0, FIRST_BACKOFF);
            }
            failures += 1;
            if failures == ATTEMPTS {
                bail!("{reason}");
            }
            thread::sleep(backoff);
            backoff *= 2;
        }
        Ok(())
    }

    /// Appends one response to a partial file.
    fn append_response(
        &self,
        partial: &mut PartialFile,
        file: &RemoteFile,
        progress: &Progress,
    ) -> Result<(), TransferError> {
        let opened = self.client.open(self.reference, self.commit, &file.path, partial.length);
        let mut response = match opened {
            Ok(response) => response,
            // The partial file is longer than the file: start over.
            Err(Failure::Refused { status: 416, message, .. }) => {
                progress.done.fetch_sub(partial.length, Ordering::Relaxed);
                partial.clear().map_err(TransferError::Final)?;
                return Err(TransferError::Retryable(message));
            }
            Err(Failure::Unreachable(reason)) => return Err(TransferError::Retryable(reason)),
            Err(refused) => return Err(TransferError::Final(anyhow!("{refused}"))),
        };
        if partial.length > 0 && !continues_at(&response, partial.length) {
            // The response is the full file: start over.
            progress.done.fetch_sub(partial.length, Ordering::Relaxed);
            partial.clear().map_err(TransferError::Final)?;
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return Err(TransferError::Retryable(
                    "the response is another part of the file".to_owned(),
                ));
            }
        }
        let (mut reader, mut chunk) = (response.body_mut().as_reader(), vec![0; CHUNK]);
        loop {
            let bytes = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(TransferError::Retryable(error.to_string())),
            };
            if file.size.is_some_and(|size| partial.length + bytes as u64 > size) {
                return Err(TransferError::Final(anyhow!(
                    "the file is longer than the hub's listing"
                )));
            }
            partial.write(&chunk[..bytes]).map_err(TransferError::Final)?;
            progress.done.fetch_add(bytes as u64, Ordering::Relaxed);
            if progress.stopped.load(Ordering::Relaxed) {
                return Err(TransferError::Retryable("stopped".to_owned()));
            }
        }
    }
}

/// Returns whether a response continues a file at a byte.
fn continues_at<T>(response: &ureq::http::Response<T>, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let begins = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    response.status() == StatusCode::PARTIAL_CONTENT
        && begins.and_then(|begins| begins.parse().ok()) == Some(from)
}

/// A file that is being downloaded.
struct PartialFile<'a> {
    path: &'a Path,
    file: File,
    length: u64,
    hash: Option<digest::Context>,
}

impl<'a> PartialFile<'a> {
    /// Opens a partial file, and hashes what it contains.
    fn open(path: &'a Path, remote: &RemoteFile) -> Result<Self> {
        let named = || format!("cannot write {}", path.display());
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let hash = remote.sha256.is_some().then(|| digest::Context::new(&SHA256));
        let mut partial = Self { path, file: file.with_context(named)?, length: 0, hash };
        let mut chunk = vec![0; CHUNK];
        loop {
            match partial.file.read(&mut chunk).with_context(named)? {
                0 => break,
                bytes => partial.count(&chunk[..bytes]),
            }
        }
        if remote.size.is_some_and(|size| partial.length > size) {
            partial.clear()?;
        }
        Ok(partial)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| {
            format!("cannot write {}; the incomplete file stays", self.path.display())
        })?;
        self.count(bytes);
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        let cut = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cut.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.length = 0;
        self.hash = self.hash.as_ref().map(|_| digest::Context::new(&SHA256));
        Ok(())
    }

    /// Compares the complete file's hash with the hash that the hub lists.
    fn check(&mut self, remote: &RemoteFile) -> Result<()> {
        let (Some(hash), Some(expected)) = (self.hash.take(), &remote.sha256) else {
            return Ok(());
        };
        let found: String =
            hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        anyhow::ensure!(
            found.eq_ignore_ascii_case(expected),
            "its SHA-256 is {found}, but the hub's is {expected}: it was removed; run it again to \
             download it anew"
        );
        Ok(())
    }
}

/// Formats a number of bytes.
pub fn size(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.2} GB", bytes as f64 / 1e9),
        1_000_000.. => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.0} kB", (bytes as f64 / 1e3).ceil()),
    }
}

fn time(left: Duration) -> String {
    let seconds = left.as_secs_f64().ceil() as u64;
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}
