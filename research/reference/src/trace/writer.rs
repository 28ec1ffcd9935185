//! Records traces into a folder. An interruption loses at most the current shard.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::{Path, PathBuf};

use polydraft::Token;
use serde_json::Value;

use crate::trace::folder::{HEADER, INDEX, Line, crc_of, crc32, file_name};
use crate::trace::{Error, Header, Recording, Result, Trace};

/// Suffix of incomplete files.
const PART: &str = ".part";

/// A trace that is being recorded. It is locked against other writers while this object exists.
pub struct Writer {
    folder: PathBuf,
    crc: String,
    index: File,
    /// Number of the next prompt.
    next: usize,
    /// For each checksum of a prompt, how many recordings have not been matched by `has` yet.
    recorded: HashMap<String, usize>,
}

impl Writer {
    /// Creates a trace in a new or empty folder.
    ///
    /// # Errors
    /// A folder that is not empty; an invalid header.
    pub fn create(folder: &Path, header: &Header) -> Result<Self> {
        header.validate(HEADER)?;
        let failed = |error| Error::file(folder, error);
        if folder.exists() && !folder.is_dir() {
            return Err(Error::content(folder.display(), "a folder to record into", "a file"));
        }
        std::fs::create_dir_all(folder).map_err(failed)?;
        for file in std::fs::read_dir(folder).map_err(failed)?.flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            // An earlier start may have been interrupted after creating the empty index.
            let begun = name == INDEX && file.metadata().is_ok_and(|file| file.len() == 0);
            if !begun && !name.ends_with(PART) {
                return Err(Error::content(
                    folder.display(),
                    "an empty folder to record into",
                    name,
                ));
            }
        }
        let index = Self::lock(folder)?;
        let json = serde_json::to_string_pretty(header).unwrap_or_default() + "\n";
        write(&folder.join(HEADER), json.as_bytes())?;
        let recorded = HashMap::new();
        Ok(Self {
            folder: folder.to_owned(),
            crc: crc32(json.as_bytes()),
            index,
            next: 0,
            recorded,
        })
    }

    /// Opens a trace for appending; its settings must be the same.
    ///
    /// # Errors
    /// No trace; another one: the setting that differs is named.
    pub fn append(folder: &Path, header: &Header) -> Result<Self> {
        if !folder.join(HEADER).exists() {
            let expected = format!("a trace to go on with, a folder with {HEADER}");
            return Err(Error::content(folder.display(), expected, "none"));
        }
        let index = Self::lock(folder)?;
        let trace = Trace::open(folder)?;
        header.belongs_with(trace.header(), folder)?;
        let (recorded, got) = (trace.header().seed, header.seed);
        if recorded != got {
            let (path, recorded, got) = (folder.to_owned(), recorded.to_string(), got.to_string());
            return Err(Error::Other { path, field: "seed", recorded, got });
        }
        let cut = index.set_len(trace.complete as u64);
        cut.map_err(|error| Error::file(&folder.join(INDEX), error))?;
        let mut recorded = HashMap::new();
        for line in &trace.lines {
            *recorded.entry(line.prompt.clone()).or_default() += 1;
        }
        let (crc, next) = (trace.crc().to_owned(), trace.lines.len());
        Ok(Self { folder: folder.to_owned(), crc, index, next, recorded })
    }

    /// Opens the index, locked against other writers.
    fn lock(folder: &Path) -> Result<File> {
        let path = folder.join(INDEX);
        let open = || -> std::io::Result<File> {
            let index = OpenOptions::new().append(true).create(true).open(&path)?;
            index.try_lock().map_err(|error| match error {
                std::fs::TryLockError::WouldBlock => {
                    IoError::new(ErrorKind::ResourceBusy, "somebody else is recording into it")
                }
                std::fs::TryLockError::Error(error) => error,
            })?;
            Ok(index)
        };
        open().map_err(|error| Error::file(&path, error))
    }

    /// Returns the number of the next prompt.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Whether this prompt is already recorded; returns true once per recording.
    pub fn has(&mut self, prompt: &[Token]) -> bool {
        match self.recorded.get_mut(&crc_of(prompt)) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }

    /// Adds the recording of a prompt by the program `made`, and returns its size in bytes. The
    /// shard is on disk when this returns.
    ///
    /// # Errors
    /// Errors of the file system; then the prompt is not in the trace.
    pub fn add(&mut self, recording: &Recording, made: &Value) -> Result<u64> {
        let path = self.folder.join(file_name(self.next));
        let file = recording
            .file(self.next, &self.crc, made)
            .map_err(|error| Error::file(&path, error))?;
        write(&path, &file)?;
        let line = Line {
            file: file_name(self.next),
            bytes: file.len() as u64,
            crc32: crc32(&file),
            prompt: crc_of(recording.prompt()),
            positions: recording.positions(),
        };
        let mut line = serde_json::to_string(&line).unwrap_or_default();
        line.push('\n');
        let added = self.index.write_all(line.as_bytes()).and_then(|()| self.index.sync_data());
        added.map_err(|error| Error::file(&self.folder.join(INDEX), error))?;
        self.next += 1;
        Ok(file.len() as u64)
    }
}

/// Writes a file atomically.
fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(PART);
    let part = PathBuf::from(part);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(contents)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|error| Error::file(path, error))
}
