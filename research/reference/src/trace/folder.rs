//! Folder of a trace: header, index and shards.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use polydraft::Token;
use polydraft_files::FileKind;
use serde::{Deserialize, Serialize};

use crate::trace::columns::MOST;
use crate::trace::{Error, Header, Result, Shard};

/// File name of the header.
pub(crate) const HEADER: &str = "trace.json";
/// File name of the list of shards.
pub(crate) const INDEX: &str = "index.jsonl";
/// Kind of a shard's file.
const SHARD: FileKind = FileKind { name: "a shard of a trace", max_bytes: MOST as u64 };
const LINES: FileKind = FileKind { name: "the index of a trace", max_bytes: 256 << 20 };

/// Line of the index that describes a shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub file: String,
    pub bytes: u64,
    /// CRC-32 of the file's bytes.
    pub crc32: String,
    /// CRC-32 of the prompt's tokens.
    pub prompt: String,
    pub positions: usize,
}

/// Returns the file name of a shard.
pub(crate) fn file_name(number: usize) -> String {
    format!("prompt-{number:06}.safetensors.gz")
}

/// Returns the CRC-32 of bytes, as computed by zlib.
pub(crate) fn crc32(bytes: &[u8]) -> String {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    format!("{:08x}", crc.sum())
}

/// Returns the CRC-32 of a prompt's tokens, as little-endian integers.
pub(crate) fn crc_of(prompt: &[Token]) -> String {
    crc32(&prompt.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>())
}

/// A recorded trace, opened for reading.
pub struct Trace {
    folder: PathBuf,
    header: Header,
    /// CRC-32 of the header file.
    crc: String,
    /// Lines of the index, by prompt number.
    pub(crate) lines: Vec<Line>,
    /// Number of bytes of the index in complete lines.
    pub(crate) complete: usize,
    /// Selected shards of the trace.
    shards: Vec<usize>,
}

impl Trace {
    /// Opens the folder of a trace, or a single shard by its file.
    ///
    /// # Errors
    /// Contents that are not a trace. The error reports the file and the problem.
    pub fn open(path: &Path) -> Result<Self> {
        let shard = path.is_file().then(|| path.file_name().unwrap_or_default().to_string_lossy());
        let folder = match shard {
            Some(_) => path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty())
                .unwrap_or(Path::new(".")),
            None => path,
        };
        let file = folder.join(HEADER);
        let header =
            polydraft_files::read(&file, FileKind::CONFIG).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    let expected = format!("a trace, a folder with {HEADER} or one of its files");
                    Error::content(path.display(), expected, "none")
                }
                _ => Error::file(&file, error),
            })?;
        let crc = crc32(&header);
        let location = file.display().to_string();
        let header: Header = serde_json::from_slice(&header).map_err(|error| {
            Error::content(&location, "the header of a trace", error.to_string())
        })?;
        header.validate(&location)?;
        let index = folder.join(INDEX);
        let text = polydraft_files::read_text(&index, LINES)
            .map_err(|error| Error::file(&index, error))?;
        let (lines, complete) = lines(&index, &text)?;
        let mut trace = Self {
            folder: folder.to_owned(),
            header,
            crc,
            shards: (0..lines.len()).collect(),
            lines,
            complete,
        };
        trace.check_listed()?;
        if let Some(name) = shard {
            let number = trace.lines.iter().position(|line| line.file == name);
            let expected = format!("a file that {INDEX} lists");
            trace.shards =
                vec![number.ok_or_else(|| Error::content(path.display(), expected, "another"))?];
        }
        Ok(trace)
    }

    /// Opens several traces, or shards of them, as one trace.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open); traces that were recorded with different settings; a
    /// recording that appears twice, under whatever name: it would count twice, and errors would
    /// seem smaller than they are.
    pub fn open_all<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Self>> {
        let traces =
            paths.iter().map(|path| Self::open(path.as_ref())).collect::<Result<Vec<_>>>()?;
        for (trace, path) in traces.iter().zip(paths).skip(1) {
            traces[0].header.belongs_with(&trace.header, path.as_ref())?;
        }
        let mut known = HashMap::new();
        for trace in &traces {
            for (number, file) in trace.shards.iter().zip(trace.files()) {
                let location = file.display().to_string();
                if let Some(other) = known.insert(&trace.lines[*number], file) {
                    let got = format!("that of {} again", other.display());
                    return Err(Error::content(location, "a recording that is there once", got));
                }
            }
        }
        Ok(traces)
    }

    /// Checks that at most one shard is missing from the index: one whose recording was
    /// interrupted.
    fn check_listed(&self) -> Result<()> {
        let files =
            std::fs::read_dir(&self.folder).map_err(|error| Error::file(&self.folder, error))?;
        let listed: HashSet<&str> = self.lines.iter().map(|line| line.file.as_str()).collect();
        let names = files.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
        let mut others: Vec<String> = names
            .filter(|name| {
                name.starts_with("prompt-") && name.ends_with(".gz") && !listed.contains(&name[..])
            })
            .collect();
        others.sort();
        match others.as_slice() {
            [] | [_] => Ok(()),
            [first, ..] => {
                let location = self.folder.join(INDEX);
                let got =
                    format!("none for {} of them, the first of which is {first}", others.len());
                Err(Error::content(location.display(), "a line for each shard that is there", got))
            }
        }
    }

    /// Returns the header: settings that all shards share.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the checksum of the header file.
    pub(crate) fn crc(&self) -> &str {
        &self.crc
    }

    /// Returns the number of shards, one per prompt.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether there are no shards.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the files of the shards.
    pub fn files(&self) -> impl ExactSizeIterator<Item = PathBuf> + '_ {
        self.shards.iter().map(|number| self.folder.join(&self.lines[*number].file))
    }

    /// Returns the total number of bytes of the shards.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|number| self.lines[*number].bytes).sum()
    }

    /// Returns the total number of positions of the shards.
    pub fn positions(&self) -> usize {
        self.shards.iter().map(|number| self.lines[*number].positions).sum()
    }

    /// Reads shard number `index`, counted from 0.
    ///
    /// # Errors
    /// A file that is missing, does not match the index, or is not a shard of this trace.
    ///
    /// # Panics
    /// If there are fewer shards.
    pub fn shard(&self, index: usize) -> Result<Shard> {
        let number = self.shards[index];
        let line = &self.lines[number];
        let path = self.folder.join(&line.file);
        let location = path.display().to_string();
        let bytes =
            polydraft_files::read(&path, SHARD).map_err(|error| Error::file(&path, error))?;
        let check = |what: &str, expected: &dyn ToString, got: &dyn ToString| match expected
            .to_string()
            == got.to_string()
        {
            true => Ok(()),
            false => {
                let expected = format!("{what} {}, as {INDEX} says", expected.to_string());
                Err(Error::content(&location, expected, got.to_string()))
            }
        };
        check("bytes:", &line.bytes, &bytes.len())?;
        check("the checksum", &line.crc32, &crc32(&bytes))?;
        let shard = Shard::read(&location, &bytes, self.header.vocabulary)?;
        if shard.sequences().len() > self.header.sequences as usize {
            let expected = format!("at most {} sequences, as {HEADER} says", self.header.sequences);
            return Err(Error::content(&location, expected, shard.sequences().len()));
        }
        check("positions:", &line.positions, &shard.positions())?;
        check("a prompt with the checksum", &line.prompt, &crc_of(shard.prompt()))?;
        if shard.header() != self.crc || shard.number() != number {
            let expected = format!(
                "prompt {number} of the trace whose {HEADER} has the checksum {}",
                self.crc
            );
            let got = format!("prompt {} of {}", shard.number(), shard.header());
            return Err(Error::content(&location, expected, got));
        }
        Ok(shard)
    }
}

/// Returns the lines of an index, and their length in bytes. Ignores an incomplete last line, whose
/// writing was interrupted.
fn lines(path: &Path, text: &str) -> Result<(Vec<Line>, usize)> {
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    let mut lines = Vec::new();
    for (number, line) in text[..complete].lines().enumerate() {
        let location = format!("{}, line {}", path.display(), number + 1);
        let line: Line = serde_json::from_str(line).map_err(|error| {
            Error::content(&location, "a line about a shard", error.to_string())
        })?;
        if line.file != file_name(number) {
            return Err(Error::content(location, file_name(number), format!("{:?}", line.file)));
        }
        lines.push(line);
    }
    Ok((lines, complete))
}
