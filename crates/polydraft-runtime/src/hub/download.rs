//! Downloads: several files at a time, each from where it broke off, checked at its end.

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
use super::client::{Client, Failure, Remote};
use super::reference::Reference;
use crate::listen::Listener;

/// Files at a time: one connection does not fill a fast line.
const TOGETHER: usize = 4;
/// How often nothing more may come, and the first pause after that; each is twice the one before.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;
/// How often it is said how far it is.
const SPEAKS: Duration = Duration::from_millis(200);

/// The download of a commit's files.
pub struct Download<'a> {
    pub client: &'a Client,
    pub cache: &'a Repository,
    pub of: &'a Reference,
    pub commit: &'a str,
    pub files: &'a [Remote],
}

/// How far all files are together.
#[derive(Default)]
struct State {
    next: AtomicUsize,
    /// Bytes that are here, and those of them that were before.
    done: AtomicU64,
    found: AtomicU64,
    /// Files that another program writes.
    waits: AtomicBool,
    stopped: AtomicBool,
}

impl State {
    /// Counts bytes that were here before.
    fn finds(&self, bytes: u64) {
        self.found.fetch_add(bytes, Ordering::Relaxed);
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Why a download does not go on.
enum Stop {
    /// Another time it may.
    Broken(String),
    Final(anyhow::Error),
}

impl Download<'_> {
    /// Downloads what is not here.
    ///
    /// # Errors
    /// A hub that is lost, after some tries; files that cannot be written, or that differ from what
    /// the hub says of them.
    pub fn run(&self, listener: &dyn Listener) -> Result<()> {
        let (state, start) = (State::default(), Instant::now());
        let error = Mutex::new(None);
        let work = || {
            while !state.stopped.load(Ordering::Relaxed) {
                let Some(file) = self.files.get(state.next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                if let Err(why) = self.one(file, &state) {
                    state.stopped.store(true, Ordering::Relaxed);
                    let mut error = error.lock().unwrap_or_else(|lost| lost.into_inner());
                    error.get_or_insert(why.context(format!("{}: {}", self.of, file.path)));
                }
            }
        };
        thread::scope(|scope| {
            let workers = TOGETHER.min(self.files.len());
            let all: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let mut spoke = start;
            while !all.iter().all(thread::ScopedJoinHandle::is_finished) {
                thread::sleep(SPEAKS / 10);
                if spoke.elapsed() >= SPEAKS {
                    spoke = Instant::now();
                    if !self.speak(&state, start, listener) {
                        state.stopped.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        let total = self.bytes() as usize;
        listener.download_progress("", total, total);
        match error.into_inner().unwrap_or_else(|lost| lost.into_inner()) {
            Some(error) => Err(error),
            None if state.stopped.into_inner() => bail!("stopped"),
            None => Ok(()),
        }
    }

    /// Of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.size).sum()
    }

    /// Says how far it is; answers whether it is to go on.
    fn speak(&self, state: &State, start: Instant, listener: &dyn Listener) -> bool {
        let (done, total) = (state.done.load(Ordering::Relaxed), self.bytes());
        let came = done.saturating_sub(state.found.load(Ordering::Relaxed));
        let rate = came as f64 / start.elapsed().as_secs_f64();
        let mut what = format!("{}: {} of {}", self.of, size(done), size(total));
        if state.waits.load(Ordering::Relaxed) {
            what += ", another program downloads it too";
        } else if came > 0 {
            let left = Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate);
            what += &format!(" at {}/s, {} left", size(rate as u64), time(left));
        }
        // The last byte is not the end.
        let total = total.max(done + 1);
        listener.download_progress(&what, done.max(1) as usize, total as usize)
    }

    /// One file, from its beginning in the cache to its link.
    fn one(&self, file: &Remote, state: &State) -> Result<()> {
        let (blob, coming) = self.cache.blob(&file.blob)?;
        let lock = self.cache.lock(&file.blob, || state.waits.store(true, Ordering::Relaxed))?;
        state.waits.store(false, Ordering::Relaxed);
        if blob.is_file() {
            state.finds(blob.metadata().map_or(0, |meta| meta.len()));
        } else {
            let mut part = Part::open(&coming, file)?;
            state.finds(part.length);
            self.fill(&mut part, file, state)?;
            if let Err(error) = part.check(file) {
                // Not to begin with what is wrong.
                let _ = fs::remove_file(&coming);
                return Err(error);
            }
            drop(part);
            fs::rename(&coming, &blob)
                .with_context(|| format!("cannot write {}", blob.display()))?;
        }
        drop(lock);
        self.cache.show(&blob, self.commit, &file.path)
    }

    fn fill(&self, part: &mut Part, file: &Remote, state: &State) -> Result<()> {
        let (mut most, mut failures, mut pause) = (part.length, 0, PAUSE);
        while file.size != Some(part.length) {
            let why = match self.pour(part, file, state) {
                Ok(()) if file.size.is_none_or(|size| size == part.length) => return Ok(()),
                Ok(()) => "the answer ended too early".to_owned(),
                Err(Stop::Broken(why)) => why,
                Err(Stop::Final(error)) => return Err(error),
            };
            if state.stopped.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            if part.length > most {
                (most, failures, pause) = (part.length, 0, PAUSE);
            }
            failures += 1;
            if failures == TRIES {
                bail!("{why}");
            }
            thread::sleep(pause);
            pause *= 2;
        }
        Ok(())
    }

    /// What one answer brings.
    fn pour(&self, part: &mut Part, file: &Remote, state: &State) -> Result<(), Stop> {
        let opened = self.client.open(self.of, self.commit, &file.path, part.length);
        let mut response = match opened {
            Ok(response) => response,
            // There is nothing from there on: what is here is too long.
            Err(Failure::Refused { status: 416, message, .. }) => {
                state.done.fetch_sub(part.length, Ordering::Relaxed);
                part.empty().map_err(Stop::Final)?;
                return Err(Stop::Broken(message));
            }
            Err(Failure::Unreachable(why)) => return Err(Stop::Broken(why)),
            Err(refused) => return Err(Stop::Final(anyhow!("{refused}"))),
        };
        if part.length > 0 && !continues(&response, part.length) {
            // All of it, from the beginning.
            state.done.fetch_sub(part.length, Ordering::Relaxed);
            part.empty().map_err(Stop::Final)?;
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return Err(Stop::Broken("the answer is another part of the file".to_owned()));
            }
        }
        let (mut reader, mut chunk) = (response.body_mut().as_reader(), vec![0; CHUNK]);
        loop {
            let bytes = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Stop::Broken(error.to_string())),
            };
            if file.size.is_some_and(|size| part.length + bytes as u64 > size) {
                return Err(Stop::Final(anyhow!("more bytes come than the hub says it has")));
            }
            part.write(&chunk[..bytes]).map_err(Stop::Final)?;
            state.done.fetch_add(bytes as u64, Ordering::Relaxed);
            if state.stopped.load(Ordering::Relaxed) {
                return Err(Stop::Broken("stopped".to_owned()));
            }
        }
    }
}

/// Whether an answer is the rest of a file from a byte on.
fn continues<T>(response: &ureq::http::Response<T>, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let begins = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next());
    response.status() == StatusCode::PARTIAL_CONTENT
        && begins.and_then(|begins| begins.parse().ok()) == Some(from)
}

/// A file as it comes.
struct Part<'a> {
    path: &'a Path,
    file: File,
    length: u64,
    hash: Option<digest::Context>,
}

impl<'a> Part<'a> {
    /// What is here of it already.
    fn open(path: &'a Path, of: &Remote) -> Result<Self> {
        let named = || format!("cannot write {}", path.display());
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let hash = of.sha256.is_some().then(|| digest::Context::new(&SHA256));
        let mut part = Self { path, file: file.with_context(named)?, length: 0, hash };
        let mut chunk = vec![0; CHUNK];
        loop {
            match part.file.read(&mut chunk).with_context(named)? {
                0 => break,
                bytes => part.count(&chunk[..bytes]),
            }
        }
        if of.size.is_some_and(|size| part.length > size) {
            part.empty()?;
        }
        Ok(part)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| {
            format!("cannot write {}; what came so far is kept", self.path.display())
        })?;
        self.count(bytes);
        Ok(())
    }

    fn empty(&mut self) -> Result<()> {
        let cut = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cut.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.length = 0;
        self.hash = self.hash.as_ref().map(|_| digest::Context::new(&SHA256));
        Ok(())
    }

    /// Whether it is what the hub says, when it is whole.
    fn check(&mut self, of: &Remote) -> Result<()> {
        let (Some(hash), Some(expected)) = (self.hash.take(), &of.sha256) else { return Ok(()) };
        let found: String =
            hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        anyhow::ensure!(
            found.eq_ignore_ascii_case(expected),
            "its contents are not those of the hub (SHA-256 {found}, not {expected}), so that they \
             were removed; run it again to download them anew"
        );
        Ok(())
    }
}

/// Bytes for people.
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
