//! Sources of bytes: a regular file with random access, or memory.
//!
//! Files are read, not memory-mapped. If another process truncates a mapped file, access kills this
//! process with a signal, whereas a read returns an error; and a map needs `unsafe`. A map would
//! save nothing: loading a model copies every block anyway, and a read from the page cache is one
//! such copy, in chunks that stay in the CPU's cache (measured in `examples/measure.rs`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Error, Result};

/// A source of known length.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub path: Arc<Path>,
    pub length: u64,
    bytes: Bytes,
}

#[derive(Debug, Clone)]
enum Bytes {
    File(Arc<File>),
    Memory(Arc<[u8]>),
}

impl Source {
    /// Opens a regular file. Rejects other files: a pipe could block, and a device has no end.
    pub fn open(path: &Path) -> Result<Self> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        // Checked before opening, because opening a pipe blocks until it has a writer.
        check_regular(path, &std::fs::metadata(path).map_err(read)?)?;
        let file = File::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        check_regular(path, &metadata)?;
        Ok(Self { path: path.into(), length: metadata.len(), bytes: Bytes::File(Arc::new(file)) })
    }

    pub fn memory(name: &str, bytes: Vec<u8>) -> Self {
        let path: PathBuf = name.into();
        Self { path: path.into(), length: bytes.len() as u64, bytes: Bytes::Memory(bytes.into()) }
    }

    /// Fills `bytes`, starting at `offset`.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let result = match &self.bytes {
            Bytes::File(file) => read_at(file, offset, bytes),
            Bytes::Memory(memory) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                match start.checked_add(bytes.len()).and_then(|end| memory.get(start..end)) {
                    Some(found) => {
                        bytes.copy_from_slice(found);
                        Ok(())
                    }
                    None => Err(std::io::ErrorKind::UnexpectedEof.into()),
                }
            }
        };
        result.map_err(|source| Error::Read { path: self.path.to_path_buf(), source })
    }
}

fn check_regular(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let got = if metadata.is_dir() { "a directory" } else { "a pipe, a device or a socket" };
    Err(Error::NotAFile { path: path.to_owned(), got })
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut offset: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                offset += count as u64;
                bytes = &mut bytes[count..];
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
