//! Files that users hand over, read within limits: the one place where polydraft opens them. And
//! where it keeps its own.
//!
//! A file is read to its end only as far as its [`Kind`] can reach: a configuration is no gigabyte,
//! and a device has no end. What is no regular file is refused before it is opened, for a named
//! pipe would wait for its writer; the pipes that a shell makes of `<(command)` are streams, and
//! read as such.
#![forbid(unsafe_code)]

use std::env::{home_dir, var_os};
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

/// What a file is for, and how many bytes it can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// In words, for messages.
    pub name: &'static str,
    /// Bytes at most.
    pub most: u64,
}

impl Kind {
    /// A configuration, such as `config.json` or `tokenizer_config.json`: a few kilobytes, with
    /// long templates and lists of tokens megabytes.
    pub const SETTINGS: Self = Self { name: "a file of settings", most: 16 << 20 };
    /// A tokenizer or a vocabulary: 35 megabytes at a quarter of a million tokens.
    pub const TOKENIZER: Self = Self { name: "a tokenizer", most: 64 << 20 };
    /// The list of a model's tensors.
    pub const INDEX: Self = Self { name: "an index of tensors", most: 32 << 20 };
    /// A prompt, or a list of prompts.
    pub const PROMPT: Self = Self { name: "a prompt", most: 64 << 20 };
    /// A text to learn from.
    pub const TEXT: Self = Self { name: "a text to learn from", most: 1 << 30 };
    /// A table of n-grams: 40 bytes a context.
    pub const NGRAMS: Self = Self { name: "a table of n-grams", most: 8 << 30 };
    /// Probabilities: a few distributions over a large vocabulary.
    pub const DISTRIBUTIONS: Self = Self { name: "a file of probabilities", most: 64 << 20 };
    /// Measurements.
    pub const RECORD: Self = Self { name: "a record", most: 64 << 20 };

    fn too_large(self) -> Error {
        let megabytes = self.most >> 20;
        Error::new(
            ErrorKind::FileTooLarge,
            format!("expected {} of at most {megabytes} MiB, got more", self.name),
        )
    }
}

/// The user's own folder.
pub fn home() -> Option<PathBuf> {
    home_dir().filter(|folder| folder.is_absolute())
}

/// The user's folder for what can be made again, as the system has it; none without a home.
pub fn cache() -> Option<PathBuf> {
    let absolute = |name| Some(PathBuf::from(var_os(name)?)).filter(|path| path.is_absolute());
    let at_home = |folder| Some(home()?.join(folder));
    if cfg!(windows) {
        absolute("LOCALAPPDATA").or_else(|| at_home("AppData/Local"))
    } else if cfg!(target_vendor = "apple") {
        at_home("Library/Caches")
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| at_home(".cache"))
    }
}

/// Opens a regular file, or a stream that the shell made.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] for a directory, a device, a named pipe or a
/// socket.
pub fn open(path: &Path) -> Result<File> {
    regular(path, &std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // It may have been replaced in between.
    regular(path, &file.metadata()?)?;
    Ok(file)
}

/// That a library which takes a path will read a file of this kind there.
///
/// # Errors
/// As for [`read`].
pub fn check(path: &Path, kind: Kind) -> Result<()> {
    if open(path)?.metadata()?.len() > kind.most { Err(kind.too_large()) } else { Ok(()) }
}

/// The bytes of a file of this kind.
///
/// # Errors
/// As for [`open`]; [`ErrorKind::FileTooLarge`] for one that is larger than its kind can be.
pub fn read(path: &Path, kind: Kind) -> Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > kind.most {
        return Err(kind.too_large());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    take(file, kind, &mut bytes)?;
    Ok(bytes)
}

/// The text of a file of this kind.
///
/// # Errors
/// As for [`read`]; [`ErrorKind::InvalidData`] for bytes that are not UTF-8, the first of them
/// named.
pub fn read_text(path: &Path, kind: Kind) -> Result<String> {
    text(read(path, kind)?)
}

/// Writes a file that is there as a whole or not at all, in the place of one of that name.
///
/// # Errors
/// As the system says.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path))
}

/// All of a stream, such as standard input, up to what its kind can have.
///
/// # Errors
/// Those of the stream; [`ErrorKind::FileTooLarge`] for more.
pub fn read_stream(stream: impl Read, kind: Kind) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    take(stream, kind, &mut bytes)?;
    Ok(bytes)
}

/// Bytes as text.
///
/// # Errors
/// [`ErrorKind::InvalidData`] for bytes that are not UTF-8, the first of them named.
pub fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(
            ErrorKind::InvalidData,
            format!("expected text in UTF-8, got an invalid byte at {at}"),
        )
    })
}

fn take(stream: impl Read, kind: Kind, bytes: &mut Vec<u8>) -> Result<()> {
    let read = stream.take(kind.most + 1).read_to_end(bytes)?;
    if read as u64 > kind.most { Err(kind.too_large()) } else { Ok(()) }
}

fn regular(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() || (!metadata.is_dir() && is_open_already(path) && is_pipe(metadata)) {
        return Ok(());
    }
    let got = if metadata.is_dir() { "a directory" } else { "a pipe, a device or a socket" };
    Err(Error::new(ErrorKind::InvalidInput, format!("expected a regular file, got {got}")))
}

/// Whether a path names what this process was given open: to open it again waits for nobody.
fn is_open_already(path: &Path) -> bool {
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self/fd"]
            .iter()
            .any(|folder| path.parent() == Some(Path::new(folder)))
}

#[cfg(unix)]
fn is_pipe(metadata: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type())
}

#[cfg(not(unix))]
fn is_pipe(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Kind = Kind { name: "a note", most: 4 };

    #[test]
    fn files_are_read_up_to_their_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (bytes, expected) in [(&b""[..], Ok("")), (b"abcd", Ok("abcd"))] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read_text(&path, SMALL).map_err(|_| ()), expected.map(str::to_owned));
        }
        std::fs::write(&path, "abcde").unwrap();
        let error = read(&path, SMALL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        let error = read_text(&path, SMALL).unwrap_err();
        assert!(error.to_string().contains("invalid byte at 1"), "{error}");
        assert_eq!(read_stream(&b"abcde"[..], SMALL).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_stream(&b"abcd"[..], SMALL).unwrap(), b"abcd");
        assert_eq!(
            read(&folder.path().join("none"), SMALL).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let error = read(folder.path(), SMALL).unwrap_err();
        assert!(error.to_string().contains("got a directory"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn devices_and_pipes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [Path::new("/dev/zero"), Path::new("/dev/null"), &pipe] {
            let error = read(path, SMALL).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
        // Files of the system say that they are empty.
        assert!(!read(Path::new("/proc/self/stat"), Kind::SETTINGS).unwrap().is_empty());
    }
}
