//! Reads files that users pass, within size limits, and names polydraft's own folders. All code
//! that opens such a file goes through this crate.
//!
//! Each read is limited to the maximum size of its [`FileKind`], because a device such as
//! `/dev/zero` never ends. Anything but a regular file is rejected before it is opened, because
//! opening a named pipe blocks until it has a writer. The pipes that a shell creates for
//! `<(command)` are accepted and read as streams.
#![forbid(unsafe_code)]

use std::env::var_os;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

/// Purpose of a file, with its maximum size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// Name in error messages, with its article.
    pub name: &'static str,
    /// Maximum size in bytes.
    pub max_bytes: u64,
}

impl FileKind {
    /// A configuration, such as `config.json` or `tokenizer_config.json`: usually a few kilobytes,
    /// megabytes with long templates and token lists.
    pub const CONFIG: Self = Self { name: "a configuration file", max_bytes: 16 << 20 };
    /// A tokenizer or a vocabulary: 35 megabytes for 250,000 tokens.
    pub const TOKENIZER: Self = Self { name: "a tokenizer", max_bytes: 64 << 20 };
    /// The list of a model's tensors.
    pub const TENSOR_INDEX: Self = Self { name: "an index of tensors", max_bytes: 32 << 20 };
    /// A prompt, or a list of prompts.
    pub const PROMPT: Self = Self { name: "a prompt", max_bytes: 64 << 20 };
    /// Training text.
    pub const TRAINING_TEXT: Self = Self { name: "a training text", max_bytes: 1 << 30 };
    /// An n-gram table: 40 bytes per context.
    pub const NGRAMS: Self = Self { name: "a table of n-grams", max_bytes: 8 << 30 };
    /// Probabilities: a few distributions over a large vocabulary.
    pub const DISTRIBUTIONS: Self = Self { name: "a file of probabilities", max_bytes: 64 << 20 };
    /// A benchmark record.
    pub const RECORD: Self = Self { name: "a record", max_bytes: 64 << 20 };

    fn too_large(self) -> Error {
        let megabytes = self.max_bytes >> 20;
        Error::new(
            ErrorKind::FileTooLarge,
            format!("expected {} of at most {megabytes} MiB, got more", self.name),
        )
    }
}

/// Returns the user's home folder.
pub fn home_dir() -> Option<PathBuf> {
    std::env::home_dir().filter(|folder| folder.is_absolute())
}

/// Returns the user's cache folder, following the conventions of the operating system; `None` if
/// there is no home folder.
pub fn cache_dir() -> Option<PathBuf> {
    let absolute = |name| Some(PathBuf::from(var_os(name)?)).filter(|path| path.is_absolute());
    let in_home = |folder| Some(home_dir()?.join(folder));
    if cfg!(windows) {
        absolute("LOCALAPPDATA").or_else(|| in_home("AppData/Local"))
    } else if cfg!(target_vendor = "apple") {
        in_home("Library/Caches")
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| in_home(".cache"))
    }
}

/// Opens a regular file, or a pipe that the shell passed to this process.
///
/// # Errors
/// Errors of the operating system; [`ErrorKind::InvalidInput`] for a directory, a device, a named
/// pipe or a socket.
pub fn open(path: &Path) -> Result<File> {
    check_regular(path, &std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // The path may have been replaced since the first check.
    check_regular(path, &file.metadata()?)?;
    Ok(file)
}

/// Checks that a path names a readable file within the size limit of `kind`, before the path is
/// passed to a library that reads it.
///
/// # Errors
/// The errors of [`read`].
pub fn check(path: &Path, kind: FileKind) -> Result<()> {
    if open(path)?.metadata()?.len() > kind.max_bytes { Err(kind.too_large()) } else { Ok(()) }
}

/// Reads a file.
///
/// # Errors
/// The errors of [`open`]; [`ErrorKind::FileTooLarge`] for a file above the size limit of `kind`.
pub fn read(path: &Path, kind: FileKind) -> Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > kind.max_bytes {
        return Err(kind.too_large());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    read_limited(file, kind, &mut bytes)?;
    Ok(bytes)
}

/// Reads a UTF-8 text file.
///
/// # Errors
/// The errors of [`read`] and [`decode_utf8`].
pub fn read_text(path: &Path, kind: FileKind) -> Result<String> {
    decode_utf8(read(path, kind)?)
}

/// Writes a file atomically: to a temporary file next to it, which then replaces `path`.
///
/// # Errors
/// Errors of the operating system.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path))
}

/// Reads a stream, such as standard input, to its end.
///
/// # Errors
/// Errors of the stream; [`ErrorKind::FileTooLarge`] for a stream above the size limit of `kind`.
pub fn read_stream(stream: impl Read, kind: FileKind) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_limited(stream, kind, &mut bytes)?;
    Ok(bytes)
}

/// Converts bytes to a string.
///
/// # Errors
/// [`ErrorKind::InvalidData`] for bytes that are not UTF-8, with the offset of the first.
pub fn decode_utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(
            ErrorKind::InvalidData,
            format!("expected text in UTF-8, got an invalid byte at {at}"),
        )
    })
}

fn read_limited(stream: impl Read, kind: FileKind, bytes: &mut Vec<u8>) -> Result<()> {
    let read = stream.take(kind.max_bytes + 1).read_to_end(bytes)?;
    if read as u64 > kind.max_bytes { Err(kind.too_large()) } else { Ok(()) }
}

fn check_regular(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() || (!metadata.is_dir() && is_open_descriptor(path) && is_pipe(metadata)) {
        return Ok(());
    }
    let got = if metadata.is_dir() { "a directory" } else { "a pipe, a device or a socket" };
    Err(Error::new(ErrorKind::InvalidInput, format!("expected a regular file, got {got}")))
}

/// Whether a path names an open file descriptor of this process, which can be opened again without
/// blocking.
fn is_open_descriptor(path: &Path) -> bool {
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

    const SMALL: FileKind = FileKind { name: "a note", max_bytes: 4 };

    #[test]
    fn reads_files_up_to_size_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (bytes, expected) in [(&b""[..], Ok("")), (b"abcd", Ok("abcd"))] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read_text(&path, SMALL).map_err(|_| ()), expected.map(str::to_owned));
        }
        std::fs::write(&path, "abcde").unwrap();
        let error = read(&path, SMALL).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn reads_streams_up_to_size_limit() {
        assert_eq!(read_stream(&b"abcde"[..], SMALL).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_stream(&b"abcd"[..], SMALL).unwrap(), b"abcd");
    }

    #[test]
    fn reports_offset_of_invalid_utf8() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        let error = read_text(&path, SMALL).unwrap_err();
        assert!(error.to_string().contains("invalid byte at 1"), "{error}");
    }

    #[test]
    fn rejects_missing_files_and_directories() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            read(&folder.path().join("none"), SMALL).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let error = read(folder.path(), SMALL).unwrap_err();
        assert!(error.to_string().contains("got a directory"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn rejects_devices_and_named_pipes() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [Path::new("/dev/zero"), Path::new("/dev/null"), &pipe] {
            let error = read(path, SMALL).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn reads_proc_files_that_report_zero_length() {
        assert!(!read(Path::new("/proc/self/stat"), FileKind::CONFIG).unwrap().is_empty());
    }
}
